"""Snapshots of a live cluster: capture, schema, and loading one for a plan."""
