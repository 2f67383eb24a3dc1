"""What a run says: report, events, metrics, progress, commit status."""
