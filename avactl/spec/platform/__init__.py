"""Models of the kinds that other specs refer to: clusters, machines, teams, quotas, cache tiers, datasets."""
