"""Exposure: services and workspaces under host names, by the Gateway API or an Ingress controller."""
