"""Parsed documents: values with their file, line and column, and edits that keep the text."""
