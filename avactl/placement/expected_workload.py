"""The workload that is expected: a histogram of requests, declared or learnt from those that arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from avactl.placement.request import Request

_SMALLEST = 1e-6
_MOST = 4096
"""Requests that are told apart; beyond it the rarer half is forgotten."""


class Workload:
    """How often which request is expected. Pure state: time is counted in arrivals."""

    def __init__(self, half_life: float = 20_000.0) -> None:
        """`half_life`: after so many arrivals, one weighs half as much as a new one; infinite: all weigh the same."""
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        self._counts: dict[Request, float] = {}
        self.arrivals = 0

    @classmethod
    def declared(cls, requests: Iterable[Request]) -> Workload:
        """The workload of these requests, each as often as it is there."""
        workload = cls(float("inf"))
        for request in requests:
            workload.add(request)
        return workload

    def add(self, request: Request) -> None:
        """One more arrived."""
        self.arrivals += 1
        self._weight *= self._growth
        self._counts[request] = self._counts.get(request, 0.0) + self._weight
        if self._weight > 1e9:
            scale = 1.0 / self._weight
            self._counts = {each: new for each, old in self._counts.items() if (new := old * scale) > _SMALLEST}
            self._weight = 1.0
        if len(self._counts) > _MOST:
            self._counts = dict(sorted(self._counts.items(), key=lambda each: -each[1])[: _MOST // 2])

    def shares(self, most: int = 256) -> dict[Request, float]:
        """The most frequent requests and their shares of all arrivals."""
        total = sum(self._counts.values())
        frequent = sorted(self._counts.items(), key=lambda each: -each[1])[:most]
        return {request: count / total for request, count in frequent}


def distance(one: Mapping[Request, float], other: Mapping[Request, float]) -> float:
    """Total variation distance of two distributions: 0 for equal ones, 1 for those with nothing in common."""
    return sum(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in {*one, *other}) / 2
