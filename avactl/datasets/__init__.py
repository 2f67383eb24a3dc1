"""Data of datasets: manifests, snapshots, comparisons with stores, and packing."""
