"""Trees of Kueue's cohorts: what a queue is guaranteed, and what it may borrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

from avactl.base.quantity import parse_quantity
from avactl.contracts.names import GPU_RESOURCES
from avactl.workbench.importer.model import GivenValue

_MAX_DEPTH = 64
_MAX_WEIGHT = 1000
ModelOf = Callable[[str, str], str | None]
"""Name of a flavor and of its extended resource → its GPU model."""


class CohortTree:
    """ClusterQueues and Cohorts of an import."""

    def __init__(self, queues: Sequence[GivenValue], cohorts: Sequence[GivenValue], model_of: ModelOf) -> None:
        self._queues = list(queues)
        self._cohorts = {each.name: each for each in cohorts}
        self._model_of = model_of

    def limits_between_cohorts(self, queue: GivenValue) -> str:
        """Return the first cohort above a queue's root that limits what it lends or borrows; empty if there is none."""
        root = self._root(parent_of(queue))
        for cohort in self._cohorts.values():
            if root and self._root(cohort.name) == root:
                for _, resource in _gpu_resources(cohort):
                    if resource.get("borrowingLimit") is not None or resource.get("lendingLimit") is not None:
                        return cohort.name
        return ""

    def guaranteed(self, queue: GivenValue, model: str) -> int:
        """Return the GPUs of a model that a queue is guaranteed: its own, and those of cohorts that are its alone."""
        return self._nominal(queue, model) + sum(self._nominal(each, model) for each in self._private(queue))

    def borrowable(self, queue: GivenValue, model: str) -> int:
        """Return the GPUs of a model that the others of the tree lend at most."""
        root = self._root(parent_of(queue))
        if not root:
            return 0
        private = self._private(queue)
        others = [each for each in self._queues if each is not queue and self._root(parent_of(each)) == root]
        others += [each for each in self._cohorts.values() if self._root(each.name) == root and each not in private]
        return sum(self._lendable(each, model) for each in others)

    def used_cohorts(self, queue: GivenValue) -> list[GivenValue]:
        """Return the cohorts above a queue."""
        return [self._cohorts[name] for name in self._above(parent_of(queue)) if name in self._cohorts]

    def _above(self, name: str) -> Iterator[str]:
        seen: set[str] = set()
        while name and name not in seen and len(seen) < _MAX_DEPTH:
            seen.add(name)
            yield name
            cohort = self._cohorts.get(name)
            name = str((cohort.get("spec", "parentName") or cohort.get("spec", "parent") or "") if cohort else "")

    def _root(self, name: str) -> str:
        return next(reversed([*self._above(name)]), "")

    def _private(self, queue: GivenValue) -> list[GivenValue]:
        """Return the cohorts that have no other queue below them."""
        found = []
        for cohort in self.used_cohorts(queue):
            below = [each for each in self._queues if cohort.name in self._above(parent_of(each))]
            if below == [queue]:
                found.append(cohort)
        return found

    def _nominal(self, given: GivenValue, model: str) -> int:
        return sum(_number(each.get("nominalQuota")) for each in self._resources(given, model))

    def _lendable(self, given: GivenValue, model: str) -> int:
        total = 0
        for each in self._resources(given, model):
            limit = each.get("lendingLimit")
            nominal = _number(each.get("nominalQuota"))
            total += nominal if limit is None else min(nominal, _number(limit))
        return total

    def _resources(self, given: GivenValue, model: str) -> Iterator[dict[str, Any]]:
        for flavor, resource in _gpu_resources(given):
            if self._model_of(flavor, str(resource.get("name"))) == model:
                yield resource


def parent_of(queue: GivenValue) -> str:
    """Return the cohort of a ClusterQueue; empty without."""
    return str(queue.get("spec", "cohort") or queue.get("spec", "cohortName") or "")


def scaled_weights(queues: Sequence[GivenValue]) -> dict[str, int]:
    """Return whole weights of queues in the ratio of their own, by name; a weight of 0 has none.

    Empty if the ratio needs weights beyond 1,000.
    """
    weights = {}
    for queue in queues:
        value = queue.get("spec", "fairSharing", "weight")
        weights[queue.name] = Fraction(1) if value is None else Fraction(parse_quantity(value))
    positive = {name: weight for name, weight in weights.items() if weight > 0}
    scale = lcm(*(each.denominator for each in positive.values())) if positive else 1
    found = {name: int(weight * scale) for name, weight in positive.items()}
    return found if all(weight <= _MAX_WEIGHT for weight in found.values()) else {}


def _gpu_resources(given: GivenValue) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in given.get("spec", "resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                if resource.get("name") in GPU_RESOURCES:
                    yield str(flavor.get("name")), resource


def _number(value: Any) -> int:
    return int(parse_quantity(value or 0))
