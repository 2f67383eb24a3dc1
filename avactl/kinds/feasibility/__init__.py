"""Does it fit: capacity of pools, pods on machines, overhead of cache tiers."""
