"""The pipelines of a cluster, as `avactl delivery status` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avactl.contracts.delivery import PLAN_KEY, PROBLEM_KEY, STATE_KEY
from avactl.contracts.document import DocumentError
from avactl.contracts.names import CONFIG_LABEL, PIPELINE_CONFIG, PIPELINE_STATE
from avactl.daemons.delivery.config_maps import state_name
from avactl.daemons.delivery.plans import read_plan, read_state
from avactl.kube.client import Client, list_all


async def read(client: Client, namespace: str) -> list[dict[str, Any]]:
    """Return the plans and states of the system namespace. Raises ApiError and UnreachableError."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    selector = f"{CONFIG_LABEL} in ({PIPELINE_CONFIG},{PIPELINE_STATE})"
    return await list_all(lambda query: client.page(path, query), {"labelSelector": selector, "limit": "500"})


def pipeline_entries(maps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry a pipeline, by team and name; those that run come first."""
    known = {each["metadata"]["name"]: each for each in maps}
    found = []
    for name, each in known.items():
        if (each["metadata"].get("labels") or {}).get(CONFIG_LABEL) == PIPELINE_CONFIG:
            found.append(_pipeline_entry(each, known.get(state_name(name)) or {}))
    return sorted(found, key=lambda entry: (entry["phase"] in ("idle", ""), entry["pipeline"]))


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
