"""What the compiled NetworkPolicies admit."""
