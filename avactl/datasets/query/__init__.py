"""Queries of manifests and their labels, and labels that are written back."""
