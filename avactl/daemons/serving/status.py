"""The rollouts of services, as `avactl serving status` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import ROLLOUT, ROLLOUT_STATE
from avactl.contracts.serving import RolloutConfig, RolloutState


def service_entries(deployments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry a service, by namespace and name; those with a rollout under way come first."""
    found = [_service_entry(each) for each in deployments]
    return sorted(found, key=lambda each: (each["phase"] == "steady", each["service"]))


def _service_entry(deployment: Mapping[str, Any]) -> dict[str, Any]:
    metadata = deployment["metadata"]
    notes = metadata.get("annotations") or {}
    state, steps, percent = RolloutState.read(notes.get(ROLLOUT_STATE)), 0, 0
    reason, message = state.reason, state.message
    try:
        config = load(RolloutConfig, notes[ROLLOUT])
        steps = len(config.steps)
        if config.traffic != "replicas":
            percent = state.weight
        elif state.phase == "stepping" and state.reached:
            percent = config.steps[min(state.step, steps - 1)].percent
    except DocumentError as error:
        reason, message = "InvalidRollout", f"invalid rollout: {error}"
    return {
        "service": f"{metadata['namespace']}/{metadata['name']}",
        "phase": state.phase,
        "stable": state.stable,
        "new": state.canary,
        "step": state.step + 1 if state.phase == "stepping" else 0,
        "steps": steps,
        "percent": percent,
        "since": state.since if state.phase != "steady" else state.ended,
        "reason": reason,
        "message": message,
        "outcome": state.outcome,
        "version": state.version,
    }
