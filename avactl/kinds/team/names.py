"""Names of a team's objects that other kinds use."""

from __future__ import annotations

from avactl.kinds.program import Item

RUN_ACCOUNT = "avactl-run"
"""Service account of pods of users that do not talk to the Kubernetes API; it has no rights, its token is not
mounted. It exists in every namespace of every team."""


def namespaces(team: Item) -> list[str]:
    """The namespaces of a team, the default one first."""
    return [namespace.name for namespace in team.spec.namespaces or []] or [team.name]
