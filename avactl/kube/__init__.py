"""The Kubernetes API over plain dicts: access, requests, watches, leader election. Shared by all daemons."""
