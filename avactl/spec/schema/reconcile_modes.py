"""Properties of the `Cluster.spec.reconcile` modes: which engine applies, and its own behaviour."""

from __future__ import annotations

STARTS_JOBS_AGAIN = ("flux", "argocd", "pulumiOperator", "builtin")
"""Modes whose engine recreates a Job after Kubernetes has deleted it on TTL expiry."""
PULUMI = ("pulumi", "pulumiOperator")
"""Modes that apply through Pulumi stacks."""
FOLLOW_FILES = ("flux", "argocd")
"""Modes whose engine follows rendered files."""
RENDERED_BRANCH = "rendered"
"""Default branch of rendered files, in a repository without environments."""


def rendered_branch(environment: str) -> str:
    """Return the default branch of the rendered files of an environment; "" if there are none."""
    return f"{RENDERED_BRANCH}-{environment}" if environment else RENDERED_BRANCH
