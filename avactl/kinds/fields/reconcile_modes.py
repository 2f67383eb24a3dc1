"""What the modes of `Cluster.spec.reconcile` have in common: who applies, and what that engine does by itself."""

from __future__ import annotations

STARTS_JOBS_AGAIN = ("flux", "argocd", "pulumiOperator", "builtin")
"""Modes whose engine starts a job again that Kubernetes removed after its time to live."""
PULUMI = ("pulumi", "pulumiOperator")
"""Modes that apply by Pulumi stacks."""
FOLLOW_FILES = ("flux", "argocd")
"""Modes whose engine follows rendered files."""
RENDERED_BRANCH = "rendered"
"""The branch that it follows where none is named."""
