"""Commands on a cluster, and its daemons."""
