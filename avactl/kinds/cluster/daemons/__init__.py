"""The daemons of a cluster: their Deployments and DaemonSets, service accounts and RBAC."""
