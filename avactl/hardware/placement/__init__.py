"""The placement engine: choose machines and GPUs. Pure functions over arrays; no Kubernetes, no I/O, no clock."""
