"""Building blocks of Kubernetes objects that the kinds lower to."""
