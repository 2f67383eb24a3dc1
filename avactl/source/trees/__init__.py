"""Trees of files: which files belong to them, and what a command compiles."""
