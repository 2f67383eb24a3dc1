"""Patches of specs: what a team changes in the compiled objects, within its rights."""
