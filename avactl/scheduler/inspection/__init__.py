"""Read-only views of a cluster for `avactl top`, `why`, `pool` and the metrics."""
