"""The serving daemon: canary and blue-green rollouts of services, whose state is in the objects."""
