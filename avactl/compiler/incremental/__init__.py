"""Incremental compile: results of single specs are kept on disk, and computed again only after a change."""
