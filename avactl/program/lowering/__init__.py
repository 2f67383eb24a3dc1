"""Shared builders for the Kubernetes objects that the kinds lower to."""
