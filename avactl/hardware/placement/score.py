"""Choose the best node and GPUs for a pod: scores are cached per request and updated for changed nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from avactl.hardware.placement.allocation import ABSENT, MILLI_PER_GPU, AllocationState, Booking
from avactl.hardware.placement.expected_workload import Workload, distance
from avactl.hardware.placement.fragmentation import Floats, Ints, Measure
from avactl.hardware.placement.links import Links
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.objective import Objective as Objective
from avactl.hardware.placement.request import Request

CHUNK_NODES = 512
"""Number of nodes scored at once, so that intermediate arrays stay in the processor's cache."""
MAX_SINGLE_LOOKUPS = 64
"""Number of touched nodes up to which they are looked up one by one."""
MAX_CACHED_STATES = 512
"""Maximum number of node states with cached scores, for each class."""
MAX_CLASSES = 256
"""Maximum number of classes of requests with cached scores."""
MAX_ARRIVALS_UNCHECKED = 1000
"""Maximum number of arrivals between two checks of the expected workload."""
MAX_DRIFT = 0.02
"""Total variation distance above which the expected workload is replaced."""
LEVEL_COST_MILLI = MILLI_PER_GPU
"""Cost of each link level below the preferred one, GPU milli."""
SPREAD_WEIGHT_MILLI = 1e6
"""Weight of a full node for `spread`, GPU milli: outweighs all fragmentation and link costs."""
PREFERENCE_MILLI = MILLI_PER_GPU / 2
"""Value of the most preferred node over the least preferred one, GPU milli. Node and pod preferences count alike."""
SPEED_VALUE_MILLI = 100.0
"""Value of 1 MB/s of the slowest pair for `links`, GPU milli: 1 GB/s outweighs fragmentation."""


class ScoredChoice(NamedTuple):
    """Placement of a pod."""

    node: int
    gpus: int
    """GPU mask."""
    score: float
    """Cost to the expected workload, GPU milli."""

    def booking(self, request: Request) -> Booking:
        """Return the booking for the pod."""
        return Booking(self.node, request.amounts, self.gpus, request.milli)


class _ScoreCache:
    """Scores of one class of requests; infinite if it does not fit."""

    __slots__ = ("gpus", "position", "scores", "seen")

    def __init__(self, slots: int) -> None:
        self.scores: Floats = np.full(slots, np.inf)
        self.gpus: npt.NDArray[np.int32] = np.zeros(slots, np.int32)
        self.position: int | None = None
        self.seen: dict[tuple[Hashable, ...], tuple[float, int]] = {}
        """Score and GPUs by node state. Machines of a pool pass through the same few states."""


class Scorer:
    """Chooses nodes of a state. It follows the state's journal, so any code may book."""

    def __init__(self, state: AllocationState, workload: Workload | None = None, objective: Objective = "pack") -> None:
        """`workload`: the expected workload; None: it is learnt from arrivals (`learn`)."""
        self.state = state
        self.objective: Objective = objective
        self.workload = Workload() if workload is None else workload
        self._fixed = workload is not None
        self._next_check = 1
        self._set_expected_workload(self.workload.shares())

    def _set_expected_workload(self, shares: dict[Request, float]) -> None:
        self.measure = Measure(shares, len(self.state.resources))
        self._clear_scores()

    def _clear_scores(self) -> None:
        self._classes: OrderedDict[Request, _ScoreCache] = OrderedDict()
        self._cost: Floats = np.zeros(len(self.state.free))
        self._cost_position: int | None = None

    def learn(self, request: Request) -> None:
        """Record an arriving request. A declared workload stays unchanged."""
        if self._fixed:
            return
        self.workload.add(_without_node_set(request))
        arrivals = self.workload.arrivals
        if arrivals >= self._next_check:
            self._next_check = arrivals + min(arrivals, MAX_ARRIVALS_UNCHECKED)
            shares = self.workload.shares()
            if distance(shares, self.measure.shares) > MAX_DRIFT:
                self._set_expected_workload(shares)

    def choose(
        self, request: Request, feasible: Mask | None = None, preferred: Floats | None = None
    ) -> ScoredChoice | None:
        """Return the node and GPUs with the least cost to the expected workload; None if the request fits nowhere.

        `feasible` restricts the nodes for this pod, by slot; `preferred` weighs them. Ties go to the lowest slot.
        """
        scores = self.scores(request)
        if feasible is not None:
            scores = np.where(feasible, scores, np.inf)
        if preferred is not None:
            scores = _subtract_preferences(scores, preferred)
        if not scores.size:
            return None
        node = int(scores.argmin())
        score = float(scores[node])
        if score == np.inf:
            return None
        return ScoredChoice(node, int(self._classes[request].gpus[node]), score)

    def scores(self, request: Request) -> Floats:
        """Return the cost of every slot, GPU milli; infinite if the request does not fit. Read-only."""
        result = self._current_scores(request).scores
        if request.gpus and self.measure.constrained:
            prices = self.measure.pressure(self.state) * request.total_milli
            if prices.size:  # else no machine yet, so no model either
                result = result + prices[self.state.model]
        preferred = self.state.preferred.get(request.nodes)
        return result if preferred is None else _subtract_preferences(result, preferred)

    def gpus(self, request: Request, node: int) -> int:
        """Return the GPUs that `choose` takes on a node."""
        return int(self._current_scores(request).gpus[node])

    # -- cache update ------------------------------------------------------------------------------------------------

    def _current_scores(self, request: Request) -> _ScoreCache:
        state = self.state
        if len(self._cost) != len(state.free):
            self._clear_scores()
        known = self._classes.get(request)
        if known is None:
            known = self._classes[request] = _ScoreCache(len(state.free))
            if len(self._classes) > MAX_CLASSES:
                self._classes.popitem(last=False)
        else:
            self._classes.move_to_end(request)
        if known.position != state.position:
            stale = self._changed_slots(known.position)
            if len(stale) <= MAX_SINGLE_LOOKUPS:
                stale = self._recall_scores(known, request, stale)
            if len(stale):
                self._renew_costs()
            for slots in _split_into_chunks(stale):
                known.scores[slots], known.gpus[slots] = self._evaluate(request, slots)
                if len(stale) <= MAX_SINGLE_LOOKUPS:
                    self._remember_scores(known, request, slots)
            known.position = state.position
        return known

    def _state_key(self, request: Request, slot: int) -> tuple[Hashable, ...]:
        """Return all inputs of a node's score."""
        state = self.state
        allowed = request.nodes is None or bool(state.allowed[request.nodes][slot])
        amounts, gpus = state.free[slot].tobytes(), state.gpu_free[slot].tobytes()
        size = state.capacity[slot].tobytes() if self.objective == "spread" or _fits_without_cpu(request) else b""
        return amounts, gpus, int(state.model[slot]), int(state.kind[slot]), allowed, state.width, state.most_cpu, size

    def _recall_scores(self, known: _ScoreCache, request: Request, slots: Ints) -> Ints:
        """Score nodes in a known state; return the others."""
        missing = []
        for slot in slots.tolist():
            cached = known.seen.get(self._state_key(request, slot))
            if cached is None:
                missing.append(slot)
            else:
                known.scores[slot], known.gpus[slot] = cached
        return np.array(missing, np.int64)

    def _remember_scores(self, known: _ScoreCache, request: Request, slots: Ints) -> None:
        if len(known.seen) > MAX_CACHED_STATES:
            known.seen.clear()
        for slot in slots.tolist():
            known.seen[self._state_key(request, slot)] = (float(known.scores[slot]), int(known.gpus[slot]))

    def _changed_slots(self, position: int | None) -> Ints:
        touched = None if position is None else self.state.touched(position)
        return np.arange(self.state.size) if touched is None else np.array(touched, np.int64)

    def _renew_costs(self) -> None:
        if self._cost_position != self.state.position:
            if not self.measure.empty:
                for slots in _split_into_chunks(self._changed_slots(self._cost_position)):
                    self._cost[slots] = self.measure.cost(self.state, slots)
            self._cost_position = self.state.position

    # -- scoring ----------------------------------------------------------------------------------------------------

    def _evaluate(self, request: Request, slots: Ints) -> tuple[Floats, npt.NDArray[np.int32]]:
        scores, chosen = np.full(len(slots), np.inf), np.zeros(len(slots), np.int32)
        state = self.state
        amounts = np.array(request.amounts, np.int64)
        asked = np.flatnonzero(amounts)  # of some hundred resources; those not requested may be overcommitted
        fits = (state.free[slots[:, None], asked] >= amounts[asked]).all(1) & (state.capacity[slots, 0] != ABSENT)
        if request.nodes is not None:
            fits &= state.allowed[request.nodes][slots]
        if request.gpus:
            fits &= state.gpu_total[slots] >= request.total_milli
            if request.models:
                wanted = np.array([model in request.models for model in state.models])
                fits &= wanted[state.model[slots]]
        inside = np.flatnonzero(fits)
        if inside.size and request.gpus:
            gpus = self._candidate_gpus(request, slots[inside])
            inside, gpus = inside[gpus != 0], gpus[gpus != 0]
            chosen[inside] = gpus
        if inside.size:
            slots = slots[inside]
            left = state.free[slots] - amounts
            cost, chosen[inside] = self._cost_with_pod(request, slots, left, chosen[inside])
            scores[inside] = cost - self._cost[slots] + self._tie_breaker(request, slots, left)
            scores[inside] += self._link_cost(request, slots, chosen[inside])
            if self.objective == "links":
                scores[inside] += self._speed_cost(request, slots, chosen[inside])
            elif self.objective == "spread":
                scores[inside] += SPREAD_WEIGHT_MILLI * self._load_with_pod(request, slots, left)
        return scores, chosen

    def _candidate_gpus(self, request: Request, slots: Ints) -> npt.NDArray[np.int32]:
        """Return GPU masks: for shares all GPUs with enough free, else the best whole ones."""
        state = self.state
        if request.milli < MILLI_PER_GPU:
            large = state.gpu_free[slots, : state.width] >= request.milli
            shares: npt.NDArray[np.int32] = (large << np.arange(state.width)).sum(1).astype(np.int32)
            return shares
        result, whole = np.zeros(len(slots), np.int32), state.whole[slots]
        wanted = (request.gpus, request.link, request.required, request.rdma)
        for links, here in self._by_links(slots):
            result[here] = links.choose(whole[here], *wanted)
        return result

    def _by_links(self, slots: Ints) -> Iterator[tuple[Links, npt.NDArray[np.bool_]]]:
        """Yield the tables of each machine type among nodes, and its nodes as a mask."""
        kinds = self.state.kind[slots]
        for kind in np.unique(kinds).tolist():
            yield self.state.kinds[kind], kinds == kind

    def _cost_with_pod(
        self, request: Request, slots: Ints, left: Ints, masks: npt.NDArray[np.int32]
    ) -> tuple[Floats, npt.NDArray[np.int32]]:
        """Return the cost of the nodes including the pod, and the GPUs that it takes there."""
        state, measure = self.state, self.measure
        gpus = state.gpu_free[slots, : state.width].astype(np.int64)
        total = state.gpu_total[slots].astype(np.int64) - request.total_milli
        model = state.model[slots]
        if request.gpus and request.milli < MILLI_PER_GPU:
            if measure.empty:
                by_gpu = np.where(gpus >= request.milli, 0.0, np.inf)
            else:
                by_gpu = measure.lost_without(measure.chances(left, model, state.models), gpus, request.milli)
            # Ties go to the GPU with least left, and for whole GPUs to the best remaining links.
            single = self._best_single_gpus(slots)
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

    def _best_single_gpus(self, slots: Ints) -> npt.NDArray[np.int32]:
        result, whole = np.zeros(len(slots), np.int32), self.state.whole[slots]
        for links, here in self._by_links(slots):
            result[here] = links.choose(whole[here], 1)
        return result

    def _tie_breaker(self, request: Request, slots: Ints, left: Ints) -> Floats:
        """Return a cost of at most two milli that favours the best fit, by remaining GPUs and CPU.

        Without a request for either there is nothing to fit: the emptiest node keeps places on all of them.
        """
        state = self.state
        gpu_left = state.gpu_total[slots] - request.total_milli
        result: Floats = gpu_left / (MILLI_PER_GPU * max(1, state.width))
        if _fits_without_cpu(request):
            return result + self._used_share(request, slots, left)
        return result + left[:, 0] / state.most_cpu

    def _speed_cost(self, request: Request, slots: Ints, masks: npt.NDArray[np.int32]) -> Floats:
        cost = np.zeros(len(slots))
        if request.gpus > 1:
            for links, here in self._by_links(slots):
                cost[here] = -SPEED_VALUE_MILLI * links.slowest[masks[here]]
        return cost

    def _load_with_pod(self, request: Request, slots: Ints, left: Ints) -> Floats:
        """Return the load of nodes including the pod, 0 to 1."""
        state = self.state
        if request.gpus:
            result: Floats = 1.0 - (state.gpu_total[slots] - request.total_milli) / (
                MILLI_PER_GPU * state.gpu_count[slots]
            )
            return result
        return self._used_share(request, slots, left)

    def _used_share(self, request: Request, slots: Ints, left: Ints) -> Floats:
        """Return the used share of CPU including the pod; without a request for it, of what is requested and used most.

        Shares are from 0 to 1.
        """
        columns = np.flatnonzero(request.amounts) if _fits_without_cpu(request) else np.array([0])
        if not columns.size:
            return np.zeros(len(slots))
        free = left[:, columns] / np.maximum(self.state.capacity[slots[:, None], columns], 1)
        result: Floats = 1.0 - free.min(1)
        return result

    def _link_cost(self, request: Request, slots: Ints, masks: npt.NDArray[np.int32]) -> Floats:
        cost = np.zeros(len(slots))
        if request.gpus < 2:
            return cost
        for links, here in self._by_links(slots):
            level = links.levels[masks[here]].astype(np.float64)
            missing = links.missing_levels(request.link)[masks[here]]
            # With any link accepted, better links still break ties.
            cost[here] = LEVEL_COST_MILLI * missing + 0.1 * level
        return cost


def place(scorer: Scorer, key: Hashable, request: Request) -> ScoredChoice | None:
    """Choose for a request and book it under the key."""
    choice = scorer.choose(request)
    if choice is not None:
        scorer.state.book(key, choice.booking(request))
    return choice


def _fits_without_cpu(request: Request) -> bool:
    """Return True for a request of neither GPUs nor CPU."""
    return not (request.gpus or request.amounts[0])


@lru_cache(maxsize=1024)
def _without_node_set(request: Request) -> Request:
    """Drop the node set: its key is unique to a pod, so it does not predict future requests."""
    return replace(request, nodes=None)


def _subtract_preferences(scores: Floats, preferred: Floats) -> Floats:
    """Return costs less the value of preferences, normalised over the nodes that fit.

    Source: kube-scheduler's plugins NodeAffinity and InterPodAffinity, NormalizeScore.
    """
    fits = preferred[scores < np.inf]
    if not fits.size or fits.min() == fits.max():
        return scores
    result: Floats = scores - PREFERENCE_MILLI * (preferred - fits.min()) / (fits.max() - fits.min())
    return result


def _split_into_chunks(slots: Ints) -> list[Ints]:
    return [slots[start : start + CHUNK_NODES] for start in range(0, len(slots), CHUNK_NODES)]
