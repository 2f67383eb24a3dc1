"""Meaning of specs together: resolved references, capacity, and the parts that kinds share."""
