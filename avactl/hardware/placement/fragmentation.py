"""Value of a node's free GPUs to the expected workload, in GPU milli.

Two measures of loss, both functions of one node's state:

- Fragmentation as FGD defines it (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
  Fragmentation Gradient Descent", USENIX ATC'23, section 3): the GPUs that the next pod cannot use, expected over the
  workload: all of the node's if the pod does not fit, else those with less free than it requests.
- Stranded GPUs: those for which CPU (memory, …) runs out first. FGD considers a single next pod, so a node with eight
  free GPUs and CPU for two such pods counts as unfragmented. Filled with the workload's mean, GPUs in excess of
  CPU ÷ (CPU per GPU of the workload) stay idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from avactl.hardware.placement.allocation import AllocationState
from avactl.hardware.placement.request import Request

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_CELLS = 1 << 13
"""Cells of the table of amounts. With more distinct values, amounts are rounded up."""

MAX_COLUMNS = 12
"""Maximum number of resources with a table axis, of at least two cells each: the most frequently requested ones."""

WEIGHT_WITHOUT_GPUS = 0.25
"""Weight of pods without GPUs in the mean CPU and memory per GPU. They run on GPU nodes too, but also elsewhere if they
are few: with weight 0, GPUs are stranded when such pods are many; with weight 1, large gangs find fewer whole machines.
Chosen by replays of the openb trace and derived lists: 0.5 allocates one point more when such pods are 2.5 times as
many, and less when many pods request several GPUs."""


class Measure:
    """The measures for one workload; `shares` are the frequencies of its requests.

    Fragmentation counts GPU requests only. Node sets are ignored, because they come and go with their pods.
    """

    def __init__(self, shares: Mapping[Request, float], resources: int) -> None:
        asking = {request: share for request, share in shares.items() if request.gpus}
        self.shares = dict(shares)
        total = sum(asking.values())
        demands = sorted({(request.gpus, request.milli) for request in asking})
        self._gpus = np.array([gpus for gpus, _ in demands], np.int64)
        self._milli = np.array([milli for _, milli in demands], np.int64)
        self._rows = [
            (request.amounts, request.models, demands.index((request.gpus, request.milli)), share / total)
            for request, share in asking.items()
        ]
        uses = np.zeros(resources)
        for request, share in asking.items():
            uses += share * (np.array(request.amounts) > 0)
        self._columns = np.sort(np.argsort(-uses, kind="stable")[: min(MAX_COLUMNS, np.count_nonzero(uses))])
        asked = ({request.amounts[column] for request in asking} for column in self._columns)
        self._axes = [np.array(sorted(amounts), np.int64) for amounts in asked]
        while prod(len(axis) + 1 for axis in self._axes) > MAX_CELLS:
            longest = max(range(len(self._axes)), key=lambda number: len(self._axes[number]))
            self._axes[longest] = self._axes[longest][::-2][::-1]  # keep the largest
        self._strides = np.cumprod([1, *(len(axis) + 1 for axis in self._axes)])
        milli = sum(share * request.total_milli for request, share in asking.items())
        amounts = np.zeros(resources)
        for request, share in shares.items():
            amounts += (share if request.gpus else WEIGHT_WITHOUT_GPUS * share) * np.array(request.amounts, float)
        self._per_milli = amounts / milli if milli else np.zeros(resources)
        constrained: dict[frozenset[str], float] = {}
        for request, share in asking.items():
            if request.models:
                part = share * request.total_milli / milli
                constrained[request.models] = constrained.get(request.models, 0.0) + part
        self.constrained = constrained
        """Sets of models that requests are restricted to, and their share of all GPU milli."""
        self._members = np.zeros((0, 0), np.bool_)
        self._tables: Floats = np.zeros((0, 0))
        self._known_models = -1

    @property
    def empty(self) -> bool:
        """Return whether the workload is unknown."""
        return not self._rows

    def chances(self, free: Ints, model: npt.NDArray[np.integer], models: list[str]) -> Floats:
        """Return by node and kind of GPU demand the probability of a pod that fits the node by amounts and model.

        `model` indexes `models`. Looked up in the cumulative distribution of amounts, a table over all requests.
        """
        if self._known_models != len(models):
            self._tables = np.concatenate([self._distribution(each) for each in models])
            self._known_models = len(models)
        cell = model * self._strides[-1]
        for axis, stride, amounts in zip(self._axes, self._strides[:-1], free[:, self._columns].T, strict=True):
            cell = cell + np.searchsorted(axis, amounts, side="right") * stride
        result: Floats = self._tables[cell]
        return result

    def share(self, model: str) -> float:
        """Return the probability of a pod that accepts GPUs of a model."""
        return sum(share for _, wanted, _, share in self._rows if not wanted or model in wanted)

    def _distribution(self, model: str) -> Floats:
        """Return for nodes of a model, by free values on each axis, the shares of fitting requests by kind."""
        shape = [len(axis) + 1 for axis in self._axes]
        table = np.zeros((*shape[::-1], len(self._milli)))
        for amounts, wanted, kind, share in self._rows:
            if not wanted or model in wanted:
                asked = [amounts[column] for column in self._columns]
                at = [int(np.searchsorted(axis, amount)) + 1 for axis, amount in zip(self._axes, asked, strict=True)]
                table[(*at[::-1], kind)] += share
        for axis_number in range(len(shape)):
            table = table.cumsum(axis_number)
        return table.reshape(-1, len(self._milli))

    def lost(self, chances: Floats, gpus: Ints) -> Floats:
        """Return FGD's fragmentation of nodes with these free GPUs."""
        large = gpus[:, :, None] >= self._milli
        usable = (gpus[:, :, None] * large).sum(1)
        enough = large.sum(1) >= self._gpus
        total: Ints = np.maximum(gpus, 0).sum(1)
        result: Floats = total - (chances * (usable * enough)).sum(1)
        return result

    def lost_without(self, chances: Floats, gpus: Ints, milli: int) -> Floats:
        """Return FGD's fragmentation by node and GPU if that GPU had `milli` less; infinite if it has too little."""
        large = gpus[:, :, None] >= self._milli
        parts = gpus[:, :, None] * large
        left = gpus - milli
        large_after = left[:, :, None] >= self._milli
        usable = parts.sum(1)[:, None] - parts + left[:, :, None] * large_after
        enough = large.sum(1)[:, None] - large + large_after >= self._gpus
        total: Ints = np.maximum(gpus, 0).sum(1)
        lost: Floats = (total - milli)[:, None] - np.einsum("nd,ngd->ng", chances, usable * enough)
        lost[left < 0] = np.inf
        return lost

    def stranded(self, free: Ints, total: Ints) -> Floats:
        """Return the GPU milli of nodes that stay idle because another resource runs out first."""
        asked = np.flatnonzero(self._per_milli > 0)
        if not asked.size:
            return np.zeros(len(free))
        usable = (np.maximum(free[:, asked], 0) / self._per_milli[asked]).min(1)
        result: Floats = np.maximum(total - usable, 0.0)
        return result

    def cost(self, state: AllocationState, slots: Ints) -> Floats:
        """Return the sum of both measures for nodes in their current state."""
        free, gpus = state.free[slots], state.gpu_free[slots, : state.width].astype(np.int64)
        total = state.gpu_total[slots].astype(np.int64)
        return self.lost(self.chances(free, state.model[slots], state.models), gpus) + self.stranded(free, total)

    def pressure(self, state: AllocationState) -> Floats:
        """Return by GPU model the loss that a flexible pod causes to pods restricted to it, per milli.

        Assuming that as much arrives as is free, pods restricted to some models request their share of all free GPUs.
        Divided by the free GPUs of these models, that is the probability that a milli taken there is missed.
        """
        if self._members.shape[1] != len(state.models):
            self._members = np.array([[model in models for model in state.models] for models in self.constrained])
        free = state.model_free.astype(np.float64)
        asked = np.array(list(self.constrained.values())) * free.sum()
        chance = np.minimum(asked / np.maximum(self._members @ free, 1.0), 1.0)
        result: Floats = chance @ self._members
        return result
