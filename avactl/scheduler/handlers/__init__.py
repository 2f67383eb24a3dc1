"""Event handlers: watched objects into the cache and the queue."""
