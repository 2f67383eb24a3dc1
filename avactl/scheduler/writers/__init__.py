"""Writes to the API server: bindings, evictions, conditions and events."""
