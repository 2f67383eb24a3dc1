"""Reasons why a request does not fit, and their messages: each node counts once, for its first unmet requirement."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from avactl.hardware.placement.allocation import ABSENT, MILLI_PER_GPU, AllocationState
from avactl.hardware.placement.fragmentation import Ints
from avactl.hardware.placement.gang import Gang, GangRole, count_fitting, is_impossible, place_gang
from avactl.hardware.placement.masks import Mask
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer

MAX_NAMED_DOMAINS = 3
"""Maximum number of domains that a message names."""
SMALL = "the cluster is too small for it even if it is empty"


class Lack(Enum):
    """A requirement that a node does not meet."""

    NODE_SET = "node set"
    """The pod must not run on it."""
    MODEL = "GPU model"
    GPU_CAPACITY = "GPU capacity"
    """It has too few GPUs even when empty."""
    CAPACITY = "capacity"
    """It is too small even when empty, in one resource or in their combination."""
    TOPOLOGY = "topology"
    """Its GPUs do not have the required link even when empty."""
    GPUS = "free GPUs"
    SHARE = "free GPU share"
    LINK = "free linked GPUs"
    RESOURCE = "free resource"


class Cause(NamedTuple):
    """Nodes with the same unmet requirement."""

    lack: Lack
    nodes: int
    best: int
    """The largest amount left on one of them, in its unit; 0 if not applicable."""
    resource: str = ""
    """The resource, if it is one of `AllocationState.resources`."""


class PodReason(NamedTuple):
    """Reasons why a pod does not fit, and the number of nodes where it does."""

    request: Request
    nodes: int
    fitting: int
    ever: bool
    """True if it would fit on some empty node."""
    causes: tuple[Cause, ...]
    """Causes, most frequent first."""

    @property
    def barred(self) -> bool:
        """True if constraints exclude all nodes of its GPU model: size is not the reason."""
        lacks = {cause.lack for cause in self.causes}
        return not self.fitting and lacks in ({Lack.NODE_SET}, {Lack.NODE_SET, Lack.MODEL})


class DomainRoom(NamedTuple):
    """Capacity for members of a gang in one domain."""

    name: Hashable
    room: int
    alone: bool = False
    """True for a node without a domain at this level."""


class GangReason(NamedTuple):
    """Reasons why a gang does not fit: those of its first role that does not."""

    role: GangRole
    within: str | None
    room: int
    """Members that fit now: in the cluster, or in the best domain if one must hold all."""
    domains: tuple[DomainRoom, ...]
    """Domains with the most capacity; empty if the gang may span the cluster."""
    ever: bool
    """True if it would fit on an empty cluster."""
    per_node: int
    """Members that fit on one empty node."""
    pod: PodReason
    """Diagnosis of one member."""
    apart: bool = False
    """True if domains take the role, but none of them takes the others."""


def why_pod(state: AllocationState, request: Request, feasible: Mask | None = None) -> PodReason:
    """Count the nodes by the first requirement of a request that they do not meet."""
    slots = np.flatnonzero(state.capacity[: state.size, 0] != ABSENT)
    left = np.ones(len(slots), np.bool_)
    causes = []
    for lack, resource, lacking, have in _find_lacks(state, request, slots, feasible):
        excluded = left & lacking
        if excluded.any():
            best = int(have[excluded].max()) if have is not None else 0
            causes.append(Cause(lack, int(excluded.sum()), max(0, best), resource))
            left &= ~excluded
    causes.sort(key=lambda cause: -cause.nodes)
    ever = bool(left.any()) or bool((count_fitting(state, request, slots, feasible, empty=True) > 0).any())
    return PodReason(request, len(slots), int(left.sum()), ever, tuple(causes))


def _find_lacks(
    state: AllocationState, request: Request, slots: Ints, feasible: Mask | None
) -> Iterator[tuple[Lack, str, npt.NDArray[np.bool_], npt.NDArray[np.integer] | None]]:
    """Yield lack, resource, the nodes that lack it and their amounts of it, from permanent lacks to transient ones."""
    if request.gpus and request.models:
        wanted = np.array([model in request.models for model in state.models], np.bool_)
        yield Lack.MODEL, "", ~wanted[state.model[slots]], None
    allowed = np.ones(len(slots), np.bool_)
    if request.nodes is not None:
        allowed &= state.allowed[request.nodes][slots]
    if feasible is not None:
        allowed &= feasible[slots]
    yield Lack.NODE_SET, "", ~allowed, None
    anywhere = Request(request.amounts, request.gpus, request.milli)
    small = count_fitting(state, anywhere, slots, empty=True) == 0
    if request.gpus:
        yield Lack.GPU_CAPACITY, "", small & (state.gpu_count[slots] < request.gpus), state.gpu_count[slots]
    for column, name in enumerate(state.resources):
        yield Lack.CAPACITY, name, small & (state.capacity[slots, column] < request.amounts[column]), None
    yield Lack.CAPACITY, "", small, None
    if request.gpus and request.required:
        linked = Request(request.amounts, request.gpus, link=request.link, required=True)
        yield Lack.TOPOLOGY, "", count_fitting(state, linked, slots, empty=True) == 0, None
    if request.gpus and request.milli < MILLI_PER_GPU:
        most = state.gpu_free[slots, : state.width].max(1, initial=0)
        yield Lack.SHARE, "", most < request.milli, most
    elif request.gpus:
        whole = (state.gpu_free[slots, : state.width] == MILLI_PER_GPU).sum(1)
        yield Lack.GPUS, "", whole < request.gpus, whole
        if request.required:
            linked = Request((0,) * len(request.amounts), request.gpus, link=request.link, required=True)
            yield Lack.LINK, "", count_fitting(state, linked, slots) == 0, None
    for column, name in enumerate(state.resources):
        free = state.free[slots, column]
        if request.amounts[column]:
            yield Lack.RESOURCE, name, free < request.amounts[column], free


def why_gang(state: AllocationState, gang: Gang, feasible: Mask | None = None) -> GangReason | None:
    """Return the reasons for the first role that does not fit, largest GPU requests first; None if each fits alone.

    A role does not fit either if no domain that takes it takes the ones before. With None the gang fits, or its roles
    do not fit together.
    """
    slots = np.arange(state.size)
    roles = sorted(gang.roles, key=lambda role: -role.request.total_milli * role.least)

    def capacities_of(role: GangRole, empty: bool = False) -> list[DomainRoom]:
        return _domain_capacities(state, gang.within, count_fitting(state, role.request, slots, feasible, empty=empty))

    def able_domains(role: GangRole, capacities: list[DomainRoom]) -> set[tuple[Hashable, bool]]:
        return {(domain.name, domain.alone) for domain in capacities if domain.room >= role.least}

    together: set[tuple[Hashable, bool]] | None = None
    for number, role in enumerate(roles, 1):
        capacities = capacities_of(role)
        able = able_domains(role, capacities)
        together = able if together is None else together & able
        if not together:
            empties = [able_domains(each, capacities_of(each, empty=True)) for each in roles[:number]]
            return GangReason(
                role,
                gang.within,
                capacities[0].room if capacities else 0,
                () if gang.within is None else tuple(capacities[:MAX_NAMED_DOMAINS]),
                bool(set.intersection(*empties)),
                int(count_fitting(state, role.request, slots, feasible, empty=True).max(initial=0)),
                why_pod(state, role.request, feasible),
                apart=bool(able),
            )
    return None


def fits_empty(
    state: AllocationState,
    gang: Gang,
    feasible: Mask | None = None,
    allowed: Mapping[Hashable, npt.NDArray[np.bool_]] | None = None,
) -> bool | None:
    """Return True if the gang fits an empty cluster, False if that is impossible, None if no placement was found.

    Roles that fit one by one may not fit together. `allowed` are node sets as they may become, by key.
    """
    empty = state.emptied()
    empty.allowed.update(allowed or {})
    scorer = Scorer(empty)
    if place_gang(scorer, "", gang, feasible) is not None:
        return True
    return False if is_impossible(scorer, gang, feasible) else None


def _domain_capacities(state: AllocationState, within: str | None, room: Ints) -> list[DomainRoom]:
    """Return the capacity of each domain, largest first; of the whole cluster if no level is required."""
    if within is None:
        return [DomainRoom("", int(room.sum()))]
    level = state.levels.index(within)
    domain = state.domains[: state.size, level].astype(np.int64)
    known = list(state.domain_names[level])
    sums = np.bincount(domain[domain != ABSENT], room[domain != ABSENT], len(known)).astype(np.int64)
    capacities = [DomainRoom(name, count) for name, count in zip(known, sums.tolist(), strict=True)]
    alone = np.flatnonzero((domain == ABSENT) & (room > 0)).tolist()
    capacities += [DomainRoom(state.names[slot], int(room[slot]), True) for slot in alone]
    return sorted(capacities, key=lambda domain: (-domain.room, str(domain.name)))


# -- messages --------------------------------------------------------------------------------------------------------

_NODE_SET = ("selector", "affinity", "taints", "cordon")
"""Possible reasons for nodes outside a request's node set, if the caller does not count them."""


def pod_message(reason: PodReason, obstacles: Sequence[str] = _NODE_SET) -> str:
    """Render `fits on none of 500 nodes: 300 have fewer than 8 free V100 (at most 5), 200 have no V100`.

    `obstacles`: reasons for nodes outside the node set.
    """
    nodes = f"{reason.nodes} node{'' if reason.nodes == 1 else 's'}"
    if reason.fitting:
        return f"fits on {reason.fitting} of {nodes}"
    causes = ", ".join(f"{cause.nodes} {_describe(cause, reason.request, obstacles)}" for cause in reason.causes)
    small = any(
        cause.lack is Lack.CAPACITY or (cause.lack is Lack.GPU_CAPACITY and cause.best) for cause in reason.causes
    )
    never = "" if reason.ever else f"; no node {'is large enough' if small else 'is suitable'} even if it is empty"
    return f"fits on none of {nodes}: {causes}{never}" if causes else "there are no nodes"


def _describe(cause: Cause, request: Request, obstacles: Sequence[str]) -> str:
    model, free = _describe_model(request), _describe_model(request, request.gpus == 1)
    have, are = ("has", "is") if cause.nodes == 1 else ("have", "are")
    small = f"{are} too small (at most {cause.best} GPU{'' if cause.best == 1 else 's'})"
    return {
        Lack.NODE_SET: f"{are} excluded ({', '.join(obstacles)})",
        Lack.MODEL: f"{have} no {model}",
        Lack.GPU_CAPACITY: small if cause.best else f"{have} no GPUs",
        Lack.CAPACITY: f"{are} too small" + (f" (too little {cause.resource})" if cause.resource else ""),
        Lack.TOPOLOGY: f"{have} no {request.gpus} {model} that are known to have link {request.link}",
        Lack.GPUS: f"{have} fewer than {request.gpus} free {free} (at most {cause.best})",
        Lack.SHARE: f"{have} no {model} with {request.milli / MILLI_PER_GPU:g} free",
        Lack.LINK: f"{have} no {request.gpus} free {model} with link {request.link}",
        Lack.RESOURCE: f"{have} too little {cause.resource} left",
    }[cause.lack]


def gang_message(reason: GangReason, obstacles: Sequence[str] = _NODE_SET) -> str:
    """Render `needs 4 machines with 8 free H100 in one block; block b1 has 3`. `obstacles`: as for `pod_message`."""
    role, request = reason.role, reason.role.request
    what = f"{role.least} machine{'s' if role.least > 1 else ''}"
    if request.gpus:
        part = request.milli / MILLI_PER_GPU
        share = f"{part:g} of a free" if part < 1 else f"{request.gpus} free"
        what = f"capacity for {role.least} pods with" if reason.per_node > 1 else f"{what} with"
        what = f"{what} {share} {_describe_model(request, request.gpus == 1)}"
        what += f" and link {request.link}" if request.required else ""
    else:
        what = f"capacity for {role.least} pods"
    if reason.within is None:
        text = f"needs {what}; only {reason.room} available"
    else:
        level = short(reason.within)
        rooms = (
            f"{_describe_domain(domain, reason.within)} has {domain.room}" for domain in reason.domains if domain.room
        )
        text = f"needs {what} in one {level}; {', '.join(rooms) or f'no {level} has any'}"
    if reason.apart:
        text += ", where the gang's other pods do not fit"
    if not reason.ever:
        level = short(reason.within or "")
        text += f"; no {level} takes all of them even if it is empty" if reason.apart else f"; {SMALL}"
    return text if reason.pod.fitting else f"{text} ({pod_message(reason.pod, obstacles)})"


def short(level: str) -> str:
    """Return the last part of a level's name: `rack` of the node label `topology.kubernetes.io/rack`."""
    return level.rpartition("/")[2]


def _describe_domain(domain: DomainRoom, level: str) -> str:
    """Return `rack b1/r1`, or the name of a node."""
    return f"{domain.name} (without label {level})" if domain.alone else f"{short(level)} {_domain_name(domain.name)}"


def _domain_name(name: Hashable) -> str:
    """Return a domain's name, with its block if racks of different blocks can share a name: `b1/r1`."""
    return "/".join(part for part in name if part) if isinstance(name, tuple) else str(name)


def _describe_model(request: Request, one: bool = False) -> str:
    return " or ".join(sorted(request.models)) or ("GPU" if one else "GPUs")
