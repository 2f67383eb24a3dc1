"""Commands on a change: what it means, and applying it through Pulumi."""
