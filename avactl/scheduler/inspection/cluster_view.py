"""A read-only view of a cluster, with the permissions of a kubeconfig and without the scheduler daemon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from avactl.base.object_identity import controller_of, namespaced_name
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.pod_annotations import CHECKPOINT_EVERY
from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.allocation import MAX_GPUS, MILLI_PER_GPU
from avactl.hardware.placement.expected_workload import Workload
from avactl.hardware.placement.request import Request
from avactl.kube.client import ApiError, Client
from avactl.kube.live_view import LiveView
from avactl.kube.reflector import ObjectReceiver, Reflector
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.handlers import resources
from avactl.scheduler.objects.node_rules import RuleError
from avactl.scheduler.objects.pod_info import PodInfo, read_pod
from avactl.scheduler.objects.watch_store import CallbackStore

STORAGE_RESOURCES = ("persistentvolumeclaims", "persistentvolumes", "storageclasses")
"""Storage objects that users may read."""
GANG_RESOURCE = "podgroups"
"""Objects that make pods a gang."""
MAX_INTERVAL_DIGITS = 10
"""Digits of the seconds between two checkpoints: pods' owners write the annotation."""


class ClusterView(LiveView):
    """Nodes, pools, quotas and pods, as far as the API server shows them."""

    def __init__(self, client: Client, system_namespace: str, namespace: str = "", with_volumes: bool = False) -> None:
        """`namespace`: that whose pods are read where those of all namespaces are not shown."""
        self._with_volumes = with_volumes
        super().__init__()
        self.client, self._system, self._namespace = client, system_namespace, namespace
        self.cluster = ""
        # Until `load` has read the policy: no levels, and a driver that no device has.
        self._use_policy(
            PlacementPolicy(cluster="unknown", system_namespace=system_namespace, levels=(), gpu_driver="unknown")
        )
        self.strangers: dict[str, PodInfo] = {}
        """Pods without a node that are another scheduler's, by `namespace/name`."""
        self.checkpoints: dict[str, tuple[float, str]] = {}
        """Checkpoint interval in seconds and start time of pods with checkpoints, by UID."""
        self.claims: dict[str, dict[str, Any]] = {}
        """ResourceClaims that were made for one pod, by `namespace/name`."""
        self.freed_requests: dict[str, Request] = {}
        """Pods, by uid, whose claims are thought of as not allocated, and what they then ask for."""
        self.owned: set[str] = set()
        """UIDs of pods that a controller recreates."""
        self.messages: dict[str, str] = {}
        """Messages of pending pods of other schedulers, by `namespace/name`."""
        self.hidden: dict[str, str] = {}
        """Kinds that the API server does not show, and what it says."""
        self.broken: dict[str, str] = {}
        """ConfigMaps of pools and quotas that cannot be read, by `namespace/name`, and why."""

    def _use_policy(self, policy: PlacementPolicy) -> None:
        """Start with an empty cache for a placement policy."""
        self.cache = ClusterCache(policy.widest_first, DraManager(policy.gpu_driver))
        self.constraints = ConstraintSet(self.cache, policy)

    async def load(self) -> None:
        """Read all objects once; those that RBAC hides are listed in `hidden`. Raises ApiError and UnreachableError."""
        policy = await self._policy()
        if policy is not None:
            self.cluster = policy.cluster
            self._use_policy(policy)
        for reflector in self._watched():
            try:
                await reflector.load()
            except ApiError as error:
                if error.forbidden:
                    self.hidden[reflector.kind] = str(error)
                elif error.status != 404:  # a kind that this server does not serve
                    raise
            else:
                self._reflectors.append(reflector)
        if "pods" in self.hidden and self._namespace:
            mine = self._pod_reflector(f"/namespaces/{self._namespace}")
            await mine.load()
            self._reflectors.append(mine)
        self.fresh()

    def fresh(self) -> None:
        """Update the cluster cache; call it before reading. The expected workload is the current one."""
        if self.cache.tables.stale:
            self.cache.rebuild()

    @property
    def now(self) -> datetime:
        """The current time by the local clock."""
        return datetime.now(UTC)

    def expected(self) -> Workload:
        """Return the expected workload: that of the current pods."""
        workload = Workload(float("inf"))
        for pod in self.cache.tables.pods.values():
            if pod.managed and not pod.ended and not pod.shape.refused:
                request = self._asked(pod)
                if request is not None and request.gpus:
                    workload.add(request)
        return workload

    def _asked(self, pod: PodInfo) -> Request | None:
        """Return the placement request of a running or pending pod; None if it has no valid one."""
        cache = self.cache
        try:
            request = cache.requests.request(pod.shape, cache.dra.demand(pod) if cache.claims.concern(pod) else None)
        except RuleError:
            return None
        if pod.claims and pod.node and not request.gpus:
            # Claims that have their devices ask for nothing any more.
            model = cache.tables.model_of(pod.node) if pod.node in cache.tables.nodes else ""
            gpus = min(cache.claims.held_gpus(pod) // MILLI_PER_GPU, MAX_GPUS)
            return replace(request, gpus=gpus, models=frozenset({model} if model else ()))
        return request

    def pods(self) -> Iterator[PodInfo]:
        """Pods that hold resources or are pending."""
        for pod in (*self.cache.tables.pods.values(), *self.strangers.values()):
            if not pod.ended:
                yield pod

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _policy(self) -> PlacementPolicy | None:
        path = f"/api/v1/namespaces/{self._system}/configmaps/{names.POLICY}"
        try:
            item = await self.client.request("GET", path)
            return load(PlacementPolicy, (item.get("data") or {}).get(names.POLICY_KEY))
        except ApiError as error:
            if error.status != 404 and not error.forbidden:
                raise
            self.hidden["policy"] = str(error)
        except DocumentError as error:
            self.hidden["policy"] = f"ConfigMap {self._system}/{names.POLICY} is not a placement policy: {error}"
        return None

    def _watched(self) -> list[Reflector]:
        cache, dra = self.cache, "/apis/resource.k8s.io/v1"

        def reflect(path: str, store: ObjectReceiver, **more: Any) -> Reflector:
            return Reflector(self.client, path, store, **more)

        configs = resources.ConfigMapHandler(cache, cache.quotas.put_quota)
        self.broken = configs.broken
        return [
            reflect(
                f"/api/v1/namespaces/{self._system}/configmaps", configs, query={"labelSelector": names.CONFIG_LABEL}
            ),
            reflect("/api/v1/nodes", resources.nodes(cache)),
            reflect("/api/v1/namespaces", resources.namespaces(cache)),
            reflect(f"{dra}/resourceslices", resources.slices(cache)),
            reflect(f"{dra}/deviceclasses", resources.device_classes(cache)),
            reflect(
                f"{dra}/resourceclaims",
                CallbackStore(self.put_claim, self.drop_claim, cache.claims.known),
            ),
            *self._constraint_reflectors(),
            self._pod_reflector(),
        ]

    def _constraint_reflectors(self) -> list[Reflector]:
        wanted = (GANG_RESOURCE, *(STORAGE_RESOURCES if self._with_volumes else ()))
        return [
            Reflector(self.client, watch.path, watch.store)
            for watch in self.constraints.watches()
            if watch.resource in wanted
        ]

    def _pod_reflector(self, inside: str = "") -> Reflector:
        store = CallbackStore(self.put_pod, self.drop_pod, lambda: [*self.cache.pod_keys(), *self.strangers])
        return Reflector(self.client, f"/api/v1{inside}/pods", store)

    def put_claim(self, item: dict[str, Any]) -> None:
        """Add or update a ResourceClaim."""
        if item["metadata"].get("ownerReferences"):
            self.claims[namespaced_name(item)] = item
        self.cache.claims.put(item)

    def drop_claim(self, key: str) -> None:
        """Remove a ResourceClaim, by `namespace/name`."""
        self.claims.pop(key, None)
        self.cache.claims.drop(key)

    def put_pod(self, item: dict[str, Any]) -> None:
        """Add or update a pod."""
        metadata = item["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        self.strangers.pop(key, None)
        before, pod = self.cache.tables.pods.get(key), self.cache.put_pod(item)
        if before is not None and self.cache.tables.pods.get(key) is not before:
            self._forget_pod(before)
        if pod is not None:
            if key in self.cache.tables.pods:
                every = (metadata.get("annotations") or {}).get(CHECKPOINT_EVERY.name, "")
                if every.isdecimal() and len(every) <= MAX_INTERVAL_DIGITS:
                    self.checkpoints[pod.uid] = (float(every), (item.get("status") or {}).get("startTime") or "")
                if controller_of(metadata):
                    self.owned.add(pod.uid)
            return
        pod = read_pod(item, 0.0)
        if not pod.ended and not pod.deleting:
            self.strangers[key] = pod
            conditions = (item.get("status") or {}).get("conditions") or ()
            said = [each.get("message") or "" for each in conditions if each["type"] == "PodScheduled"]
            self.messages[key] = said[0] if said else ""

    def drop_pod(self, key: str) -> None:
        """Remove a pod, by `namespace/name`."""
        pod = self.cache.drop_pod(key)
        if pod is not None:
            self._forget_pod(pod)
        self.strangers.pop(key, None)
        self.messages.pop(key, None)

    def _forget_pod(self, pod: PodInfo) -> None:
        self.checkpoints.pop(pod.uid, None)
        self.owned.discard(pod.uid)
