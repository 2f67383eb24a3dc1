"""Event handlers: update the cache and the queue from watched objects."""
