"""Parse text to documents whose values know their file, line and column."""
