"""Sources of specs: directories, git revisions, forges."""
