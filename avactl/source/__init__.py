"""Text to documents: every value knows its file, line and column."""
