"""The best node and GPUs for one pod: scores of every class of requests, renewed where the fleet changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from avactl.hardware.topology import LEVELS
from avactl.placement.allocation import ABSENT, MILLI_PER_GPU, Booking, State
from avactl.placement.expected_workload import Workload, distance
from avactl.placement.fragmentation import Floats, Ints, Measure
from avactl.placement.objective import Objective as Objective
from avactl.placement.request import Request

_CHUNK = 512
"""Nodes scored at once: their intermediate arrays stay in the processor's cache."""
_FEW = 64
"""Touched nodes up to which each is looked up by itself."""
_LOOKS = 512
"""States of nodes of which a class keeps the scores."""
_CLASSES = 256
"""Classes of requests whose scores are kept."""
_RENEW = 1000
"""Arrivals after which the expected workload is looked at again, at the most."""
_DRIFT = 0.02
"""Total variation distance from which on it is renewed."""
_LEVEL_COST = MILLI_PER_GPU
"""What one link level below the preferred one costs, milli of GPU."""
_FIRST = 1e6
"""What outweighs all that fragmentation and links can cost, milli of GPU: a full load, for `spread`."""
_SPEED = 100.0
"""What 1 MB/s of the slowest pair is worth, milli of GPU, for `links`: 1 GB/s outweighs fragmentation."""


class Choice(NamedTuple):
    """Where a pod goes."""

    node: int
    gpus: int
    """Mask."""
    score: float
    """Milli of GPU that the expected workload loses by it."""

    def booking(self, request: Request) -> Booking:
        """What the pod then holds."""
        return Booking(self.node, request.amounts, self.gpus, request.milli)


class _Class:
    """Scores of one class of requests; infinite where it does not fit."""

    __slots__ = ("gpus", "position", "scores", "seen")

    def __init__(self, slots: int) -> None:
        self.scores: Floats = np.full(slots, np.inf)
        self.gpus: npt.NDArray[np.int32] = np.zeros(slots, np.int32)
        self.position: int | None = None
        self.seen: dict[tuple[Hashable, ...], tuple[float, int]] = {}
        """Score and GPUs by what a node looks like. Machines of a pool go through the same few states."""


class Scorer:
    """Chooses nodes of a state. It follows the state's journal, so bookings may be made by anybody."""

    def __init__(self, state: State, workload: Workload | None = None, objective: Objective = "pack") -> None:
        """`workload` is what is expected; None: it is learnt (`learn`)."""
        self.state = state
        self.objective: Objective = objective
        self.workload = Workload() if workload is None else workload
        self._fixed = workload is not None
        self._look = 1
        self._expect(self.workload.shares())

    def _expect(self, shares: dict[Request, float]) -> None:
        self.measure = Measure(shares, len(self.state.resources))
        self._forget()

    def _forget(self) -> None:
        self._classes: OrderedDict[Request, _Class] = OrderedDict()
        self._cost: Floats = np.zeros(len(self.state.free))
        self._cost_position: int | None = None

    def learn(self, request: Request) -> None:
        """A request arrived. A declared workload stays as it is."""
        if self._fixed:
            return
        self.workload.add(_anywhere(request))
        arrivals = self.workload.arrivals
        if arrivals >= self._look:
            self._look = arrivals + min(arrivals, _RENEW)
            shares = self.workload.shares()
            if distance(shares, self.measure.shares) > _DRIFT:
                self._expect(shares)

    def choose(self, request: Request, among: npt.NDArray[np.bool_] | None = None) -> Choice | None:
        """The node and GPUs that cost the expected workload least; None where it fits nowhere.

        `among` narrows the nodes for this pod alone, by slot. Ties go to the lowest slot.
        """
        scores = self.scores(request)
        if among is not None:
            scores = np.where(among, scores, np.inf)
        if not scores.size:
            return None
        node = int(scores.argmin())
        score = float(scores[node])
        if score == np.inf:
            return None
        return Choice(node, int(self._classes[request].gpus[node]), score)

    def scores(self, request: Request) -> Floats:
        """Cost of every slot, milli of GPU; infinite where the request does not fit. To be read only."""
        known = self._fresh(request)
        if not request.gpus or not self.measure.constrained:
            return known.scores
        prices = self.measure.pressure(self.state) * request.total_milli
        if not prices.size:  # no machine has come yet, so no model either
            return known.scores
        result: Floats = known.scores + prices[self.state.model]
        return result

    def gpus(self, request: Request, node: int) -> int:
        """The GPUs that `choose` takes on a node."""
        return int(self._fresh(request).gpus[node])

    # -- keeping up -------------------------------------------------------------------------------------------------

    def _fresh(self, request: Request) -> _Class:
        state = self.state
        if len(self._cost) != len(state.free):
            self._forget()
        known = self._classes.get(request)
        if known is None:
            known = self._classes[request] = _Class(len(state.free))
            if len(self._classes) > _CLASSES:
                self._classes.popitem(last=False)
        else:
            self._classes.move_to_end(request)
        if known.position != state.position:
            stale = self._stale(known.position)
            if len(stale) <= _FEW:
                stale = self._recall(known, request, stale)
            if len(stale):
                self._renew_costs()
            for slots in _chunks(stale):
                known.scores[slots], known.gpus[slots] = self._evaluate(request, slots)
                if len(stale) <= _FEW:
                    self._remember(known, request, slots)
            known.position = state.position
        return known

    def _look_of(self, request: Request, slot: int) -> tuple[Hashable, ...]:
        """All that a node's score depends on."""
        state = self.state
        may = request.nodes is None or bool(state.allowed[request.nodes][slot])
        amounts, gpus = state.free[slot].tobytes(), state.gpu_free[slot].tobytes()
        size = int(state.capacity[slot, 0]) if self.objective == "spread" else 0
        return amounts, gpus, int(state.model[slot]), int(state.kind[slot]), may, state.width, state.most_cpu, size

    def _recall(self, known: _Class, request: Request, slots: Ints) -> Ints:
        """Score nodes that look like one scored before; returns the others."""
        missing = []
        for slot in slots.tolist():
            found = known.seen.get(self._look_of(request, slot))
            if found is None:
                missing.append(slot)
            else:
                known.scores[slot], known.gpus[slot] = found
        return np.array(missing, np.int64)

    def _remember(self, known: _Class, request: Request, slots: Ints) -> None:
        if len(known.seen) > _LOOKS:
            known.seen.clear()
        for slot in slots.tolist():
            known.seen[self._look_of(request, slot)] = (float(known.scores[slot]), int(known.gpus[slot]))

    def _stale(self, position: int | None) -> Ints:
        touched = None if position is None else self.state.touched(position)
        return np.arange(self.state.size) if touched is None else np.array(touched, np.int64)

    def _renew_costs(self) -> None:
        if self._cost_position != self.state.position:
            if not self.measure.empty:
                for slots in _chunks(self._stale(self._cost_position)):
                    self._cost[slots] = self.measure.cost(self.state, slots)
            self._cost_position = self.state.position

    # -- scoring ----------------------------------------------------------------------------------------------------

    def _evaluate(self, request: Request, slots: Ints) -> tuple[Floats, npt.NDArray[np.int32]]:
        scores, chosen = np.full(len(slots), np.inf), np.zeros(len(slots), np.int32)
        state = self.state
        amounts = np.array(request.amounts, np.int64)
        left = state.free[slots] - amounts
        # What is not asked for may be overcommitted.
        fits = ((left >= 0) | (amounts == 0)).all(1) & (state.capacity[slots, 0] != ABSENT)
        if request.nodes is not None:
            fits &= state.allowed[request.nodes][slots]
        if request.gpus:
            fits &= state.gpu_total[slots] >= request.total_milli
            if request.models:
                wanted = np.array([model in request.models for model in state.models])
                fits &= wanted[state.model[slots]]
        inside = np.flatnonzero(fits)
        if inside.size and request.gpus:
            gpus = self._candidates(request, slots[inside])
            inside, gpus = inside[gpus != 0], gpus[gpus != 0]
            chosen[inside] = gpus
        if inside.size:
            cost, chosen[inside] = self._after(request, slots[inside], left[inside], chosen[inside])
            scores[inside] = cost - self._cost[slots[inside]] + self._tie(request, slots[inside], left[inside])
            scores[inside] += self._link_cost(request, slots[inside], chosen[inside])
            if self.objective == "links":
                scores[inside] += self._slowness(request, slots[inside], chosen[inside])
            elif self.objective == "spread":
                scores[inside] += _FIRST * self._load(request, slots[inside], left[inside])
        return scores, chosen

    def _candidates(self, request: Request, slots: Ints) -> npt.NDArray[np.int32]:
        """Masks of GPUs to take: for shares all GPUs with enough free, else the best whole ones."""
        state = self.state
        if request.milli < MILLI_PER_GPU:
            large = state.gpu_free[slots, : state.width] >= request.milli
            shares: npt.NDArray[np.int32] = (large << np.arange(state.width)).sum(1).astype(np.int32)
            return shares
        result = np.zeros(len(slots), np.int32)
        kinds, whole = state.kind[slots], state.whole[slots]
        for kind in np.unique(kinds).tolist():
            here = kinds == kind
            result[here] = state.kinds[kind].choose(
                whole[here], request.gpus, request.link, request.required, request.rdma
            )
        return result

    def _after(
        self, request: Request, slots: Ints, left: Ints, masks: npt.NDArray[np.int32]
    ) -> tuple[Floats, npt.NDArray[np.int32]]:
        """Cost of the nodes with the pod on them, and the GPUs that it takes there."""
        state, measure = self.state, self.measure
        gpus = state.gpu_free[slots, : state.width].astype(np.int64)
        total = state.gpu_total[slots].astype(np.int64) - request.total_milli
        model = state.model[slots]
        if request.gpus and request.milli < MILLI_PER_GPU:
            if measure.empty:
                by_gpu = np.where(gpus >= request.milli, 0.0, np.inf)
            else:
                by_gpu = measure.lost_without(measure.chances(left, model, state.models), gpus, request.milli)
            # Among equals the GPU with least left, and of whole ones that which leaves the best links.
            single = self._singles(slots)
            by_gpu += 1e-6 * gpus
            by_gpu -= 1e-7 * (single[:, None] >> np.arange(state.width) & 1)
            gpu = by_gpu.argmin(1)
            lost: Floats = by_gpu.min(1)
            masks = (1 << gpu).astype(np.int32)
        elif measure.empty:
            lost = np.zeros(len(slots))
        else:
            taken = masks[:, None] >> np.arange(state.width) & 1
            lost = measure.lost(measure.chances(left, model, state.models), np.where(taken == 1, 0, gpus))
        lost += measure.stranded(left, total)
        return lost, masks

    def _singles(self, slots: Ints) -> npt.NDArray[np.int32]:
        result = np.zeros(len(slots), np.int32)
        kinds, whole = self.state.kind[slots], self.state.whole[slots]
        for kind in np.unique(kinds).tolist():
            here = kinds == kind
            result[here] = self.state.kinds[kind].choose(whole[here], 1)
        return result

    def _tie(self, request: Request, slots: Ints, left: Ints) -> Floats:
        """Best fit, worth at most two milli: the least GPU and CPU left over, as parts of the largest node's."""
        state = self.state
        gpu_left = state.gpu_total[slots] - request.total_milli
        result: Floats = gpu_left / (MILLI_PER_GPU * max(1, state.width)) + left[:, 0] / state.most_cpu
        return result

    def _slowness(self, request: Request, slots: Ints, masks: npt.NDArray[np.int32]) -> Floats:
        cost = np.zeros(len(slots))
        if request.gpus > 1:
            kinds = self.state.kind[slots]
            for kind in np.unique(kinds).tolist():
                here = kinds == kind
                cost[here] = -_SPEED * self.state.kinds[kind].slowest[masks[here]]
        return cost

    def _load(self, request: Request, slots: Ints, left: Ints) -> Floats:
        """How full nodes are with the pod on them, 0 to 1."""
        state = self.state
        if request.gpus:
            result: Floats = 1.0 - (state.gpu_total[slots] - request.total_milli) / (
                MILLI_PER_GPU * state.gpu_count[slots]
            )
        else:
            result = 1.0 - left[:, 0] / np.maximum(state.capacity[slots, 0], 1)
        return result

    def _link_cost(self, request: Request, slots: Ints, masks: npt.NDArray[np.int32]) -> Floats:
        cost = np.zeros(len(slots))
        if request.gpus < 2:
            return cost
        wanted = len(LEVELS) - 1 if request.link == "any" else LEVELS.index(request.link)
        kinds = self.state.kind[slots]
        for kind in np.unique(kinds).tolist():
            here = kinds == kind
            level = self.state.kinds[kind].levels[masks[here]].astype(np.float64)
            # Also where any link will do, a better one breaks ties.
            cost[here] = _LEVEL_COST * np.maximum(level - wanted, 0.0) + 0.1 * level
        return cost


def place(scorer: Scorer, key: Hashable, request: Request) -> Choice | None:
    """Choose for a request, and book it under the key."""
    choice = scorer.choose(request)
    if choice is not None:
        scorer.state.book(key, choice.booking(request))
    return choice


@lru_cache(maxsize=1024)
def _anywhere(request: Request) -> Request:
    """Node sets come and go with their pods, and have other keys each time: they say nothing of what is to come."""
    return replace(request, nodes=None)


def _chunks(slots: Ints) -> list[Ints]:
    return [slots[start : start + _CHUNK] for start in range(0, len(slots), _CHUNK)]
