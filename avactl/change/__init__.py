"""Meaning of a change: diff, plan, and the review comment."""
