"""Feasibility checks: pool capacity, pods per machine, and overhead of cache tiers."""
