"""Health of DisaggregatedSets, from the LeaderWorkerSets that their controller makes. Pure.

Source: `pkg/controllers/disaggregatedset` of sigs.k8s.io/lws 0.9, which writes no status. When a template changes, it
creates LeaderWorkerSets of a new revision for all roles, and finally deletes those of the old revision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from avactl.base.object_identity import Gvk
from avactl.base.quantity import parse_quantity
from avactl.contracts.names import DISAGGREGATED_NAME, DISAGGREGATED_ROLE

Live = Mapping[str, Any]
KIND, GROUPS = "DisaggregatedSet", Gvk("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
_REVISION_LABEL = "disaggregatedset.x-k8s.io/revision"
_ADDED_LABELS = frozenset((DISAGGREGATED_NAME, DISAGGREGATED_ROLE, _REVISION_LABEL, "app"))
"""Labels that the controller adds to templates."""
_AMOUNT_FIELDS = ("requests", "limits", "sizeLimit")


def made_by(live: Live, sets: Sequence[Live]) -> list[Live]:
    """Return the LeaderWorkerSets of a DisaggregatedSet."""
    uid = live["metadata"].get("uid")
    return [
        each for each in sets if any(owner.get("uid") == uid for owner in each["metadata"].get("ownerReferences") or ())
    ]


def roles_of(live: Live, made: Sequence[Live]) -> dict[str, Live] | None:
    """Return the LeaderWorkerSets of the current templates by role; None until there is one of each role."""
    revisions: dict[str, dict[str, Live]] = defaultdict(dict)
    for each in made:
        labels = each["metadata"].get("labels") or {}
        revisions[labels.get(_REVISION_LABEL, "")][labels.get(DISAGGREGATED_ROLE, "")] = each
    wanted = {role["name"]: comparable_value(role["spec"]["leaderWorkerTemplate"]) for role in live["spec"]["roles"]}
    for found in revisions.values():
        if all(
            name in found and comparable_value(_groups_template(found[name])) == own for name, own in wanted.items()
        ):
            return {name: found[name] for name in wanted}
    return None


def _groups_template(groups: Live) -> Any:
    return groups["spec"]["leaderWorkerTemplate"]


def comparable_value(value: Any, key: str = "", amount: bool = False) -> Any:
    """Return a value for comparison: without the labels and number formats that the controller changes."""
    if isinstance(value, Mapping):
        found = {
            name: comparable_value(each, name, name in _AMOUNT_FIELDS or key in _AMOUNT_FIELDS)
            for name, each in value.items()
            if not (key == "labels" and name in _ADDED_LABELS)
        }
        return {name: each for name, each in found.items() if each not in (None, {}, [])}
    if isinstance(value, list):
        return [comparable_value(each) for each in value]
    if amount:
        try:
            return parse_quantity(value)
        except (TypeError, ValueError):
            return value
    return value
