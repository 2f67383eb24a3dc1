"""Training jobs on a cluster, as their owners see them: states, progress, logs, experiments, the dashboard."""
