"""Labelling with Label Studio: objects become its tasks, and its annotations labels."""
