"""The scheduling cycle: one decision at a time, on the next unit of the queue."""
