"""Compare the decisions of avactl and kube-scheduler on random PodGroups (`scheduling.k8s.io/v1beta1`).

    python -m benchmarks.pod_groups [--sets 500] [--seed 1]

A set has up to five nodes and a PodGroup of up to six pods. kube-scheduler and then avactl schedule it. They disagree
if only kube-scheduler places it, if avactl's places are against what the PodGroup asks for, or if an exhaustive search
finds places and avactl does not; and if the condition of the PodGroup is another one after the same outcome.
kube-scheduler places pods one after the other, and misses some. A set with a difference is repeated alone before it
counts, because a scheduler's cache may have been stale. It needs Kubernetes 1.37 or newer.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, NamedTuple

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import MERGE, ApiError, Client
from benchmarks.clusters import POLICY, SCHEDULERS, run_concurrently, running
from benchmarks.measure import Bar, bar
from tools.controlplane import ControlPlane

GATES = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
RACK = POLICY["levels"][0]
SIDE_BY_SIDE = 50
"""Sets that are in the cluster at the same time."""
SETTLE = 1.0
"""Seconds until both schedulers have observed the nodes of a set."""
STABLE = 3.0
"""Seconds without a change after which a decision counts; kube-scheduler tries again within one to two."""
PATIENCE = 120.0
HIGH = "agreement-high"
"""A PriorityClass."""
COMPARED = ("placed", "not placed", "only avactl places it", "differ")
GROUPS, PODS = "/apis/scheduling.k8s.io/v1beta1/namespaces/{}/podgroups", "/api/v1/namespaces/{}/pods"

Object = dict[str, Any]
Amounts = tuple[int, int]
"""Cores and GiB."""


class FreeNode(NamedTuple):
    """A node of a set."""

    name: str
    free: Amounts
    rack: str
    """Empty without the label."""
    tainted: bool


class GroupSet(NamedTuple):
    """Nodes and a PodGroup."""

    number: int
    nodes: tuple[FreeNode, ...]
    pods: tuple[Amounts, ...]
    """What each of the pods requests."""
    on: str
    """Node of the first pod if it runs already."""
    least: int
    """`minCount`; 0 for the policy `basic`."""
    one_rack: bool
    contradicted: bool
    """True if the PodGroup has another priority than its pods."""
    late: bool
    """True if the PodGroup is created after its pods."""

    @property
    def namespace(self) -> str:
        """Its namespace, the same for all seeds."""
        return f"g{self.number}"

    def group(self, name: str) -> Object:
        """Return the PodGroup."""
        policy: Object = {"gang": {"minCount": self.least}} if self.least else {"basic": {}}
        spec: Object = {"schedulingPolicy": policy}
        if self.one_rack:
            spec["schedulingConstraints"] = {"topology": [{"key": RACK}]}
        if self.contradicted:
            spec["priorityClassName"] = HIGH
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata, "spec": spec}

    def members(self, name: str, scheduler: str) -> list[Object]:
        """Return the pods of the PodGroup of a name."""
        return [self._pod(name, scheduler, index) for index in range(len(self.pods))]

    def _pod(self, name: str, scheduler: str, index: int) -> Object:
        cores, memory = self.pods[index]
        container = {
            "name": "main",
            "image": "registry.example.com/train:1",
            "resources": {"requests": {"cpu": str(cores), "memory": f"{memory}Gi"}},
        }
        spec: Object = {
            "schedulerName": scheduler,
            "schedulingGroup": {"podGroupName": name},
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"example.com/set": str(self.number)},
            "containers": [container],
        }
        if index == 0 and self.on:
            spec["nodeName"] = self.on
        metadata = {"name": f"{name}-{index}", "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Decision(NamedTuple):
    """What a scheduler made of a set."""

    places: Mapping[int, str]
    """Node by number of the pod, also of the one that ran already."""
    condition: tuple[str, str]
    """Status and reason of the PodGroup's condition; empty if it has none."""


class Difference(NamedTuple):
    """A disagreement of the schedulers."""

    number: int
    what: str
    given: GroupSet


class Found(NamedTuple):
    """Results of all sets."""

    outcomes: Counter[str]
    differences: list[Difference]


# -- random sets


def random_set(seed: int, number: int) -> GroupSet:
    """Return a set, deterministic in the arguments."""
    rng = Random(f"{seed}/{number}")
    racks = [f"g{number}-{each}" for each in "ab"]
    nodes = tuple(
        FreeNode(
            f"g{number}-n{index}",
            (rng.randint(2, 6), rng.randint(2, 6)),
            rng.choice(racks) if rng.random() < 0.85 else "",
            rng.random() < 0.1,
        )
        for index in range(rng.randint(1, 5))
    )
    kinds = [(rng.randint(1, 4), rng.randint(1, 4)) for _ in range(rng.choice((1, 1, 2)))]
    basic = rng.random() < 0.15
    pods = tuple(rng.choice(kinds[: 1 if basic else 2]) for _ in range(rng.randint(1, 6)))
    # Few ask for more pods than there are.
    least = 0 if basic else min(rng.randint(1, len(pods) + 1), rng.randint(1, len(pods) + 1))
    one_rack = not basic and rng.random() < 0.4
    on = ""
    if least > 1 and rng.random() < 0.25:
        fit = [node for node in nodes if _fits(pods[0], node.free) and (node.rack or not one_rack)]
        on = rng.choice(fit).name if fit else ""
    return GroupSet(number, nodes, pods, on, least, one_rack, rng.random() < 0.07, rng.random() < 0.3)


def _fits(pod: Amounts, free: Amounts) -> bool:
    return pod[0] <= free[0] and pod[1] <= free[1]


# -- what is right


def places_exist(given: GroupSet) -> bool:
    """Return True if some places of its pods meet what a set's PodGroup asks for, by an exhaustive search."""
    if given.contradicted:
        return False
    free = {node.name: node.free for node in given.nodes}
    fixed = 0
    if given.on:
        free[given.on] = _less(free[given.on], given.pods[0])
        fixed = 1
    for nodes in _domains(given):
        names = [node.name for node in nodes if not node.tainted]
        if _most(given.pods[fixed:], {name: free[name] for name in names}, max(1, given.least) - fixed):
            return True
    return False


def _domains(given: GroupSet) -> Iterable[Sequence[FreeNode]]:
    if not given.one_rack:
        return [given.nodes]
    racks = {node.rack for node in given.nodes if node.rack}
    if given.on:
        racks = {node.rack for node in given.nodes if node.name == given.on}
    return [[node for node in given.nodes if node.rack == rack] for rack in sorted(racks)]


def _most(pods: Sequence[Amounts], free: Mapping[str, Amounts], needed: int) -> bool:
    """Return True if as many of the pods as needed fit beside each other."""
    if needed <= 0:
        return True
    if needed > len(pods):
        return False
    pod, rest = pods[0], pods[1:]
    tried: set[Amounts] = set()
    for name, left in free.items():
        if left not in tried and _fits(pod, left):
            tried.add(left)
            if _most(rest, {**free, name: _less(left, pod)}, needed - 1):
                return True
    return _most(rest, free, needed)


def _less(free: Amounts, pod: Amounts) -> Amounts:
    return free[0] - pod[0], free[1] - pod[1]


def defect(given: GroupSet, places: Mapping[int, str]) -> str:
    """Return what is wrong with the places of pods; empty if nothing."""
    if len(places) == (1 if given.on else 0):
        return ""
    free = {node.name: node.free for node in given.nodes}
    for index, name in places.items():
        free[name] = _less(free[name], given.pods[index])
        if any(node.tainted for node in given.nodes if node.name == name) and not (index == 0 and given.on):
            return f"{name} is tainted"
    if over := [name for name, left in free.items() if min(left) < 0]:
        return f"{over[0]} is full"
    racks = {node.rack for node in given.nodes if node.name in places.values()}
    if given.one_rack and (len(racks) > 1 or "" in racks):
        return "more than one rack"
    if len(places) < given.least:
        return f"{len(places)} of {given.least} pods started"
    return "priorities differ" if given.contradicted else ""


# -- the comparison


@contextmanager
def both_running() -> Iterator[ControlPlane]:
    """A control plane that serves PodGroups, without controllers, and both schedulers."""
    with (
        ControlPlane(arguments={"kube-apiserver": [GATES]}) as plane,
        running(plane, "kube-scheduler", GATES),
        # Of some PodGroups a pod runs by itself, as after a crash: such a gang is not restarted meanwhile.
        running(plane, "avactl", "--gang-grace", "3600"),
    ):
        yield plane


def compare(plane: ControlPlane, seed: int, count: int, told: Callable[[str], None] = lambda _: None) -> Found:
    """Compare the schedulers, which run on the plane, on `count` sets of a seed."""
    return asyncio.run(_Comparison(plane, seed).all(count, told))


class _Comparison:
    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self._access, self._seed = from_kubeconfig(plane.kubeconfig), seed
        self._client: Client

    async def all(self, count: int, told: Callable[[str], None]) -> Found:
        outcomes: Counter[str] = Counter()
        differences: list[Difference] = []
        async with Client(self._access, "comparison") as self._client:
            await self._prepare(min(count, SIDE_BY_SIDE))
            for start in range(0, count, SIDE_BY_SIDE):
                sets = [random_set(self._seed + start, number) for number in range(min(SIDE_BY_SIDE, count - start))]
                found = await self._compare(sets)
                for each in sets:
                    outcome = found[each.number]
                    if outcome.startswith("differ"):
                        outcomes["tried again"] += 1
                        outcome = (await self._compare([each]))[each.number]
                    outcomes[outcome.partition(":")[0]] += 1
                    if outcome.startswith("differ"):
                        differences.append(Difference(start + each.number, outcome, each))
                        told(f"set {start + each.number}: {outcome}: {each}")
                told(f"{start + len(sets)} sets")
        return Found(outcomes, differences)

    async def _prepare(self, count: int) -> None:
        await self._create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": HIGH}, "value": 100, "description": "another priority than that of pods"},
        )
        names = [random_set(0, number).namespace for number in range(count)]
        await run_concurrently(self._create("/api/v1/namespaces", {"metadata": {"name": name}}) for name in names)
        account = {"metadata": {"name": "default"}}
        await run_concurrently(self._create(f"/api/v1/namespaces/{name}/serviceaccounts", account) for name in names)

    async def _create(self, path: str, item: Object) -> None:
        try:
            await self._client.request("POST", path, item)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _compare(self, sets: Sequence[GroupSet]) -> dict[int, str]:
        """Return the outcome of each set by number."""
        try:
            await run_concurrently(self._node(each, node) for each in sets for node in each.nodes)
            await asyncio.sleep(SETTLE)
            theirs = await self._schedule(sets, "kube-scheduler")
            ours = await self._schedule(sets, "avactl")
        finally:
            await run_concurrently(self._drop(f"/api/v1/nodes/{node.name}") for each in sets for node in each.nodes)
        return {each.number: outcome(each, theirs[each.number], ours[each.number]) for each in sets}

    async def _node(self, given: GroupSet, node: FreeNode) -> None:
        labels = {"kubernetes.io/hostname": node.name, "example.com/set": str(given.number)}
        if node.rack:
            labels[RACK] = node.rack
        amounts = {"cpu": str(node.free[0]), "memory": f"{node.free[1]}Gi", "pods": "110"}
        status = {"capacity": amounts, "allocatable": amounts}
        await self._create("/api/v1/nodes", {"metadata": {"name": node.name, "labels": labels}, "status": status})
        # No controller removes the taint of nodes that are not ready.
        taints = [{"key": "example.com/closed", "effect": "NoSchedule"}] if node.tainted else []
        path = f"/api/v1/nodes/{node.name}"
        await self._client.request("PATCH", path, {"spec": {"taints": taints}}, content_type=MERGE)

    async def _schedule(self, sets: Sequence[GroupSet], scheduler: str) -> dict[int, Decision]:
        """Return what a scheduler makes of each set. PodGroups and pods are removed."""
        name = f"of-{scheduler}"
        await run_concurrently(self._submit(each, name, SCHEDULERS[scheduler]) for each in sets)
        try:
            return await self._decisions(sets, name, scheduler)
        finally:
            await run_concurrently(self._remove(each, name) for each in sets)

    async def _submit(self, given: GroupSet, name: str, scheduler: str) -> None:
        group = (GROUPS.format(given.namespace), given.group(name))
        pods = [(PODS.format(given.namespace), pod) for pod in given.members(name, scheduler)]
        for path, item in [*pods, group] if given.late else [group, *pods]:
            await self._create(path, item)

    async def _decisions(self, sets: Sequence[GroupSet], name: str, scheduler: str) -> dict[int, Decision]:
        seen: dict[int, Decision] = {}
        since, began = dict.fromkeys((each.number for each in sets), time.monotonic()), time.monotonic()
        while True:
            await asyncio.sleep(0.2)
            now, current = time.monotonic(), await self._look(sets, name)
            for number, decision in current.items():
                if seen.get(number) != decision:
                    since[number] = now
            seen = current
            open_sets = [
                each
                for each in sets
                if now - since[each.number] < STABLE
                or (not seen[each.number].condition[0] and len(each.pods) >= each.least)
            ]
            if not open_sets:
                return seen
            if now - began > PATIENCE:
                raise TimeoutError(f"{scheduler} says nothing of {open_sets[0]}: {seen[open_sets[0].number]}")

    async def _look(self, sets: Sequence[GroupSet], name: str) -> dict[int, Decision]:
        query = {"resourceVersion": "0"}
        pods = (await self._client.request("GET", "/api/v1/pods", query=query))["items"]
        groups = (await self._client.request("GET", GROUPS.replace("/namespaces/{}", ""), query=query))["items"]
        conditions = {
            item["metadata"]["namespace"]: (each["status"], each["reason"])
            for item in groups
            if item["metadata"]["name"] == name
            for each in (item.get("status") or {}).get("conditions") or ()
            if each["type"] == "PodGroupInitiallyScheduled"
        }
        places: dict[str, dict[int, str]] = {}
        for item in pods:
            metadata = item["metadata"]
            if metadata["name"].startswith(f"{name}-") and item["spec"].get("nodeName"):
                index = int(metadata["name"].rpartition("-")[2])
                places.setdefault(metadata["namespace"], {})[index] = item["spec"]["nodeName"]
        return {
            each.number: Decision(places.get(each.namespace, {}), conditions.get(each.namespace, ("", "")))
            for each in sets
        }

    async def _remove(self, given: GroupSet, name: str) -> None:
        await self._client.request("DELETE", PODS.format(given.namespace), {"gracePeriodSeconds": 0})
        path = f"{GROUPS.format(given.namespace)}/{name}"
        await self._drop(path)
        with suppress(ApiError):  # the controller that removes the finalizer does not run
            await self._client.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)

    async def _drop(self, path: str) -> None:
        try:
            await self._client.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise


def outcome(given: GroupSet, theirs: Decision, ours: Decision) -> str:
    """Return the outcome of a set."""
    before = 1 if given.on else 0
    mine, other = len(ours.places) > before, len(theirs.places) > before
    if wrong := defect(given, ours.places):
        return f"differ: {wrong} by avactl's {ours}; kube-scheduler: {theirs}"
    if mine != places_exist(given) or (other and not mine):
        return f"differ: avactl has {ours}, kube-scheduler {theirs}, places exist: {places_exist(given)}"
    if not given.least and len(ours.places) != len(theirs.places):
        return f"differ: avactl starts {ours}, kube-scheduler {theirs}"
    if mine == other and ours.condition != theirs.condition:
        return f"differ: avactl writes {ours.condition}, kube-scheduler {theirs.condition}"
    if mine:
        return "placed" if other else "only avactl places it"
    return "not placed"


def main() -> None:
    """Compare, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", type=int, default=500, help="random sets")
    parser.add_argument("--seed", type=int, default=1, help="of the sets")
    options = parser.parse_args()
    began = time.monotonic()
    with both_running() as plane:
        found = compare(plane, options.seed, options.sets, lambda line: print(line, flush=True))
    print(f"{options.sets} random PodGroups, seed {options.seed}, in {time.monotonic() - began:.0f} s")
    for name, count in found.outcomes.most_common():
        print(f"{name:28}{count:8}")
    compared = sum(found.outcomes[name] for name in COMPARED)
    bar(Bar("pod-groups-differences", len(found.differences), 0, digits=0))
    print(f"bar pod-groups-sets: {compared} (at least {options.sets}) {'ok' if compared >= options.sets else 'short'}")


if __name__ == "__main__":
    main()
