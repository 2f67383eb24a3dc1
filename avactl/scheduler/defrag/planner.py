"""Plan the fewest pod moves that let a pending job start, from a read-only view of the cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple

from avactl.hardware.placement.allocation import MILLI_PER_GPU, Booking
from avactl.hardware.placement.defrag import make_whole
from avactl.hardware.placement.diagnosis import gang_message, why_gang
from avactl.hardware.placement.gang import Gang, GangRole, place_gang
from avactl.hardware.placement.request import Request
from avactl.hardware.placement.score import Scorer
from avactl.hardware.topology import gpus_in_mask
from avactl.kube.timestamps import seconds_since
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.inspection import usage
from avactl.scheduler.inspection.cluster_view import ClusterView
from avactl.scheduler.objects.node_rules import RuleError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.gang_request import roles_of
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup

WANTED_KEY = "wanted"
NOT_TOGETHER = "each of its pods would fit, but not all of them together"
UNSUPPORTED_CLAIMS = "with ResourceClaims that are shared or request devices other than GPUs"


class NoPlanError(Exception):
    """There is no plan; the message says why."""


class PlannedMove(NamedTuple):
    """The move of a pod from one machine to another."""

    pod: PodInfo
    job: str
    gpus: float
    source: str
    target: str
    """Node that has capacity for it now; the scheduler makes the final decision."""
    lost: float
    """Maximum seconds of lost work: the checkpoint interval, or the running time if shorter."""
    with_it: int
    """Other pods of its gang that also resume from the last checkpoint."""


class DefragPlan(NamedTuple):
    """Moves after which the pods fit; empty if they already fit."""

    moves: list[PlannedMove]
    places: dict[str, str]
    """Machine by pod: by UID, or by number for hypothetical pods."""


class Movable(NamedTuple):
    """Movable pods and their requests, and counts of other pods by reason."""

    requests: dict[Hashable, Request]
    kept: dict[str, int]


def unit_of(view: ClusterView, namespace: str, name: str) -> QueuedPodGroup:
    """Return the unit of a pending job: its gang, or the first of its pods. Raises NoPlanError."""
    mine = [
        pod
        for pod in view.cache.tables.pods.values()
        if pod.namespace == namespace and name in (pod.name, *_job_names(pod))
    ]
    waiting = sorted((pod for pod in mine if pod.waiting), key=lambda pod: (pod.index, pod.name))
    if not mine:
        others = [pod for pod in view.strangers.values() if pod.namespace == namespace and name in _job_names(pod)]
        if others:
            raise NoPlanError(f"{namespace}/{name} uses another scheduler")
        raise NoPlanError(f"namespace {namespace} has no job {name}")
    if not waiting:
        raise NoPlanError(f"no pod of {namespace}/{name} is pending")
    first = waiting[0]
    if first.owned:
        raise NoPlanError(f"another controller makes the pods of {first.gang}: not supported by defrag")
    unit = QueuedPodGroup(first.gang or first.uid, bool(first.gang))
    for pod in view.cache.tables.pods.values() if first.gang else (first,):
        if pod is first or pod.gang == first.gang:
            unit.add(pod)
    return unit


def _job_names(pod: PodInfo) -> tuple[str, ...]:
    return usage.job_of(pod)[0], pod.pod_group if pod.group is not None else pod.gang.partition("/")[2]


def for_unit(view: ClusterView, unit: QueuedPodGroup) -> DefragPlan:
    """Return the moves for a pending job. Raises NoPlanError."""
    cache = view.cache
    waiting = sorted(unit.waiting, key=lambda pod: (pod.index, pod.name))
    need = unit.missing
    if need <= 0:
        raise NoPlanError("the job is running; additional elastic pods do not justify moves")
    if need > len(waiting):
        raise NoPlanError(f"{need - len(waiting)} pods of its gang do not exist yet")
    pods = waiting[:need]
    requests = {}
    for pod in pods:
        if pinned := _pinned_reason(view, pod):
            raise NoPlanError(f"{pinned}: not supported by defrag")
        if pod.shape.refused:
            raise NoPlanError(pod.shape.refused)
        try:
            requests[pod.uid] = _request_of(view, pod)
        except RuleError as error:
            raise NoPlanError(str(error)) from None
    roles = roles_of(pods, requests)
    over, _ = cache.quotas.admit([StartRequest(request, members) for request, members in roles.items()])
    if over:
        raise NoPlanError(f"more free capacity would not help: {over}")
    gang = Gang(
        tuple(GangRole(str(number), request, len(members)) for number, (request, members) in enumerate(roles.items())),
        unit.within or None,
    )
    rank = max(pod.rank for pod in pods)
    names = [[pod.uid for pod in members] for members in roles.values()]
    return _plan_moves(view, gang, names, movable(view, rank, without=unit.key))


def for_request(view: ClusterView, request: Request, pods: int) -> DefragPlan:
    """Return the moves for hypothetical pods. Raises NoPlanError."""
    gang = Gang((GangRole("0", request, pods),))
    return _plan_moves(view, gang, [[str(number) for number in range(pods)]], movable(view))


def movable(view: ClusterView, rank: tuple[bool, int] | None = None, without: str = "") -> Movable:
    """Return the preemptible pods with a checkpoint interval and a controller that recreates them.

    Excludes pods that rank above `rank`, and the job `without`.
    """
    cache, requests, kept = view.cache, dict[Hashable, Request](), dict[str, int]()
    for pod in cache.tables.pods.values():
        if not pod.node or pod.ended or (without and without in (pod.gang, pod.uid)):
            continue
        booking = cache.tables.state.bookings.get(pod.uid)
        if booking is None or not (booking.gpus or cache.claims.held_gpus(pod)):
            continue
        why = _find_obstacle(view, pod, rank) if pod.managed else "using another scheduler"
        try:
            if not why:
                requests[pod.uid] = _request_when_recreated(view, pod) if pod.claims else _request_of(view, pod)
        except RuleError as error:
            why = str(error)
        if why:
            kept[why] = kept.get(why, 0) + 1
    return Movable(requests, kept)


def _request_of(view: ClusterView, pod: PodInfo) -> Request:
    """Return the placement request of a pod. Raises RuleError."""
    if not view.cache.claims.concern(pod):
        return view.cache.requests.request(pod.shape)
    if view.cache.claims.needs_allocator(pod):
        raise UnsupportedError(UNSUPPORTED_CLAIMS)
    return view.cache.requests.request(pod.shape, view.cache.dra.demand(pod))


def _request_when_recreated(view: ClusterView, pod: PodInfo) -> Request:
    """Return the request of a pod with claims once it is recreated. The view then counts its devices as its own."""
    cache, state = view.cache, view.cache.tables.state
    if pod.uid in view.freed_requests:
        return view.freed_requests[pod.uid]
    keys = [f"{pod.namespace}/{name}" for _, name in pod.claims]
    held = [state.bookings.get(cache.dra.claims[key].uid) for key in keys if key in view.claims]
    if len(held) < len(keys):
        raise UnsupportedError(UNSUPPORTED_CLAIMS)
    gpus = sum({1 << gpu for booking in held if booking for gpu in gpus_in_mask(booking.gpus)})
    for key in keys:
        cache.claims.put({**view.claims[key], "status": {}})
    try:
        request: Request | None = _request_of(view, pod)
    except RuleError:
        request = None
    if request is not None and request.gpus == gpus.bit_count():
        state.book(pod.uid, replace(state.release(pod.uid), gpus=gpus), forced=True)
        view.freed_requests[pod.uid] = request
        return request
    for key in keys:
        cache.claims.put(view.claims[key])
    raise UnsupportedError(UNSUPPORTED_CLAIMS)


def _find_obstacle(view: ClusterView, pod: PodInfo, rank: tuple[bool, int] | None) -> str:
    """Return the reason why a pod cannot be moved, or an empty string."""
    if pod.deleting:
        return "ending already"
    if pod.uid not in view.checkpoints:
        return "without checkpoints"
    if not pod.preemptible:
        return "not preemptible"
    if pod.group is not None and pod.group.together:
        return "of a PodGroup that stops as a whole"
    if pod.uid not in view.owned:
        return "of no Job"
    if rank is not None and pod.rank > rank:
        return "of higher rank"
    return "restricted by other pods" if pod.within else _pinned_reason(view, pod)


def _pinned_reason(view: ClusterView, pod: PodInfo) -> str:
    """Return a reason that the pod cannot move, or an empty string."""
    try:
        constraint = view.constraints.pinned_by(pod)
    except RuleError as error:
        return str(error)
    return f"restricted by {constraint}" if constraint else ""


def _plan_moves(view: ClusterView, gang: Gang, names: list[list[str]], may: Movable) -> DefragPlan:
    cache = view.cache
    state, scorer = cache.tables.state, Scorer(cache.tables.state, view.expected())
    moves = make_whole(scorer, WANTED_KEY, gang, may.requests)
    if moves is None:
        reason = why_gang(state, gang)
        text = NOT_TOGETHER
        if reason is not None:
            text = gang_message(reason)
        raise NoPlanError(f"no moves can free enough capacity: {text}; {_describe_movable(may)}")
    mark = state.mark()
    try:
        for move in moves:
            state.release(move.key)
        for move in moves:
            request = may.requests[move.key]
            state.book(move.key, Booking(move.target, request.amounts, move.gpus, request.milli))
        placed = place_gang(scorer, WANTED_KEY, gang)
        if placed is None:
            raise NoPlanError(f"no moves can free enough capacity: {NOT_TOGETHER}")
        members: dict[str, list[str]] = {}
        for member in placed:
            members.setdefault(member.role, []).append(str(state.names[member.node]))
    finally:
        state.rollback(mark)
    places = {
        uid: node
        for role, uids in zip(gang.roles, names, strict=True)
        for uid, node in zip(uids, members[role.name], strict=True)
    }
    pods = {pod.uid: pod for pod in cache.tables.pods.values()}
    plan_moves = [
        _new_move(
            view,
            pods[str(move.key)],
            may.requests[move.key],
            str(state.names[move.source]),
            str(state.names[move.target]),
        )
        for move in moves
    ]
    return DefragPlan(sorted(plan_moves, key=lambda move: (move.source, move.pod.key)), places)


def _new_move(view: ClusterView, pod: PodInfo, request: Request, source: str, target: str) -> PlannedMove:
    every, since = view.checkpoints[pod.uid]
    gang = [other for other in view.cache.tables.pods.values() if pod.gang and other.gang == pod.gang and other.node]
    running = seconds_since(since, view.now) if since else every
    return PlannedMove(
        pod,
        f"{pod.namespace}/{usage.job_of(pod)[0]}",
        request.total_milli / MILLI_PER_GPU,
        source,
        target,
        max(0.0, min(every, running)),
        max(0, len(gang) - 1),
    )


def _describe_movable(may: Movable) -> str:
    """Render `12 pods may be moved; 30 may not: 28 without checkpoints, 2 not preemptible`."""
    text = f"{_count_pods(len(may.requests))} may be moved"
    if may.kept:
        listed = sorted(may.kept.items(), key=lambda item: (-item[1], item[0]))
        text += (
            f"; {_count_pods(sum(may.kept.values()))} may not: {', '.join(f'{count} {why}' for why, count in listed)}"
        )
    return text


def _count_pods(number: int) -> str:
    return f"{number} pod{'' if number == 1 else 's'}"


def models(view: ClusterView) -> Mapping[str, int]:
    """Return the GPU count of the cluster by model."""
    state = view.cache.tables.state
    return {name: int(state.gpu_count[state.model == number].sum()) for number, name in enumerate(state.models) if name}


def request(view: ClusterView, gpus: int, model: str = "", cpu: int = 0, memory: int = 0, link: str = "any") -> Request:
    """Return the request of hypothetical pods; `cpu` in millicores, `memory` in bytes."""
    amounts, cache = {"cpu": cpu, "memory": memory, "pods": 1}, view.cache
    there = [cache.tables.state.slots[name] for name, info in cache.tables.nodes.items() if not usage.away(info)]
    cache.tables.state.allow(WANTED_KEY, there)
    return Request(
        amounts=tuple(amounts.get(name, 0) for name in cache.tables.state.resources),
        gpus=gpus,
        models=frozenset({model}) if model else frozenset(),
        nodes=WANTED_KEY,
        link=link,
        required=link != "any" and gpus > 1,
    )
