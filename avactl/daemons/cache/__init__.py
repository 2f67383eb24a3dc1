"""The cache daemon: prewarming, verified write-back, and guards for the cache tiers of one cluster."""
