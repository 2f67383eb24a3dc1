"""Commands on a spec repository."""
