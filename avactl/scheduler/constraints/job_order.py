"""Pods that start after Jobs of their namespace: the annotation `AFTER`, and the Jobs themselves.

A pod waits as long as one of the Jobs is not complete. It holds no resources meanwhile; its message names the Job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import orjson

from avactl.base.object_identity import namespaced_name
from avactl.contracts.pod_annotations import AFTER
from avactl.contracts.scheduling import PlacementPolicy
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint import Constraint, Watch
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import ReportedWaitError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason

MAX_JOBS = 64
"""Maximum number of Jobs that a pod may wait for."""
MAX_JOB_NAME_CHARS = 63
_COMPLETE, _FAILED, _SUSPENDED, _RUNS = "complete", "which has failed", "which is suspended", "which has not ended"


@lru_cache(1024)
def read_after(text: str) -> tuple[str, ...]:
    """Parse the annotation: names of Jobs. Raises ValueError."""
    data = orjson.loads(text)
    if not isinstance(data, list) or not 0 < len(data) <= MAX_JOBS:
        raise ValueError(f"it is not a list of 1 to {MAX_JOBS} Jobs")
    for name in data:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_JOB_NAME_CHARS:
            raise ValueError(f"`{quote(name)}` is not the name of a Job")
    return tuple(data)


class JobOrder(Constraint):
    """Keeps pods waiting until the Jobs that they name are complete; a watch store of Jobs."""

    title = "Jobs that it starts after"

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        self._states: dict[str, str] = {}

    @classmethod
    def enabled(cls, policy: PlacementPolicy) -> bool:
        """Return True if the scheduler's account may read Jobs."""
        return policy.jobs

    def watches(self) -> Iterable[Watch]:
        """Return the Jobs of all namespaces."""
        return (Watch("/apis/batch/v1/jobs", self),)

    def check_ready(self, pod: PodInfo) -> None:
        """Return if the pod may start. Raises ReportedWaitError, and RuleError for an invalid annotation."""
        annotation = pod.annotations.get(AFTER.name)
        if not annotation:
            return
        try:
            wanted = read_after(annotation)
        except ValueError as error:
            raise UnsupportedError(f"annotation {AFTER.name}: {quote(error)}") from None
        for name in wanted:
            # Only of its own namespace: a tenant writes any annotation.
            key = f"{pod.namespace}/{name}"
            state = self._states.get(key, "which does not exist")
            if state != _COMPLETE:
                message = f"waits for Job {quote(name)}, {state}"
                raise ReportedWaitError(message, f"job {key}", WaitReason.JOB, under_way=state == _RUNS)

    # -- a watch store ---------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update a Job."""
        key, state = namespaced_name(item), _state(item)
        if self._states.get(key) != state:
            self._states[key] = state
            self.event_occurred(f"job {key}")

    def remove(self, key: str) -> None:
        """Forget a Job."""
        if self._states.pop(key, None) is not None:
            self.event_occurred(f"job {key}")

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
