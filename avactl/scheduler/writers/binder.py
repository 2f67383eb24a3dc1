"""Concurrent bindings, each of which is settled even if the API server fails or does not respond."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any

from avactl.contracts.names import CLAIM_FINALIZER
from avactl.contracts.pod_annotations import DEVICES
from avactl.kube import logs
from avactl.kube.client import MERGE, STRATEGIC, ApiError, Client, Rate, UnreachableError
from avactl.kube.timestamps import timestamp
from avactl.scheduler import metrics
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.extended_resources import claim_body, pod_status
from avactl.scheduler.dra.resource_claim import ResourceClaim
from avactl.scheduler.interfaces import BindRequest, ClaimAllocation
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.storage_objects import SELECTED_NODE, LiveVolume, VolumeClaim
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.writers.pod_reporter import PodReporter

FIRST_WORKERS, BINDING_WORKERS = 8, 64
GROW_INTERVAL_S = 0.02
"""Each worker needs a connection, whose handshake costs as much as several bindings: one is added in this interval, in
seconds, while bindings wait."""
MAX_BINDINGS_IN_FLIGHT = 512
"""Number of bindings at which no more units are decided."""
MAX_BINDING_TRIES = 6
PROVISION_TIMEOUT_S, POLL_INTERVAL_S = 600.0, 0.2
"""Timeout of volume provisioning (kube-scheduler's bindTimeoutSeconds) and polling interval, in seconds."""
UNCONFIRMED_AFTER_S = 60.0
"""Time after which a pod that the watch does not show as bound is read from the API server."""


REFUSED = "refused"
"""Result of a binding that the API server rejected; an immediate retry would not help."""


class LeadershipLostError(Exception):
    """Another replica may be the leader, so decisions of this replica must not be executed."""


class Binder:
    """Sends bindings. Calls `failed` with pods whose binding failed and its result; `leading` returns whether this
    replica may still write."""

    def __init__(
        self,
        client: Client,
        rate: Rate,
        cache: ClusterCache,
        reporter: PodReporter,
        failed: Callable[[PodInfo, str], None],
        leading: Callable[[], bool],
    ) -> None:
        self._client, self._rate, self._cache, self._reporter = client, rate, cache, reporter
        self._failed, self._leading, self._volumes = failed, leading, cache.volumes
        self._tasks: set[asyncio.Task[None]] = set()
        self._orders: deque[BindRequest] = deque()
        self._ready = asyncio.Semaphore(0)
        self._has_capacity = asyncio.Event()
        self._has_capacity.set()
        self._busy = 0
        self._workers = FIRST_WORKERS
        self._crowded = asyncio.Event()
        """Set when a binding waits for a worker."""
        self._deallocations: dict[str, asyncio.Task[None]] = {}
        self.assumed: dict[str, tuple[PodInfo, float]] = {}
        """Pods whose binding succeeded but is not visible in the watch yet, with the time of the binding."""

    @property
    def in_flight(self) -> int:
        """Number of bindings in flight."""
        return len(self._orders) + self._busy

    def put(self, order: BindRequest) -> None:
        """Bind an assumed pod."""
        if order.volumes:
            chosen = self._volumes.assign(order.pod, order.volumes, order.node)
            self._start_task(self._provision(order, chosen))
            return
        self._orders.append(order)
        if self.in_flight >= MAX_BINDINGS_IN_FLIGHT:
            self._has_capacity.clear()
        self._ready.release()
        if self.in_flight > self._workers:
            self._crowded.set()

    async def _provision(self, order: BindRequest, chosen: Mapping[str, tuple[LiveVolume, VolumeClaim]]) -> None:
        """Have volumes bound or provisioned on the node, then bind. A driver can take minutes to provision one."""
        pod = order.pod
        made = [name for name in order.volumes if name not in chosen]
        if not all(self._volumes.is_provisioned(pod, name) for name in made):
            # Another member of its gang got the available volume.
            self._volumes.end_assignment(volume for volume, _ in chosen.values())
            self._give_up(pod, "no-volume")
            return
        try:
            for volume, claim in chosen.values():
                await self._bind_volume(volume, claim)
            for name in made:
                body = {"metadata": {"annotations": {SELECTED_NODE: order.node}}}
                await self._rate.take()
                path = f"/api/v1/namespaces/{pod.namespace}/persistentvolumeclaims/{name}"
                item = await self._client.request("PATCH", path, body, content_type=MERGE)
                self._volumes.put_claim(item)
            async with asyncio.timeout(PROVISION_TIMEOUT_S):
                while not self._volumes.are_bound(pod):
                    if not all(self._volumes.has_volume_on(pod, name, order.node) for name in made):
                        # The driver removed the annotation: it cannot provision the volume there.
                        self._give_up(pod, "no-volume")
                        return
                    await asyncio.sleep(POLL_INTERVAL_S)
        except (ApiError, UnreachableError, TimeoutError) as error:
            logs.warn("volumes not provisioned", pod=pod.key, node=order.node, error=str(error))
            self._give_up(pod, "no-volume")
            return
        finally:
            self._volumes.end_assignment(volume for volume, _ in chosen.values())
        self.put(order._replace(volumes=()))

    async def _bind_volume(self, volume: LiveVolume, claim: VolumeClaim) -> None:
        """Set the claim of an available volume; the controller does the rest. Raises ApiError if it is taken."""
        body: dict[str, Any] = {"metadata": {"uid": volume.uid, "resourceVersion": volume.version}}
        if volume.owner is None:
            body["metadata"]["annotations"] = {"pv.kubernetes.io/bound-by-controller": "yes"}
        owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace, "name": claim.name}
        body["spec"] = {"claimRef": {**owner, "uid": claim.uid}}
        await self._rate.take()
        path = f"/api/v1/persistentvolumes/{volume.name}"
        self._volumes.put_volume(await self._client.request("PATCH", path, body, content_type=MERGE))

    async def wait_for_capacity(self) -> None:
        """Wait until fewer bindings are in flight than the limit."""
        await self._has_capacity.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(FIRST_WORKERS):
                group.create_task(self._bind_orders())
            group.create_task(self._check_unconfirmed())
            while self._workers < BINDING_WORKERS:
                if self.in_flight <= self._workers:
                    await self._crowded.wait()
                self._crowded.clear()
                group.create_task(self._bind_orders())
                self._workers += 1
                await asyncio.sleep(GROW_INTERVAL_S)

    async def _bind_orders(self) -> None:
        while True:
            await self._ready.acquire()
            order = self._orders.popleft()
            self._busy += 1
            try:
                await self._bind(order)
            finally:
                self._busy -= 1
                if self.in_flight < MAX_BINDINGS_IN_FLIGHT:
                    self._has_capacity.set()

    async def _bind(self, order: BindRequest) -> None:
        pod = order.pod
        body = self._binding_body(order)
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding"
        wait = 0.05
        for _ in range(MAX_BINDING_TRIES):
            if pod.assumed != order.node:
                return  # the watch has shown another result meanwhile
            if not self._leading():
                await self._end_failed(order, "lost")
                return
            try:
                for number, given in enumerate(order.claims):
                    if not given.claim.exists:
                        created = await self._create_claim(pod, given)
                        order = order._replace(claims=(*order.claims[:number], created, *order.claims[number + 1 :]))
                for given in order.claims:
                    await self._allocate_claim(pod, given)
                    if given.mappings:
                        await self._tell_claim(pod, given)
                if any(self._is_prepared(given) is not True for given in order.claims):
                    self._start_task(self._bind_when_prepared(order))
                    return
                await self._wait_for_turn()
                await self._client.send("POST", path, body)
            except LeadershipLostError:
                await self._end_failed(order, "lost")
                return
            except ApiError as error:
                if error.status == 404:
                    await self._end_failed(order, "gone")
                    return
                if error.status == 409:
                    metrics.BINDINGS.labels("conflict").inc()
                    if await self._find_result(order) is not False:
                        return
                elif error.status == 429 or error.status >= 500:
                    wait = max(wait, error.retry_after)
                    if error.status >= 500 and await self._find_result(order) is not False:
                        return
                else:
                    logs.error("binding rejected", pod=pod.key, node=order.node, error=str(error))
                    message = f"the API server rejected its binding to {order.node}: {error}"
                    self._reporter.unschedulable(pod, message, WaitReason.ERROR)
                    await self._end_failed(order, REFUSED)
                    return
            except UnreachableError:
                if await self._find_result(order) is not False:
                    return
            else:
                self._record_bound(order)
                return
            await asyncio.sleep(wait)
            wait *= 2
        await self._end_failed(order, "failed")

    async def _wait_for_turn(self) -> None:
        """Wait for the rate limit, before a write that only the leader may do. Raises LeadershipLostError."""
        await self._rate.take()
        if not self._leading():
            raise LeadershipLostError

    async def _end_failed(self, order: BindRequest, result: str) -> None:
        """End a binding that failed permanently: release its resources, once none of them can be in use."""
        await self._confirm_claim_allocations(order)
        self._give_up(order.pod, result)
        known = (self._cache.dra.claims.get(given.claim.key) for given in order.claims if given.mappings)
        self.give_back(order.pod, [claim for claim in known if claim is not None])

    async def _confirm_claim_allocations(self, order: BindRequest) -> None:
        """Read the claims that may have been allocated: a request without a response may have succeeded."""
        for claim, allocation, _ in order.claims:
            wait = 0.2
            while allocation is not None and claim.uid in self._cache.dra.giving:
                try:
                    await self._rate.take()
                    item = await self._client.request("GET", _claim_path(claim))
                    self._cache.claims.put(item)
                    if not (item.get("status") or {}).get("allocation"):
                        break
                except ApiError as error:
                    if error.status == 404:
                        break
                except UnreachableError:
                    pass
                await asyncio.sleep(wait)
                wait = min(2 * wait, 5.0)

    def _is_prepared(self, given: ClaimAllocation) -> bool | None:
        """Return True once a claim's binding conditions hold; None if a failure condition holds."""
        claim = self._cache.dra.claims.get(given.claim.key)
        if claim is None:
            return True  # the binding request will fail if it is gone
        return claim.ready

    async def _bind_when_prepared(self, order: BindRequest) -> None:
        """Wait until drivers have prepared the devices, then bind."""
        pod = order.pod
        until = monotonic() + PROVISION_TIMEOUT_S
        while (states := {self._is_prepared(given) for given in order.claims}) != {True}:
            if None in states or monotonic() > until:
                logs.warn("devices not prepared", pod=pod.key, node=order.node)
                self.give_back(
                    pod, [self._cache.dra.claims.get(given.claim.key, given.claim) for given in order.claims]
                )
                self._give_up(pod, "no-device")
                return
            await asyncio.sleep(POLL_INTERVAL_S)
        self.put(order)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _create_claim(self, pod: PodInfo, given: ClaimAllocation) -> ClaimAllocation:
        """Create the claim of a pod's extended resources, unless an earlier request without a response has done so.

        Raises LeadershipLostError and ApiError.
        """
        claim = given.claim
        known = self._cache.dra.claims.get(claim.key)
        if known is None:
            raise ApiError(404, "NotFound", f"ResourceClaim {claim.key} was deleted")
        if not known.exists:
            await self._wait_for_turn()
            path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims"
            body = claim_body(pod, claim.name, claim.spec.requests)
            try:
                item = await self._client.request("POST", path, body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
                item = await self._client.request("GET", _claim_path(claim))
            self._cache.claims.put(item)
            known = self._cache.dra.claims[claim.key]
            if known.extended_for != pod.uid:
                raise ApiError(422, "Invalid", f"ResourceClaim {claim.key} is another pod's")
        return given._replace(claim=known)

    async def _tell_claim(self, pod: PodInfo, given: ClaimAllocation) -> None:
        """Write into the pod's status which claim has the devices of its extended resources.

        Raises LeadershipLostError, and ApiError if the API server does not store it: the kubelet would hand out none.
        """
        await self._wait_for_turn()
        body = {"metadata": {"uid": pod.uid}, "status": pod_status(given.claim.name, given.mappings)}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        item = await self._client.request("PATCH", path, body, content_type=MERGE)
        told = (item.get("status") or {}).get("extendedResourceClaimStatus") or {}
        if told.get("resourceClaimName") != given.claim.name:
            message = (
                "the feature gate DRAExtendedResource of the API server is off: request devices by a ResourceClaim"
            )
            raise ApiError(422, "Invalid", message)

    async def _allocate_claim(self, pod: PodInfo, given: ClaimAllocation) -> None:
        """Allocate and reserve a claim if needed. Raises LeadershipLostError, and ApiError: 409 if it changed."""
        claim = given.claim
        path = _claim_path(claim)
        known = self._cache.dra.claims.get(claim.key)
        if known is None or known.uid != claim.uid:
            raise ApiError(404, "NotFound", f"ResourceClaim {claim.key} was deleted")
        if any(consumer["uid"] == pod.uid for consumer in known.reserved):
            return
        if given.allocation is None and not known.allocated:
            raise ApiError(404, "NotFound", f"ResourceClaim {claim.key} was deallocated")
        consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        status: dict[str, Any] = {"reservedFor": [*known.reserved, consumer]}
        version = known.version
        if given.allocation is not None and not known.allocated:
            status["allocation"] = given.allocation
            if any(device.get("bindingConditions") for device in given.allocation["devices"]["results"]):
                status["allocation"] = {**given.allocation, "allocationTimestamp": timestamp()}
            if not known.finalized:
                # The finalizer comes first: a claim with devices must not disappear.
                await self._wait_for_turn()
                body = {"metadata": {"uid": claim.uid, "resourceVersion": version, "finalizers": [CLAIM_FINALIZER]}}
                item = await self._client.request("PATCH", path, body, content_type=STRATEGIC)
                version = item["metadata"]["resourceVersion"]
        await self._wait_for_turn()
        body = {"metadata": {"uid": claim.uid, "resourceVersion": version}, "status": status}
        item = await self._client.request("PATCH", f"{path}/status", body, content_type=MERGE)
        self._cache.claims.put(item)

    def give_back(self, pod: PodInfo, claims: Sequence[ResourceClaim]) -> None:
        """Deallocate the claims that only this pending pod uses, and delete that of its extended resources."""
        for claim in claims:
            mine = claim.exists and (
                all(consumer["uid"] == pod.uid for consumer in claim.reserved)
                and claim.uid not in self._cache.dra.giving
            )
            if mine and claim.uid not in self._deallocations:
                # Until then no pod is placed by these devices, on their node or elsewhere.
                self._cache.dra.returning.add(claim.uid)
                self._cache.dra.version += 1
                self._deallocations[claim.uid] = asyncio.ensure_future(self._deallocate(claim))

    async def _deallocate(self, claim: ResourceClaim) -> None:
        path = f"{_claim_path(claim)}/status"
        status = {"allocation": None, "reservedFor": None}
        body = {"metadata": {"uid": claim.uid, "resourceVersion": claim.version}, "status": status}
        try:
            await self._wait_for_turn()
            self._cache.claims.put(await self._client.request("PATCH", path, body, content_type=MERGE))
            if claim.extended_for:
                await self._wait_for_turn()
                await self._client.send("DELETE", _claim_path(claim), {"preconditions": {"uid": claim.uid}})
        except (ApiError, UnreachableError, LeadershipLostError) as error:
            logs.warn("claim not deallocated", claim=claim.key, error=str(error))
        finally:
            del self._deallocations[claim.uid]
            self._cache.dra.returning.discard(claim.uid)
            self._cache.dra.version += 1
            self._cache.tables.waits.occurred(f"claim {claim.key}")

    def _binding_body(self, order: BindRequest) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": order.pod.name, "namespace": order.pod.namespace, "uid": order.pod.uid}
        if order.devices:
            metadata["annotations"] = {DEVICES.name: order.devices}
        target = {"apiVersion": "v1", "kind": "Node", "name": order.node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}

    def _record_bound(self, order: BindRequest) -> None:
        now = monotonic()
        metrics.BINDINGS.labels("bound").inc()
        metrics.BINDING_SECONDS.observe(now - order.since)
        if order.pod.assumed:
            self.assumed[order.pod.uid] = (order.pod, now)
        self._reporter.scheduled(order.pod, order.node)

    def _give_up(self, pod: PodInfo, result: str) -> None:
        metrics.BINDINGS.labels(result).inc()
        self._cache.forget(pod)
        self._failed(pod, result)

    async def _find_result(self, order: BindRequest) -> bool | None:
        """Read the result of a binding: True: bound as requested, None: ended otherwise, False: not bound.

        Retries until the result is known: a request without a response may have succeeded, and its devices must not be
        allocated twice.
        """
        pod, wait = order.pod, 0.1
        while True:
            if pod.assumed != order.node:
                return None  # the watch has shown the result
            if not self._leading():
                self.assumed[pod.uid] = (pod, monotonic() - UNCONFIRMED_AFTER_S)
                return None
            try:
                item = await self._client.request("GET", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}")
                break
            except ApiError as error:
                if error.status == 404:
                    await self._end_failed(order, "gone")
                    return None
            except UnreachableError:
                pass
            await asyncio.sleep(wait)
            wait = min(2 * wait, 5.0)
        if item["metadata"]["uid"] != pod.uid:
            await self._end_failed(order, "gone")
            return None
        node = item["spec"].get("nodeName")
        if not node:
            return False
        if node == order.node:
            self._record_bound(order)
        self._cache.put_pod(item)
        return node == order.node or None

    async def _check_unconfirmed(self) -> None:
        """Read pods whose binding succeeded but that the watch does not show as bound."""
        while True:
            await asyncio.sleep(UNCONFIRMED_AFTER_S / 4)
            now = monotonic()
            for uid, (pod, since) in list(self.assumed.items()):
                if not pod.assumed:
                    del self.assumed[uid]
                elif now - since > UNCONFIRMED_AFTER_S:
                    del self.assumed[uid]
                    if await self._find_result(BindRequest(pod, pod.assumed, "", since)) is False:
                        self._give_up(pod, "expired")


def _claim_path(claim: ResourceClaim) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
