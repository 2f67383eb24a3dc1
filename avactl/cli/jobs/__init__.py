"""Commands about training jobs on a cluster."""
