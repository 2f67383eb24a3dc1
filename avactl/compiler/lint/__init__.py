"""Mistakes that are easy to make: warnings, remedies, and their correction in the files."""
