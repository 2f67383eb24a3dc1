"""Rights of members without a spec, as annotations of the team's namespaces, which the admission policies read."""

from __future__ import annotations

from avactl.contracts import names
from avactl.spec.platform.team import TeamSpec

_PRIORITY_LEVELS = ("low", "normal", "high")
DEFAULT_PRIORITIES = ("avactl-low", "avactl-normal")
DEFAULT_SERVICE_TYPES = ("ClusterIP",)


def allowance_annotations(spec: TeamSpec, limits_members: bool) -> dict[str, str] | None:
    """Return the annotations of a Team's namespaces; None for the defaults."""
    priorities = tuple(
        f"avactl-{level}" for level in _PRIORITY_LEVELS[: _PRIORITY_LEVELS.index(spec.member_priority) + 1]
    )
    types = tuple(spec.service_types)
    declared = (
        (names.MEMBER_PRIORITIES, priorities, DEFAULT_PRIORITIES),
        (names.SERVICE_TYPES, types, DEFAULT_SERVICE_TYPES),
        (names.SERVICE_ACCOUNTS, tuple(account.name for account in spec.service_accounts), ()),
    )
    found = {key: ",".join(values) for key, values, default in declared if values != default}
    return {**found, **({names.MEMBER_LIMITS: "true"} if limits_members else {})} or None
