"""Runs the operations of one workload against an API server, for the pods of one scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypeVar

from avactl.base.object_identity import Gvk
from avactl.contracts.names import TEAM_LABEL
from avactl.kube.client import MERGE, ApiError, Client, UnreachableError
from avactl.kube.object_client import ApiResource, ObjectClient
from benchmarks.clusters import run_concurrently
from benchmarks.scheduler_perf import configurations as model
from benchmarks.scheduler_perf import objects, templates
from benchmarks.scheduler_perf.allocation import Allocation
from benchmarks.scheduler_perf.pods import Binding, Pod, PodWatch
from benchmarks.scheduler_perf.templates import Manifest
from tools.waiting import patience

WRITERS = 30
"""Concurrent requests that create pods, as in upstream's executor."""
STEADY_PODS = 20
STEADY_S = 45.0
"""A steady state goes on for so long at most until so many pods are bound: fewer say nothing about a rate."""
POLL_INTERVAL_S = 0.05
RETRY_INTERVAL_S = 1.0
RETRY_S = 20.0
REQUEST_TIMEOUT_S = 300.0
MAX_SHOWN_CHARS = 300
TEAM = "scheduler-perf"
"""Team of all namespaces: avactl preempts for priority within a team only, and a namespace without one is its own."""
_T = TypeVar("_T")
_RETRIED = frozenset({429, 500, 503, 504})
_SCHEDULED, _ATTEMPTED = "Scheduled", "Attempted"
_CLAIMS = Gvk(objects.DEVICES_API, "ResourceClaim")
_SLICES = Gvk(objects.DEVICES_API, "ResourceSlice")
_CLASSES = Gvk(objects.DEVICES_API, "DeviceClass")
_PODS = Gvk("v1", "Pod")
_NODES = Gvk("v1", "Node")
_NAMESPACES = Gvk("v1", "Namespace")


class StallError(Exception):
    """Pods stay pending: none was bound or attempted for some time; the message has the first one's reason."""


class Measurement(NamedTuple):
    """Pods that were bound while metrics were collected."""

    pods: int
    seconds: float
    """From the start of the collection to the last binding; with a steady state, to its end."""
    latencies: tuple[float, ...]
    """Seconds from a pod's creation to its binding, as one watch shows them."""


class _Collection(NamedTuple):
    namespaces: frozenset[str]
    labels: Mapping[str, str]
    began: float
    first: int


class Executor:
    """One run. Use it in an `async with` block, which removes everything that it has created."""

    def __init__(self, client: Client, scheduler_name: str, stall_s: float) -> None:
        self._client = client
        self._objects = ObjectClient(client, patience=REQUEST_TIMEOUT_S)
        self._scheduler_name, self._stall_s = scheduler_name, patience(stall_s)
        self._watch = PodWatch(client)
        self._created: dict[tuple[Gvk, str], None] = {}
        """Kinds and namespaces of what was created, in that order."""
        self._awaited: dict[str, int] = {}
        """Pods by namespace that were created without waiting for them."""
        self._namespaces: set[str] = set()
        self._next_node = 0
        self._background: list[asyncio.Task[None]] = []
        self._collection: _Collection | None = None
        self.measurements: list[Measurement] = []

    async def __aenter__(self) -> Executor:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._background:
            task.cancel()
        for task in self._background:
            with suppress(asyncio.CancelledError):
                await task
        await self._watch.__aexit__()
        await self._remove_everything()

    async def run(self, case: model.Case, workload: model.Workload) -> None:
        """Run all operations. Raises StallError if pods stay pending, ApiError for what the API server refuses."""
        for number, operation in enumerate(model.unroll(case, workload)):
            await self._run(case, number, operation)
            for task in self._background:
                if task.done() and (error := task.exception()) is not None:
                    raise error

    @property
    def bound(self) -> int:
        """Pods that were bound so far, measured or not."""
        return len(self._watch.bindings)

    def pending(self) -> list[Pod]:
        """Return the pods of this run that have no node now."""
        return [pod for pod in self._watch.select(frozenset(self._namespaces), {}) if not pod.node]

    async def _run(self, case: model.Case, number: int, operation: model.Operation) -> None:
        match operation:
            case model.CreateNodes():
                await self._create_nodes(case.folder, number, operation)
            case model.CreateNamespaces():
                await self._create_namespaces(case.folder, operation)
            case model.CreatePods():
                await self._create_pods(case, number, operation)
            case model.DeletePods():
                await self._delete_pods(operation)
            case model.CreateAny() | model.CreateResourceClaims():
                path = case.folder / operation.template_path
                if operation.namespace:
                    await self._ensure_namespace(operation.namespace)
                await self._create_all(
                    self._in_namespace(templates.render(path, index, operation.count), operation.namespace)
                    for index in range(operation.count)
                )
            case model.UpdateAny():
                await self._update_any(case.folder, operation)
            case model.CreateResourceDriver():
                names = [node["metadata"]["name"] for node in await self._list(_NODES)]
                await self._create_all(
                    objects.resource_slice(operation.driver_name, name, operation.max_claims_per_node)
                    for name in names
                    if fnmatchcase(name, operation.nodes)
                )
            case model.AllocResourceClaims():
                await self._allocate_claims(operation.namespace)
            case model.Churn():
                await self._start_churn(case.folder, number, operation)
            case model.Barrier():
                await self._pass_barrier(operation)
            case model.Sleep():
                await asyncio.sleep(operation.duration)
            case model.StartCollectingMetrics():
                self._start_collecting(operation.namespaces, operation.label_selector)
            case model.StopCollectingMetrics():
                self._stop_collecting()
            case model.CreatePodSets():
                raise AssertionError("sets of pods are unrolled")

    # -- nodes, namespaces and pods ---------------------------------------------------------------------------------

    async def _create_nodes(self, folder: Path, number: int, operation: model.CreateNodes) -> None:
        nodes, csi_nodes = [], []
        for index in range(operation.count):
            if operation.node_template_path is None:
                node = objects.base_node(f"node-{number}-")
            else:
                node = templates.render(folder / operation.node_template_path, index, operation.count)
            metadata = node["metadata"]
            name = metadata.setdefault("name", f"{metadata.pop('generateName', '')}{self._next_node:05}")
            labels = metadata.setdefault("labels", {})
            labels["kubernetes.io/hostname"] = name
            if (strategy := operation.label_node_prepare_strategy) is not None:
                labels[strategy.label_key] = strategy.label_values[index % len(strategy.label_values)]
            if (unique := operation.unique_node_label_strategy) is not None:
                labels[unique.label_key] = name
            if (limits := operation.node_allocatable_strategy) is not None:
                allocatable = node["status"].get("allocatable") or node["status"]["capacity"]
                node["status"]["allocatable"] = {**allocatable, **limits.node_allocatable}
                csi_nodes.append(objects.csi_node(name, limits))
            nodes.append(node)
            self._next_node += 1
        await self._create_all(csi_nodes)
        await self._create_all(nodes)

    async def _create_namespaces(self, folder: Path, operation: model.CreateNamespaces) -> None:
        template: Manifest = {}
        if operation.namespace_template_path is not None:
            template = templates.read(folder / operation.namespace_template_path)
        for index in range(operation.count):
            name = f"{operation.prefix}-{index}"
            await self._ensure_namespace(name, template.get("metadata", {}).get("labels", {}))

    async def _ensure_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace, or give one that an earlier run has left the labels of a new one."""
        self._awaited.setdefault(name, 0)
        if name in self._namespaces:
            return
        self._namespaces.add(name)
        metadata = {"name": name, "labels": {**(labels or {}), TEAM_LABEL: TEAM}}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        resource = await self._resource(_NAMESPACES)
        try:
            await self._request("POST", resource.path(""), body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            await self._request("PUT", resource.path("", name), body)

    async def _create_pods(self, case: model.Case, number: int, operation: model.CreatePods) -> None:
        namespace = operation.namespace if operation.namespace is not None else f"namespace-{number}"
        await self._ensure_namespace(namespace)
        template = operation.pod_template_path or case.default_pod_template_path
        path = case.folder / template if template else None
        if operation.collect_metrics:
            self._start_collecting([namespace], {})
        if operation.steady_state:
            await self._create_pods_steadily(path, namespace, operation)
        else:
            if operation.persistent_volume_claim_template_path is not None:
                await self._create_pods_with_volumes(case.folder, path, namespace, operation)
            else:
                await self._create_all(self._pods(path, namespace, operation.count))
            if operation.skip_wait_to_completion:
                self._awaited[namespace] += operation.count
            else:
                await self._wait_for_pods(namespace, operation.count, {}, _SCHEDULED)
        if operation.collect_metrics:
            self._stop_collecting(steady=operation.steady_state)

    def _pods(self, path: Path | None, namespace: str, count: int) -> Iterable[Manifest]:
        for index in range(count):
            pod = objects.base_pod() if path is None else templates.render(path, index, count)
            yield self._in_namespace(pod, namespace)

    async def _create_pods_with_volumes(
        self, folder: Path, path: Path | None, namespace: str, operation: model.CreatePods
    ) -> None:
        claim_path = operation.persistent_volume_claim_template_path
        volume_path = operation.persistent_volume_template_path
        if claim_path is None or volume_path is None:
            raise model.ConfigurationError("a template of claims needs one of volumes")
        claim, volume = templates.read(folder / claim_path), templates.read(folder / volume_path)

        async def create(index: int, pod: Manifest) -> None:
            for body in (
                objects.bound_claim(claim, namespace, index),
                objects.bound_volume(volume, namespace, index),
            ):
                # The API server resets the status of new objects.
                created = await self._create(body)
                await self._replace({**created, "status": body["status"]}, "status")
            pod["spec"]["volumes"] = [{"name": "vol", "persistentVolumeClaim": {"claimName": f"pvc-{index}"}}]
            await self._create(pod)

        pods = self._pods(path, namespace, operation.count)
        await run_concurrently((create(index, pod) for index, pod in enumerate(pods)), WRITERS)

    async def _create_pods_steadily(self, path: Path | None, namespace: str, operation: model.CreatePods) -> None:
        """Create pods, delete them once all are bound, and begin again until the time is over."""
        began, before = time.monotonic(), len(self._watch.bindings)
        pods = (await self._resource(_PODS)).path(namespace)

        def is_over() -> bool:
            enough = len(self._watch.bindings) - before >= STEADY_PODS
            return time.monotonic() - began > (operation.duration if enough else max(operation.duration, STEADY_S))

        while not is_over():
            wanted = len(self._watch.bindings) + operation.count

            def is_done(wanted: int = wanted) -> bool:
                return len(self._watch.bindings) >= wanted or is_over()

            await self._create_all(self._pods(path, namespace, operation.count))
            await self._wait(is_done, frozenset({namespace}))
            await self._request("DELETE", pods, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})

    async def _delete_pods(self, operation: model.DeletePods) -> None:
        chosen = list(self._watch.select(frozenset({operation.namespace}), operation.label_selector))
        resource = await self._resource(_PODS)

        async def delete() -> None:
            async for pod in _paced(chosen, operation.delete_pods_per_second):
                try:
                    await self._request("DELETE", resource.path(pod.namespace, pod.name))
                except ApiError as error:
                    if error.status != 404:
                        raise

        if operation.skip_wait_to_completion:
            self._background.append(asyncio.create_task(delete()))
        else:
            await delete()

    # -- objects of any kind ----------------------------------------------------------------------------------------

    async def _update_any(self, folder: Path, operation: model.UpdateAny) -> None:
        async for index in _paced(range(operation.count), operation.update_per_second):
            path = folder / operation.template_path
            body = self._in_namespace(templates.render(path, index, operation.count), operation.namespace)
            await self._replace(body, *operation.subresources)
            await self._replace(body, "status")

    async def _start_churn(self, folder: Path, number: int, operation: model.Churn) -> None:
        namespace = operation.namespace if operation.namespace is not None else f"namespace-{number}"
        await self._ensure_namespace(namespace)
        bodies = [templates.read(folder / path) for path in operation.template_paths]
        resources = [await self._resource(Gvk(body["apiVersion"], body["kind"])) for body in bodies]
        places = [namespace if resource.namespaced else "" for resource in resources]
        live: list[list[str]] = [[""] * operation.number for _ in bodies]

        async def churn() -> None:
            cycle = 0
            while operation.mode == "recreate" or not operation.number or cycle < operation.number:
                await asyncio.sleep(operation.interval_milliseconds / 1000)
                for body, resource, place, names in zip(bodies, resources, places, live, strict=True):
                    slot = cycle % operation.number if operation.mode == "recreate" else -1
                    if slot >= 0 and names[slot]:
                        await self._request("DELETE", resource.path(place, names[slot]))
                        names[slot] = ""
                        continue
                    created = await self._create(self._in_namespace(body, place))
                    if slot >= 0:
                        names[slot] = created["metadata"]["name"]
                cycle += 1

        self._background.append(asyncio.create_task(churn()))

    async def _allocate_claims(self, namespace: str) -> None:
        classes = {item["metadata"]["name"]: item for item in await self._list(_CLASSES)}
        allocation = Allocation(await self._list(_SLICES), classes)
        resource = await self._resource(_CLAIMS)
        claims = await self._list(_CLAIMS, namespace)

        async def write(claim: Manifest) -> None:
            metadata = claim["metadata"]
            path = f"{resource.path(metadata['namespace'], metadata['name'])}/status"
            await self._request("PUT", path, {**claim, "status": {"allocation": allocation.allocate(claim)}})

        await run_concurrently(
            (write(claim) for claim in claims if "allocation" not in claim.get("status", {})), WRITERS
        )

    def _in_namespace(self, body: Manifest, namespace: str) -> Manifest:
        """Return an object in a namespace; a pod is for the scheduler of this run."""
        metadata = {**body["metadata"], **({"namespace": namespace} if namespace else {})}
        if body["kind"] == "Pod":
            return {**body, "metadata": metadata, "spec": {**body["spec"], "schedulerName": self._scheduler_name}}
        return {**body, "metadata": metadata}

    async def _create_all(self, bodies: Iterable[Manifest]) -> None:
        await run_concurrently((self._create(body) for body in bodies), WRITERS)

    async def _create(self, body: Manifest) -> Manifest:
        gvk = Gvk(body["apiVersion"], body["kind"])
        resource = await self._resource(gvk)
        namespace = body["metadata"].get("namespace", "")
        self._created[gvk, namespace] = None
        created: Manifest = await self._request("POST", resource.path(namespace), body)
        return {"apiVersion": body["apiVersion"], "kind": body["kind"], **created}

    async def _replace(self, body: Manifest, *subresources: str) -> None:
        metadata = body["metadata"]
        resource = await self._resource(Gvk(body["apiVersion"], body["kind"]))
        path = "/".join([resource.path(metadata.get("namespace", ""), metadata["name"]), *subresources])
        await self._request("PUT", path, body)

    async def _list(self, gvk: Gvk, namespace: str = "") -> list[Manifest]:
        await self._resource(gvk)
        return await self._objects.items(gvk, namespace=namespace)

    async def _resource(self, gvk: Gvk) -> ApiResource:
        if await self._objects.find_kinds({gvk}):
            raise model.ConfigurationError(f"the API server serves no {gvk.kind} in {gvk.api_version}")
        return self._objects.resource(gvk)

    async def _request(self, method: str, path: str, body: Manifest | None = None, content_type: str = "") -> Manifest:
        """Send a request, again if the API server cannot answer it now."""
        ends = time.monotonic() + RETRY_S
        query = {"fieldValidation": "Strict"} if method in ("POST", "PUT") else None
        while True:
            try:
                options = {"content_type": content_type} if content_type else {}
                answer: Manifest = await self._client.request(
                    method, path, body, query=query, timeout=REQUEST_TIMEOUT_S, **options
                )
            except (ApiError, UnreachableError) as error:
                if (isinstance(error, ApiError) and error.status not in _RETRIED) or time.monotonic() > ends:
                    raise
                await asyncio.sleep(RETRY_INTERVAL_S)
            else:
                return answer

    # -- waiting and measuring --------------------------------------------------------------------------------------

    async def _pass_barrier(self, operation: model.Barrier) -> None:
        for namespace in operation.namespaces or list(self._awaited):
            if namespace not in self._awaited:
                raise model.ConfigurationError(f"barrier: unknown namespace {namespace}")
            stage = operation.stage_requirement
            await self._wait_for_pods(namespace, self._awaited[namespace], operation.label_selector, stage)
            if stage == _SCHEDULED and operation.namespaces:
                del self._awaited[namespace]
        if operation.stage_requirement == _SCHEDULED and not operation.namespaces:
            self._awaited.clear()

    async def _wait_for_pods(self, namespace: str, count: int, labels: Mapping[str, str], stage: str) -> None:
        namespaces = frozenset({namespace})

        def is_done() -> bool:
            pods = self._watch.select(namespaces, labels)
            return sum(1 for pod in pods if pod.node or (stage == _ATTEMPTED and pod.attempted)) >= count

        await self._wait(is_done, namespaces)

    async def _wait(self, is_done: Callable[[], bool], namespaces: frozenset[str]) -> None:
        """Wait for pods of namespaces. Raises StallError if none is bound or attempted for some time."""
        progress, since = self._watch.progress, time.monotonic()
        while not is_done():
            await asyncio.sleep(POLL_INTERVAL_S)
            if self._watch.progress != progress:
                progress, since = self._watch.progress, time.monotonic()
            elif time.monotonic() - since > self._stall_s:
                pending = [pod for pod in self._watch.select(namespaces, {}) if not pod.node]
                first = pending[0].message or "not attempted" if pending else "too few pods"
                raise StallError(f"{len(pending)} pods of {', '.join(namespaces)} stay pending: {_shorten(first)}")

    def _start_collecting(self, namespaces: Sequence[str], labels: Mapping[str, str]) -> None:
        if self._collection is not None:
            raise model.ConfigurationError("metrics are collected already")
        self._collection = _Collection(frozenset(namespaces), labels, time.monotonic(), len(self._watch.bindings))

    def _stop_collecting(self, *, steady: bool = False) -> None:
        collection, self._collection = self._collection, None
        if collection is None:
            raise model.ConfigurationError("metrics are not collected")
        bindings = [
            binding for binding in self._watch.bindings[collection.first :] if _is_measured(binding, collection)
        ]
        last = max((binding.bound for binding in bindings), default=collection.began)
        ended = time.monotonic() if steady else last
        latencies = tuple(sorted(binding.bound - binding.created for binding in bindings))
        self.measurements.append(Measurement(len(bindings), ended - collection.began, latencies))

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _remove_everything(self) -> None:
        kinds = {**self._created, **{(_CLAIMS, namespace): None for namespace in self._namespaces}}
        # Pods first: controllers and schedulers act on what pods refer to.
        for gvk, namespace in sorted(kinds, key=lambda kind: kind[0] != _PODS):
            resource = await self._resource(gvk)
            ends = time.monotonic() + patience()
            with suppress(ApiError):  # what a timeout of the API server leaves is deleted one by one
                await self._request("DELETE", resource.path(namespace), {"gracePeriodSeconds": 0})
            while left := await self._list(gvk, namespace):
                if time.monotonic() > ends:
                    raise TimeoutError(f"{len(left)} objects of kind {gvk.kind} are not deleted")
                await run_concurrently((self._delete_now(resource, item) for item in left), WRITERS)

    async def _delete_now(self, resource: ApiResource, item: Manifest) -> None:
        """Delete an object that is still there: new since, kept by a finalizer, or a pod that no kubelet ends."""
        metadata = item["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"])
        try:
            if metadata.get("finalizers"):
                await self._request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
            await self._request("DELETE", path, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise


def _is_measured(binding: Binding, collection: _Collection) -> bool:
    return binding.namespace in collection.namespaces and collection.labels.items() <= binding.labels.items()


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


async def _paced(items: Iterable[_T], per_second: int) -> AsyncIterator[_T]:
    """Yield items at a rate; at once without one."""
    due = time.monotonic()
    for item in items:
        if per_second:
            due += 1 / per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        yield item
