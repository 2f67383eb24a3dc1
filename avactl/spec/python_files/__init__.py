"""Spec files in Python, evaluated in a sandbox."""
