"""Headline facts of a Team."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.team.names import team_namespaces
from avactl.program.program import Item, Program
from avactl.program.registry import Fact
from avactl.spec.platform.team import TeamSpec


def facts(item: Item[TeamSpec], program: Program) -> Mapping[str, Fact]:
    """Clusters, members and buckets of the team."""
    spec = item.spec
    members = spec.members
    people = {
        "user": len({*members.users, *members.admins}),
        "group": len(members.groups),
        "viewing group": len(members.viewers),
    }
    named = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in people.items() if count]
    return {
        "clusters": ", ".join(item.clusters),
        "namespaces": ", ".join(team_namespaces(item)),
        "members": ", ".join(named) or "nobody",
        "buckets": ", ".join(bucket.name for bucket in spec.buckets) or None,
        "talks to": ", ".join(spec.talks_to) or None,
    }
