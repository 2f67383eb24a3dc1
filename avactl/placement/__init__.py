"""The placement engine: which machine, which GPUs. Pure functions over arrays; no Kubernetes, no I/O, no clock."""
