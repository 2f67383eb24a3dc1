"""Every figure that avactl is held to, measured beside its peers: `python -m benchmarks`."""
