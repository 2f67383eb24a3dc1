"""Commits to the repository of the specs."""
