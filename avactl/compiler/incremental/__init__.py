"""Incremental compile: cache the results of single specs on disk, and recompute them only after a change."""
