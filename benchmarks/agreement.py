"""Compare the decisions of avactl and kube-scheduler on random sets of nodes and pods without GPUs.

    python -m benchmarks.agreement [--sets 2000] [--seed 1]

Of every set, kube-scheduler and then avactl schedule one pod. They disagree if only one of them finds a node, or if one
of them does not bind a copy of the pod that fits only the node chosen by the other. A set with a difference is
repeated alone before it counts, because a scheduler's cache may have been stale.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import JSON, MERGE, ApiError, Client
from benchmarks.clusters import SCHEDULERS, run_concurrently, running
from benchmarks.measure import Bar, bar
from benchmarks.random_sets import OVERHEAD, Object, RandomSet, namespaces, random_set
from benchmarks.random_storage import CLASS, KEPT
from tools.controlplane import ControlPlane

SIDE_BY_SIDE = 100
"""Sets that are in the cluster at the same time."""
PROGRESS = 500
SETTLE = 1.0
"""Seconds until both schedulers have observed the nodes and pods of a set."""
PATIENCE = 180.0
COMPARED = ("a node", "no node", "differ")
PODS = "/api/v1/namespaces/{}/pods"
STORAGE = {
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
}


class Difference(NamedTuple):
    """A disagreement of the schedulers."""

    number: int
    what: str
    given: RandomSet


class Found(NamedTuple):
    """Results of all sets."""

    outcomes: Counter[str]
    differences: list[Difference]


def compare(plane: ControlPlane, seed: int, count: int, told: Callable[[str], None] = lambda _: None) -> Found:
    """Compare the schedulers, on a plane without controllers, on `count` sets of a seed."""
    return asyncio.run(_Comparison(plane, seed).all(count, told))


class _Comparison:
    def __init__(self, plane: ControlPlane, seed: int) -> None:
        self._access = from_kubeconfig(plane.kubeconfig)
        self._seed = seed
        self._client: Client
        self._words: dict[tuple[str, int], str] = {}
        """Last message of a scheduler about a set's pod that it did not bind."""

    async def all(self, count: int, told: Callable[[str], None]) -> Found:
        outcomes: Counter[str] = Counter()
        differences: list[Difference] = []
        async with Client(self._access, "comparison") as self._client:
            await self._prepare(min(count, SIDE_BY_SIDE))
            start = 0
            while (left := count - sum(outcomes[outcome] for outcome in COMPARED)) > 0:
                # Sets that the API server refuses do not count.
                sets = [random_set(self._seed + start, number) for number in range(min(SIDE_BY_SIDE, left))]
                found = await self._compare(sets)
                for each in sets:
                    outcome = found[each.number]
                    if outcome.startswith("differ"):
                        outcomes["tried again"] += 1
                        outcome = (await self._compare([each]))[each.number]
                    outcomes[outcome.partition(":")[0]] += 1
                    if outcome.startswith("differ"):
                        differences.append(Difference(start + each.number, outcome, each))
                        told(f"set {start + each.number}: {outcome}")
                start += SIDE_BY_SIDE
                if start % PROGRESS == 0:
                    told(f"{start} sets")
        return Found(outcomes, differences)

    async def _prepare(self, count: int) -> None:
        """Create namespaces and other prerequisites of pods."""
        overhead = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": OVERHEAD},
            "handler": OVERHEAD,
            "overhead": {"podFixed": {"cpu": "250m", "memory": "100Mi"}},
            "scheduling": {"tolerations": [{"key": "tier", "operator": "Exists"}]},
        }
        await self._create("/apis/node.k8s.io/v1/runtimeclasses", overhead)
        waits = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        await self._create("/apis/storage.k8s.io/v1/storageclasses", waits)
        labels = {name: each for number in range(count) for name, each in namespaces(number).items()}
        await run_concurrently(
            (
                self._create("/api/v1/namespaces", {"metadata": {"name": name, "labels": each}})
                for name, each in labels.items()
            )
        )
        account = {"metadata": {"name": "default"}}
        await run_concurrently(self._create(f"/api/v1/namespaces/{name}/serviceaccounts", account) for name in labels)

    async def _create(self, path: str, item: Object) -> str:
        """Create an object unless it exists; return the API server's refusal, or an empty string."""
        try:
            await self._client.request("POST", path, item)
        except ApiError as error:
            return "" if error.reason == "AlreadyExists" else str(error)
        return ""

    # -- sets side by side ------------------------------------------------------------------------------------------

    async def _compare(self, sets: Sequence[RandomSet]) -> dict[int, str]:
        """Return the outcome of each set by number."""
        try:
            refused = await self._stand(sets)
            taken = [each for each in sets if each.number not in refused]
            theirs = await self._schedule(taken, "kube-scheduler", {})
            ours = await self._schedule(taken, "avactl", {})
            # Does the node chosen by one pass the filters of the other?
            checked = await self._schedule(taken, "kube-scheduler", ours)
            passed = await self._schedule(taken, "avactl", theirs)
        finally:
            await self._clear(sets)
        outcomes = {number: f"refused by the API server: {why}" for number, why in refused.items()}
        for each in taken:
            number = each.number
            mine, other = ours[number], theirs[number]
            if mine and not other:
                word = f"differ: avactl takes {mine}, kube-scheduler none: {self._words['kube-scheduler', number]}"
            elif other and not mine:
                word = f"differ: kube-scheduler takes {other}, avactl none: {self._words['avactl', number]}"
            elif not mine:
                word = "no node"
            elif checked[number] != mine:
                word = f"differ: avactl takes {mine}, not let pass: {self._words['kube-scheduler', number]}"
            elif passed[number] != other:
                word = f"differ: kube-scheduler takes {other}, not let pass: {self._words['avactl', number]}"
            else:
                word = "a node"
            outcomes[number] = word
        return outcomes

    async def _stand(self, sets: Sequence[RandomSet]) -> dict[int, str]:
        """Create the existing nodes and pods; return the sets with a test pod that the API server refuses, and why."""
        await run_concurrently(self._node(node) for each in sets for node in each.nodes)
        await run_concurrently(self._keep(item) for each in sets for item in each.storage)
        await run_concurrently(self._standing(pod) for each in sets for pod in each.pods)
        refused = {}
        for each in sets:
            path = PODS.format(each.test["metadata"]["namespace"])
            try:
                await self._client.request("POST", path, each.pod("try", "nobody"), query={"dryRun": "All"})
            except ApiError as error:
                refused[each.number] = str(error)
        await asyncio.sleep(SETTLE)
        return refused

    async def _node(self, node: Object) -> None:
        """Create a node; remove the not-ready taint, because no controller does."""
        why = await self._create("/api/v1/nodes", node)
        if why:
            raise RuntimeError(why)
        path = f"/api/v1/nodes/{node['metadata']['name']}"
        body = {"spec": {"taints": node["spec"]["taints"]}}
        await self._client.request("PATCH", path, body, content_type=MERGE)

    async def _keep(self, item: Object) -> None:
        """Create volumes and claims as a controller would have bound them."""
        metadata = item["metadata"]
        path = STORAGE[item["kind"]].format(metadata.get("namespace"))
        await self._must(path, item)
        if "status" in item:
            body = {"status": item["status"]}
            await self._client.request("PATCH", f"{path}/{metadata['name']}/status", body, content_type=MERGE)
        if KEPT in metadata.get("finalizers", ()):
            # deleted, but held by its finalizer
            await self._client.request("DELETE", f"{path}/{metadata['name']}")

    async def _standing(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = PODS.format(metadata["namespace"])
        why = await self._create(path, pod)
        if why:
            raise RuntimeError(f"{why}: {pod}")
        if "ended" in metadata["labels"]:
            body = {"status": {"phase": "Succeeded"}}
            await self._client.request("PATCH", f"{path}/{metadata['name']}/status", body, content_type=MERGE)
        if "deleted" in metadata["labels"]:
            # No kubelet ends it.
            await self._client.request("DELETE", f"{path}/{metadata['name']}")

    async def _schedule(self, sets: Sequence[RandomSet], scheduler: str, pins: dict[int, str]) -> dict[int, str]:
        """Return the node that a scheduler gives each test pod, pinned to the node in `pins`. The pods are removed."""
        pods: dict[str, tuple[int, Object]] = {}
        for each in sets:
            if not pins or pins[each.number]:
                name = f"{'pin' if pins else 'test'}-{scheduler}"
                pod = each.pod(name, SCHEDULERS[scheduler], pins.get(each.number, ""))
                pods[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = (each.number, pod)
        await run_concurrently(self._must(PODS.format(pod["metadata"]["namespace"]), pod) for _, pod in pods.values())
        found: dict[int, str] = {}
        deadline = time.monotonic() + PATIENCE
        while pods.keys() and len(found) < len(pods):
            if time.monotonic() > deadline:
                missing = [key for key, (number, _) in pods.items() if number not in found]
                raise TimeoutError(f"{scheduler} says nothing of {', '.join(missing[:5])}")
            await asyncio.sleep(0.1)
            listed = await self._client.request("GET", "/api/v1/pods", query={"resourceVersion": "0"})
            for item in listed["items"]:
                key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                if key in pods and (answer := _answer(item)) is not None:
                    number = pods[key][0]
                    found[number], self._words[scheduler, number] = answer
        await run_concurrently(
            self._client.request("DELETE", f"{PODS.format(key.split('/')[0])}/{key.split('/')[1]}") for key in pods
        )
        return found

    async def _must(self, path: str, item: Object) -> None:
        why = await self._create(path, item)
        if why:
            raise RuntimeError(f"{why}: {item}")

    async def _clear(self, sets: Sequence[RandomSet]) -> None:
        now = {"gracePeriodSeconds": 0}
        await run_concurrently(
            self._client.request("DELETE", PODS.format(name), now) for each in sets for name in each.namespaces
        )
        await run_concurrently(
            self._drop(f"/api/v1/nodes/{node['metadata']['name']}") for each in sets for node in each.nodes
        )
        await run_concurrently(self._lose(item) for each in sets for item in each.storage)

    async def _lose(self, item: Object) -> None:
        metadata = item["metadata"]
        path = f"{STORAGE[item['kind']].format(metadata.get('namespace'))}/{metadata['name']}"
        await self._drop(path)
        await self._drop(path, "PATCH", {"metadata": {"finalizers": None}})

    async def _drop(self, path: str, method: str = "DELETE", body: Object | None = None) -> None:
        try:
            await self._client.request(method, path, body, content_type=MERGE if body else JSON)
        except ApiError as error:
            if error.status != 404:
                raise


def _answer(item: Object) -> tuple[str, str] | None:
    """Return a pod's node, or an empty node and the scheduler's message; None if the scheduler has not decided yet."""
    if item["spec"].get("nodeName"):
        return str(item["spec"]["nodeName"]), ""
    for each in item["status"].get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return "", str(each.get("message"))
    return None


def main() -> None:
    """Compare, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", type=int, default=2000, help="random sets")
    parser.add_argument("--seed", type=int, default=1, help="of the sets")
    options = parser.parse_args()
    began = time.monotonic()
    # No controllers: taints and pods stay as they are made.
    with ControlPlane() as plane, running(plane, "kube-scheduler"), running(plane, "avactl"):
        found = compare(plane, options.seed, options.sets, lambda line: print(line, flush=True))
    print(f"{options.sets} random sets of nodes and pods, seed {options.seed}, in {time.monotonic() - began:.0f} s")
    for outcome, count in found.outcomes.most_common():
        print(f"{outcome:28}{count:8}")
    compared = sum(found.outcomes[outcome] for outcome in COMPARED)
    bar(Bar("agreement-differences", len(found.differences), 0, digits=0))
    print(f"bar agreement-sets: {compared} (at least {options.sets}) {'ok' if compared >= options.sets else 'short'}")


if __name__ == "__main__":
    main()
