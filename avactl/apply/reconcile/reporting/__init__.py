"""Output of a run: report, events, metrics, progress, commit status."""
