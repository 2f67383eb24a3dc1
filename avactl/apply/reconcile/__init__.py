"""The built-in GitOps engine: apply what git declares, prune what was removed from git, correct drift."""
