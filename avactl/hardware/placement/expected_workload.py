"""The expected workload: a histogram of requests, declared or learnt from arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from avactl.hardware.placement.request import Request

MIN_SHARE = 1e-6
MAX_REQUESTS = 4096
"""Maximum number of distinct requests; beyond it the rarer half is dropped."""


class Workload:
    """Frequencies of expected requests. Pure state: time is counted in arrivals."""

    def __init__(self, half_life: float = 20_000.0) -> None:
        """`half_life`: arrivals after which the weight of one halves; infinite: all weigh the same."""
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        self._counts: dict[Request, float] = {}
        self.arrivals = 0

    @classmethod
    def declared(cls, requests: Iterable[Request]) -> Workload:
        """Create the workload of these requests, weighted by their multiplicity."""
        workload = cls(float("inf"))
        for request in requests:
            workload.add(request)
        return workload

    def add(self, request: Request) -> None:
        """Record an arrival."""
        self.arrivals += 1
        self._weight *= self._growth
        self._counts[request] = self._counts.get(request, 0.0) + self._weight
        if self._weight > 1e9:
            scale = 1.0 / self._weight
            self._counts = {each: new for each, old in self._counts.items() if (new := old * scale) > MIN_SHARE}
            self._weight = 1.0
        if len(self._counts) > MAX_REQUESTS:
            self._counts = dict(sorted(self._counts.items(), key=lambda each: -each[1])[: MAX_REQUESTS // 2])

    def shares(self, most: int = 256) -> dict[Request, float]:
        """Return the most frequent requests and their shares of all arrivals."""
        total = sum(self._counts.values())
        frequent = sorted(self._counts.items(), key=lambda each: -each[1])[:most]
        return {request: count / total for request, count in frequent}


def distance(one: Mapping[Request, float], other: Mapping[Request, float]) -> float:
    """Return the total variation distance of two distributions, 0 to 1."""
    return sum(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in {*one, *other}) / 2
