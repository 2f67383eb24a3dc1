"""Rollouts of Argo → ServingDeployments with `rollout`, if their steps say the same there."""

from __future__ import annotations

import re
from typing import Any

from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.entrances import is_selected
from avactl.workbench.importer.sources.services import convert_deployment
from avactl.workbench.importer.sources.training import format_seconds

_PLACE = "a ServingDeployment with `rollout` would take its place"
_DURATION = re.compile(r"(\d{1,6})([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZES = ("maxSurge", "maxUnavailable")
_MOST = 6
"""Reasons that are told of one Rollout."""
_KEEP = 30
"""Seconds for which Argo keeps the former version after a switch, unless the Rollout says otherwise."""


def convert_rollout(context: Context, reader: ImportReader) -> ImportedSpec | str:
    """Return the ServingDeployment of a Rollout, or the reason why it stays a manifest."""
    given = reader.given
    for key in ("workloadRef", "analysis", "rollbackWindow", "restartAt"):
        if given.get("spec", key):
            return f"{_PLACE}; it has none for `{key}`"
    strategy = given.get("spec", "strategy") or {}
    kind = next((key for key in ("canary", "blueGreen") if isinstance(strategy.get(key), dict)), "")
    if not kind:
        return f"{_PLACE}; it names no strategy"
    found = _read_canary(strategy[kind]) if kind == "canary" else _read_blue_green(context, given, strategy[kind])
    if isinstance(found, str):
        return f"{_PLACE}; {found}"
    spec = convert_deployment(context, reader, found)
    if isinstance(spec, str):
        return f"{_PLACE}; {spec}"
    for key in _SIZES:
        if kind == "canary" and found and key in strategy[kind]:
            why = f"how many pods a rollout adds and takes away follows from its shares, not from {strategy[kind][key]}"
            reader.note(("spec", "strategy", kind, key), why, "")
    return spec


def _read_canary(canary: Body) -> Body | str:
    """Return `rollout` of a canary, empty for a rolling update, or what a spec does not have."""
    steps = canary.get("steps") or []
    foreign = [key for key in canary if canary[key] not in (None, [], {}, False) and key not in ("steps", *_SIZES)]
    reasons = [f"its canary has {', '.join(f'`{key}`' for key in sorted(foreign))} of Argo"] if foreign else []
    made: list[Body] = []
    for number, step in enumerate(steps, 1):
        match step:
            case {"setWeight": int(percent), **rest} if not rest:
                made.append({"percent": percent, "pause": 0})
            case {"pause": dict(pause), **rest} if not rest and made:
                seconds = _seconds(pause.get("duration"))
                if seconds is None:
                    reasons.append(f"its step {number} waits for a person, and a step of `canary` has a duration")
                else:
                    made[-1]["pause"] += seconds
            case _:
                name = ", ".join(map(str, step)) if isinstance(step, dict) else step
                reasons.append(f"its step {number} is `{name}`, which is Argo's")
    if reasons:
        return "; ".join(reasons[:_MOST]) + (f"; and {len(reasons) - _MOST} more" if len(reasons) > _MOST else "")
    # A share of 100 is the new version alone; without a pause, the next one follows at once.
    made = [each for each in made if each["pause"] and each["percent"] < 100]
    shares = [each["percent"] for each in made]
    if any(share < 1 for share in shares) or shares != sorted(set(shares)):
        return f"its shares are {', '.join(map(str, shares))}, and those of `canary` rise from 1"
    if not made:
        return {} if not steps else "its steps have no duration"
    return {"canary": {"steps": [{**each, "pause": format_seconds(each["pause"])} for each in made]}}


def _read_blue_green(context: Context, given: GivenValue, switch: Body) -> Body | str:
    """Return `rollout` of a switch, or what a spec does not have."""
    if switch.get("autoPromotionEnabled") is False:
        return "a person switches its versions, and `blueGreen` switches when the new pods are ready"
    known = ("activeService", "autoPromotionEnabled", "scaleDownDelaySeconds")
    for key in switch:
        if switch[key] not in (None, [], {}, False) and key not in known:
            return f"its switch has `{key}`, which is Argo's"
    labels = given.get("spec", "template", "metadata", "labels") or {}
    services = {each.name for each in context.find("Service", given.namespace, lambda each: is_selected(each, labels))}
    if switch.get("activeService") != given.name or services - {given.name}:
        return f"its Service `{switch.get('activeService')}` is not named after it, and clients know that name"
    keep = switch.get("scaleDownDelaySeconds")
    return {"blueGreen": {"keep": format_seconds(_KEEP if keep is None else keep) or "0s"}}


def _seconds(duration: Any) -> int | None:
    """Return a duration of Argo in seconds, or None for none."""
    if isinstance(duration, bool) or duration is None:
        return None
    found = _DURATION.fullmatch(str(duration))
    return int(found[1]) * _SECONDS[found[2]] if found is not None else None
