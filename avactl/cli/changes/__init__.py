"""Commands that show the effect of a change, or apply it through Pulumi."""
