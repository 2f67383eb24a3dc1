"""State of a job master that outlives it: the journal and snapshots on disk, and the copy in a ConfigMap."""
