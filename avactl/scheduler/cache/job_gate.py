"""Gate of pods that start after Jobs of their namespace: the annotation `AFTER`, and the Jobs themselves.

A pod waits as long as one of the Jobs is not complete. It holds nothing meanwhile, and is told which one it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from avactl.base.object_identity import namespaced_name
from avactl.contracts.pod_annotations import AFTER
from avactl.scheduler.cache.dataset_gate import GateError
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import RuleError
from avactl.scheduler.objects.pod_info import PodInfo

MOST = 64
"""Jobs that a pod may wait for."""
_LONGEST = 63
"""Characters of the name of a Job."""
_COMPLETE, _FAILED, _SUSPENDED, _RUNS = "complete", "which has failed", "which is suspended", "which has not ended"


@lru_cache(1024)
def read_after(text: str) -> tuple[str, ...]:
    """Parse the annotation: names of Jobs. Raises ValueError."""
    data = orjson.loads(text)
    if not isinstance(data, list) or not 0 < len(data) <= MOST:
        raise ValueError(f"it is not a list of 1 to {MOST} Jobs")
    for name in data:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST:
            raise ValueError(f"`{quote(name)}` is not the name of a Job")
    return tuple(data)


class JobGate:
    """The Jobs of the cluster, and the pods that they hold back."""

    def __init__(self, arrived: Callable[[str], None]) -> None:
        """`arrived` is called with the awaited object when a Job changes."""
        self._arrived = arrived
        self._states: dict[str, str] = {}

    def check(self, pod: PodInfo) -> None:
        """Return if the pod may start. Raises GateError, and RuleError for an invalid annotation."""
        if not pod.after:
            return
        try:
            wanted = read_after(pod.after)
        except ValueError as error:
            raise RuleError(f"annotation {AFTER.name}: {quote(error)}") from None
        for name in wanted:
            # Only of its own namespace: a tenant writes any annotation.
            key = f"{pod.namespace}/{name}"
            state = self._states.get(key, "which does not exist")
            if state != _COMPLETE:
                raise GateError(f"waits for Job {quote(name)}, {state}", f"job {key}")

    # -- a watch store ---------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update a Job."""
        key, state = namespaced_name(item), _state(item)
        if self._states.get(key) != state:
            self._states[key] = state
            self._arrived(f"job {key}")

    def remove(self, key: str) -> None:
        """Forget a Job."""
        if self._states.pop(key, None) is not None:
            self._arrived(f"job {key}")

    def keys(self) -> list[str]:
        """Return the keys of the known Jobs."""
        return list(self._states)


def _state(item: Mapping[str, Any]) -> str:
    conditions = (item.get("status") or {}).get("conditions") or ()
    true = {each.get("type") for each in conditions if each.get("status") == "True"}
    if "Complete" in true:
        return _COMPLETE
    if "Failed" in true:
        return _FAILED
    return _SUSPENDED if (item.get("spec") or {}).get("suspend") else _RUNS
