"""Policies of a repository: their evaluation on a compiled program, and the list of them."""
