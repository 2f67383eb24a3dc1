"""Scheduling constraints: each restricts or ranks the nodes of a pod, or makes it wait for an event."""
