"""The daemons beside the scheduler: caches, elastic jobs, rollouts, delivery, node topology."""
