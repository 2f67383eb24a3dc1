"""scheduler_perf, Kubernetes' own scheduler benchmark, with avactl beside kube-scheduler.

The configurations and templates of k8s.io/kubernetes/test/integration/scheduler_perf are read from the Go module cache,
at the version of Kubernetes that tools/controlplane builds. `configurations` reads them, `executor` runs one workload
with one scheduler, `comparison` runs a case with both, and `report` writes the table in docs/measured.md.
"""
