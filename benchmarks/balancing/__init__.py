"""Client-side balancing against gRPC's own `round_robin`: `python -m benchmarks.balancing --help`."""
