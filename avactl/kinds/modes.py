"""What the modes of `Cluster.spec.reconcile` have in common: who applies, and what that engine does by itself."""

from __future__ import annotations

STARTS_JOBS_AGAIN = ("flux", "argocd", "pulumiOperator")
"""Modes whose engine starts a job again that Kubernetes removed after its time to live."""
PULUMI = ("pulumi", "pulumiOperator")
"""Modes that apply by Pulumi stacks."""
