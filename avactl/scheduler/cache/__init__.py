"""The cluster cache: nodes, pods, claims, volumes and team usage, kept in the placement state."""
