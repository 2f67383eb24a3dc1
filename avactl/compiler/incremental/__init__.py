"""Incremental compile: results of single specs, kept on disk by content."""
