"""Layers of a spec: defaults of the platform and the team, templates, the spec itself, overlays of an environment."""
