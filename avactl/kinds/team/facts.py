"""The headline numbers of a Team."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.kinds.program import Item, Program
from avactl.kinds.registry import Fact
from avactl.kinds.team.names import namespaces


def facts(item: Item, program: Program) -> Mapping[str, Fact]:
    """Where the team works, who belongs to it, what it reaches."""
    spec = item.spec
    members = spec.members
    people = {
        "users": len({*members.users, *members.admins}),
        "groups": len(members.groups),
        "viewers": len(members.viewers),
    }
    return {
        "clusters": ", ".join(item.clusters),
        "namespaces": ", ".join(namespaces(item)),
        "members": ", ".join(f"{count} {what}" for what, count in people.items() if count) or "nobody",
        "buckets": ", ".join(bucket.name for bucket in spec.buckets) or None,
        "talks to": ", ".join(spec.talks_to) or None,
    }
