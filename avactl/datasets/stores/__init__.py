"""Directories and object stores."""
