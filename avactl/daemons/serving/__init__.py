"""The serving daemon: canary and blue-green rollouts of services, and weights for clients that balance."""
