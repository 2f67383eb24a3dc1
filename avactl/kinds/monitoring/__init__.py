"""Monitoring: PodMonitors of the Prometheus Operator, and who may read metrics."""
