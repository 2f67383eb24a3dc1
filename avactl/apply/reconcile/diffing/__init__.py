"""The difference between desired and live objects, and the actions that remove it."""
