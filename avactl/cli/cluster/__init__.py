"""Commands on a cluster, and the daemons in it."""
