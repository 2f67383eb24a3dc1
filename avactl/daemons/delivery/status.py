"""The pipelines and promotions of a cluster, as `avactl delivery status` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avactl.contracts.delivery import PLAN_KEY, PROBLEM_KEY, PROMOTION_KEY, STATE_KEY, PromotionPlan
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import (
    CONFIG_LABEL,
    PIPELINE_CONFIG,
    PIPELINE_STATE,
    PROMOTION_CONFIG,
    PROMOTION_STATE,
)
from avactl.daemons.delivery.config_maps import state_name
from avactl.daemons.delivery.plans import read_plan, read_state
from avactl.daemons.delivery.promotions import read_promotion_state
from avactl.kube.client import Client, list_all


async def read(client: Client, namespace: str) -> list[dict[str, Any]]:
    """Return the plans and states of the system namespace. Raises ApiError and UnreachableError."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    selector = f"{CONFIG_LABEL} in ({PIPELINE_CONFIG},{PIPELINE_STATE},{PROMOTION_CONFIG},{PROMOTION_STATE})"
    return await list_all(lambda query: client.page(path, query), {"labelSelector": selector, "limit": "500"})


def pipeline_entries(maps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry a pipeline, by team and name; those that run come first."""
    known = {each["metadata"]["name"]: each for each in maps}
    found = []
    for name, each in known.items():
        if (each["metadata"].get("labels") or {}).get(CONFIG_LABEL) == PIPELINE_CONFIG:
            found.append(_pipeline_entry(each, known.get(state_name(name)) or {}))
    return sorted(found, key=lambda entry: (entry["phase"] in ("idle", ""), entry["pipeline"]))


def promotion_entries(maps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry a promotion, by team and name of the service; those that wait for something come first."""
    known = {each["metadata"]["name"]: each for each in maps}
    found = []
    for name, each in known.items():
        if (each["metadata"].get("labels") or {}).get(CONFIG_LABEL) == PROMOTION_CONFIG:
            found.append(_promotion_entry(each, known.get(state_name(name)) or {}))
    return sorted(found, key=lambda entry: (entry["phase"] in ("current", ""), entry["service"]))


def _promotion_entry(plan: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    data = held.get("data") or {}
    state, problem = read_promotion_state(data.get(STATE_KEY)), str(data.get(PROBLEM_KEY, ""))
    entry: dict[str, Any] = {
        "service": plan["metadata"]["name"].removeprefix("promotion."),
        "runs": state.target,
        "from": "",
        "cluster": "",
        "tries": state.source,
        "phase": state.phase if data.get(STATE_KEY) else "",
        "since": state.since,
        "window": 0,
        "message": state.message,
        "url": state.url,
        "problem": problem,
    }
    try:
        promoted = load(PromotionPlan, (plan.get("data") or {}).get(PROMOTION_KEY))
    except DocumentError as error:
        return {**entry, "problem": f"invalid plan: {error}"}
    return {
        **entry,
        "service": f"{promoted.team}/{promoted.target.document}",
        "from": promoted.source.document,
        "cluster": promoted.source.cluster,
        "window": promoted.window,
    }


def _pipeline_entry(plan: Mapping[str, Any], held: Mapping[str, Any]) -> dict[str, Any]:
    data = held.get("data") or {}
    entry: dict[str, Any] = {
        "pipeline": plan["metadata"]["name"].removeprefix("pipeline."),
        "phase": "",
        "cluster": "",
        "run": 0,
        "since": 0.0,
        "reason": "",
        "message": "",
        "metrics": {},
        "waiting": "",
        "problem": str(data.get(PROBLEM_KEY, "")),
    }
    try:
        pipeline = read_plan((plan.get("data") or {}).get(PLAN_KEY, ""))
        state = read_state(data.get(STATE_KEY))
    except DocumentError as error:
        return {**entry, "problem": str(error)}
    return {
        **entry,
        "pipeline": str(pipeline),
        "phase": state.phase,
        "cluster": pipeline.config.cluster if state.phase == "rolling" else "",
        "run": state.run,
        "since": state.since,
        "reason": state.reason,
        "message": state.message,
        "metrics": dict(state.metrics),
        "waiting": state.queued,
    }
