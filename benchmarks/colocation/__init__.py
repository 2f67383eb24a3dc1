"""Services and training on the same machines, against machines of their own: `python -m benchmarks.colocation`."""
