"""Problems of single specs: errors of the schema with their remedies, pitfalls of YAML, and internal errors."""
