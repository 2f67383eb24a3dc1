"""Rollouts of a service: canary and blue-green, carried out by the serving daemon."""
