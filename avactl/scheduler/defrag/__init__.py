"""Defragmentation: the fewest moves that let a job start, proposed and carried out."""
