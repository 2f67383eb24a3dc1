"""PodDisruptionBudgets: pods that are preempted only if there are no other victims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from avactl.scheduler.objects.limits import selector_excess
from avactl.scheduler.objects.node_rules import Matcher, RuleError, selector
from avactl.scheduler.objects.pod_info import PodInfo


class _Budget(NamedTuple):
    namespace: str
    match: Matcher
    allowed: int
    counted: Mapping[str, Any]
    """Pods evicted within the budget that still exist."""


class DisruptionBudgets:
    """PodDisruptionBudgets by `namespace/name`."""

    def __init__(self) -> None:
        self._known: dict[str, _Budget] = {}
        self._keys: dict[str, dict[str, None]] = {}
        """Keys by namespace."""
        self.version = 0
        """Number of changes."""

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update a budget. A budget with an invalid selector protects no pods."""
        metadata, status = item["metadata"], item.get("status") or {}
        key = f"{metadata['namespace']}/{metadata['name']}"
        given = item["spec"].get("selector")
        try:
            match = selector(given)
        except RuleError:
            self.drop(key)
            return
        if selector_excess(given):
            self.drop(key)
            return
        allowed, counted = status.get("disruptionsAllowed") or 0, status.get("disruptedPods") or {}
        self._keys.setdefault(metadata["namespace"], {})[key] = None
        self._known[key] = _Budget(metadata["namespace"], match, allowed, counted)
        self.version += 1

    def drop(self, key: str) -> None:
        """Remove a budget."""
        budget = self._known.pop(key, None)
        if budget is not None:
            self.version += 1
            keys = self._keys[budget.namespace]
            del keys[key]
            if not keys:
                del self._keys[budget.namespace]

    def keys(self) -> Iterable[str]:
        """Return the keys of the known budgets."""
        return self._known

    def protected_pods(self, pods: Sequence[PodInfo]) -> set[PodInfo]:
        """Return the pods whose eviction, in this order, violates a budget.

        As in kube-scheduler (filterPodsWithPDBViolation), each pod counts against every matching budget.
        """
        left = {key: budget.allowed for key, budget in self._known.items()}
        found = set()
        for pod in pods:
            for key in self._keys.get(pod.namespace, ()):
                budget = self._known[key]
                if pod.name in budget.counted or not budget.match(pod.labels):
                    continue
                left[key] -= 1
                if left[key] < 0:
                    found.add(pod)
        return found
