"""Names of team objects that other kinds use."""

from __future__ import annotations

from avactl.program.program import Item
from avactl.spec.platform.team import TeamSpec

RUN_ACCOUNT = "avactl-run"
"""Service account of user pods that do not call the Kubernetes API; it has no permissions and its token is not
mounted. It exists in every namespace of every team."""


def team_namespaces(team: Item[TeamSpec]) -> list[str]:
    """Namespaces of a team, the default one first."""
    return [namespace.name for namespace in team.spec.namespaces or []] or [team.name]
