"""Settings of user pods beyond the fields of the kinds: the block `pod`, with Kubernetes' own key names."""
