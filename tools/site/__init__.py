"""The documentation site: `make docs` builds it with MkDocs from `docs/`, the pages of the root, and the code."""
