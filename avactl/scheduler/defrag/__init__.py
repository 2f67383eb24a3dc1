"""Defragmentation: propose and execute the fewest moves that let a job start."""
