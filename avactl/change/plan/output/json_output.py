"""Plans as JSON. Keys are added, never renamed; an incompatible change would increase `version`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avactl.base.terminal import json_output
from avactl.change.plan.cost import MONTH
from avactl.change.plan.model import NOTE, Cost, Plan, PlanEntry

VERSION = 1


def render_json(plans: Sequence[Plan]) -> str:
    """Return the plans as JSON; docs/plan.md describes the schema."""
    data = {
        "version": VERSION,
        "note": NOTE,
        "fine": all(plan.fine for plan in plans),
        "clusters": list(map(_plan, plans)),
    }
    return json_output(data)


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "cluster": plan.cluster,
        "source": plan.source,
        "fine": plan.fine,
        "counts": {verdict.value: count for verdict, count in sorted(plan.counts.items())},
        "specs": [_entry_data(entry) for entry in plan.shown],
        "others": [
            {
                **found.owner._asdict(),
                "effect": found.what,
                "pods": found.pods,
                "of": found.of,
                **_known_values(reason=found.reason, words=found.words, by=found.by._asdict() if found.by else None),
            }
            for found in plan.effects
        ],
        "pools": [each._asdict() for each in plan.pools],
        "quotas": [each._asdict() for each in plan.quotas],
        "currency": plan.currency or None,
        "assumed": list(plan.assumed),
        **_known_values(uncounted=plan.uncounted or None),
    }


def _entry_data(entry: PlanEntry) -> dict[str, Any]:
    return {
        **entry.owner._asdict(),
        "file": entry.file,
        "line": entry.line,
        "change": entry.change,
        "verdict": entry.verdict.value,
        "pods": entry.pods,
        "placed": entry.placed,
        "places": [each._asdict() for each in entry.places],
        "waits": [
            {"verdict": each.verdict.value, "pods": each.pods, "words": each.words, **_known_values(room=each.room)}
            for each in entry.waits
        ],
        "restarts": entry.restarts,
        "ends": entry.ends,
        "reclaimable": entry.reclaimable,
        "later": entry.later,
        "estimated": entry.estimated,
        **_known_values(surge=entry.surge._asdict() if entry.surge else None),
        "cost": _cost_data(entry.cost),
        "before": _cost_data(entry.before),
    }


def _cost_data(cost: Cost) -> dict[str, Any]:
    month = cost.per_hour * MONTH if cost.always and cost.per_hour is not None else None
    return {
        "gpus": cost.gpus,
        "always": cost.always,
        **_known_values(
            hours=cost.hours,
            gpuHours=cost.gpu_hours,
            perHour=cost.per_hour,
            onSpot=cost.on_spot,
            atMost=cost.at_most,
            perMonth=month,
        ),
    }


def _known_values(**values: Any) -> dict[str, Any]:
    """Drop unknown values."""
    return {key: value for key, value in values.items() if value not in (None, "")}
