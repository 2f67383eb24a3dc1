"""Text of specs: files and revisions, parsed documents, Python files, and typed models."""
