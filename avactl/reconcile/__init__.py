"""The built-in GitOps engine: what git declares is applied, what left git is pruned, drift is put back."""
