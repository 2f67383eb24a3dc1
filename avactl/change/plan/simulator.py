"""An in-memory cluster that runs the scheduler's own code; bindings and evictions take effect at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from avactl.base.terminal import shorten_middle
from avactl.change.plan.cluster_state import ClusterState
from avactl.change.plan.snapshot.loader import SnapshotError
from avactl.change.plan.workloads import GROUPED, Made, PlannedWorkload
from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES
from avactl.program.manifest import Body
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.cycle.scheduling_cycle import SchedulingCycle
from avactl.scheduler.dra.extended_resources import claim_body, pod_status
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.handlers import resources
from avactl.scheduler.handlers.pods import PodHandler
from avactl.scheduler.interfaces import BindRequest, ClaimAllocation, Eviction
from avactl.scheduler.objects.config import TeamQuota
from avactl.scheduler.objects.gangs import without_gang
from avactl.scheduler.objects.node_rules import NodeRules
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.preemption.disruption_budgets import DisruptionBudgets
from avactl.scheduler.queue.scheduling_queue import SchedulingQueue

_MAX_ROUNDS = 64
"""Average number of decisions per queued group, above which the simulation is considered not to converge."""
_ANYWHERE = "avactl-plan-anywhere"
"""A volume reachable from every machine, created for a bound claim."""
_LATEST_TIME = "9999-12-31T23:59:59Z"
"""Creation time of the replacements of evicted pods: the youngest of all."""
_INDEXED_LABELS = ("job-name", "app.kubernetes.io/instance")
"""Labels by which the pods of a workload are found."""


class UnsettledError(RuntimeError):
    """The simulation does not converge: a defect of the scheduler."""


class SimulatedCluster:
    """Cache, queue and scheduling cycle of one cluster; implements the binding, eviction and status sinks."""

    def __init__(self, cluster_state: ClusterState) -> None:
        # A snapshot has no objects of other controllers: their pods are placed one by one.
        policy = cluster_state.policy.model_copy(update={"gang_kinds": ()})
        self.cache = ClusterCache(
            policy.widest_first, DraManager(policy.gpu_driver), policy.objective, owned_claims=False
        )
        self.constraints = ConstraintSet(self.cache, policy, declared=not cluster_state.taken)
        self.queue = SchedulingQueue()
        self.budgets = DisruptionBudgets()
        self.cycle = SchedulingCycle(self.cache, self.queue, self.constraints, self, self, self, self.budgets)
        self.pod_handler = PodHandler(self.cache, self.queue, self.cycle.forget)
        self.said: dict[str, str] = {}
        """Last message of pending pods, by UID."""
        self.evictions: list[Eviction] = []
        self.items: dict[str, Body] = {}
        """Current pods, by `namespace/name`."""
        self._marked: dict[tuple[str, str, str], dict[str, None]] = {}
        """Pod keys by namespace and one of `_INDEXED_LABELS`."""
        self._orders: deque[BindRequest] = deque()
        self._doomed: deque[Eviction] = deque()
        self.leaves: dict[str, TeamQuota] = {}
        """Quotas by team."""
        self._configs = resources.ConfigMapHandler(self.cache, self._put_leaf)
        self._claim_store = resources.resource_claims(self.cache)
        self._nodes: dict[str, Body] = {}
        self._claims: dict[str, Body] = {}
        self._volume_claims: set[str] = set()
        self._anew = 0
        self._ending: list[PodInfo] = []
        """Evicted pods that still exist."""
        self._gone: list[Made] = []
        """Replacements that controllers create once the evicted pods have ended."""
        self._load(cluster_state)

    def _load(self, cluster_state: ClusterState) -> None:
        self.put_objects(cluster_state.objects)
        self.cache.volumes.put_volume(
            {"metadata": {"name": _ANYWHERE, "uid": _ANYWHERE, "resourceVersion": "0"}, "spec": {}}
        )
        for item in cluster_state.objects.get("pods", ()):
            with _object_of("pods", item):
                self.put_pod(item)

    def put_objects(self, objects: Mapping[str, Sequence[Body]]) -> None:
        """Add or update objects other than pods, by the name of their resource."""
        cache = self.cache
        # A constraint may watch what others read, too.
        puts = [
            ("configmaps", self._configs.put),
            ("namespaces", resources.namespaces(cache).put),
            ("nodes", self.put_node),
            ("resourceslices", resources.slices(cache).put),
            ("deviceclasses", resources.device_classes(cache).put),
            ("resourceclaims", self._put_claim),
            ("poddisruptionbudgets", self.budgets.put),
            *((watch.resource, watch.store.put) for watch in self.constraints.watches()),
            ("persistentvolumeclaims", self._note_volume_claim),
        ]
        for resource, put in puts:
            for item in objects.get(resource, ()):
                with _object_of(resource, item):
                    put(item)

    def _note_volume_claim(self, item: Body) -> None:
        self._volume_claims.add(f"{item['metadata']['namespace']}/{item['metadata']['name']}")

    def _put_leaf(self, team: str, leaf: TeamQuota | None) -> None:
        if leaf is None:
            self.leaves.pop(team, None)
        else:
            self.leaves[team] = leaf
        self.cache.quotas.put_quota(team, leaf)

    def put_job(self, namespace: str, name: str, spec: Body) -> None:
        """Create a Job, or create it again: it has not ended."""
        metadata = {"namespace": namespace, "name": name}
        self.put_objects({"jobs": [{"metadata": metadata, "spec": spec}]})

    def drop_job(self, namespace: str, name: str) -> None:
        """Remove a Job."""
        for watch in self.constraints.watches():
            if watch.resource == "jobs":
                watch.store.remove(f"{namespace}/{name}")

    def drop_config(self, key: str) -> None:
        """Remove a ConfigMap."""
        self._configs.remove(key)

    def patch_node(self, name: str, body: Body) -> None:
        """Set labels and taints of a machine if it exists."""
        item = self._nodes.get(name)
        if item is None:
            return
        labels = {**(item["metadata"].get("labels") or {}), **(body["metadata"].get("labels") or {})}
        spec = {**(item.get("spec") or {}), **(body.get("spec") or {})}
        self.put_node({**item, "metadata": {**item["metadata"], "labels": labels}, "spec": spec})

    def put_node(self, item: Body) -> None:
        """Add or update a machine."""
        self._nodes[item["metadata"]["name"]] = item
        self.cache.put_node(item)

    def drop_node(self, name: str) -> None:
        """Remove a machine; controllers recreate its pods."""
        self._nodes.pop(name, None)
        pods = list(self.cache.tables.pods_by_node.get(name, {}).values())
        self.cache.drop_node(name)
        for pod in pods:
            for made in self._stop(pod):
                self._put(made)

    # -- pods -------------------------------------------------------------------------------------------------------

    def put_pod(self, item: Body) -> None:
        """Add or update a pod."""
        metadata = item["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        if key not in self.items:
            for mark in _selector_labels(metadata):
                self._marked.setdefault(mark, {})[key] = None
        self.items[key] = item
        self.pod_handler.put(item)

    def drop_pod(self, key: str) -> Body:
        """Remove a pod with its generated claims; return its last state."""
        item = self.items.pop(key)
        for mark in _selector_labels(item["metadata"]):
            del self._marked[mark][key]
        self.pod_handler.drop(key)
        for status in (item.get("status") or {}).get("resourceClaimStatuses") or ():
            claim = f"{item['metadata']['namespace']}/{status.get('resourceClaimName')}"
            if claim in self._claims:
                self._drop_claim(claim)
        extended = (item.get("status") or {}).get("extendedResourceClaimStatus") or {}
        claim = f"{item['metadata']['namespace']}/{extended.get('resourceClaimName')}"
        if claim in self._claims:
            self._drop_claim(claim)
        return item

    def create(self, made: Made) -> None:
        """Create a controller's pod. Pods of kube-scheduler are placed here too, as an estimate."""
        pod = made.pod
        if pod["spec"]["schedulerName"] != names.SCHEDULER_NAME:
            pod = {
                **pod,
                "metadata": {**pod["metadata"], "labels": without_gang(pod["metadata"]["labels"])},
                "spec": {**pod["spec"], "schedulerName": names.SCHEDULER_NAME},
            }
        self._put(Made(pod, made.claims))

    def _put(self, made: Made) -> None:
        for claim in made.claims:
            self._put_claim(claim)
        self.put_pod(made.pod)

    def pods_of(self, work: PlannedWorkload) -> list[PodInfo]:
        """Return a workload's pods that have not ended, by the number in their names."""
        id_ = work.id
        if id_.kind == "Job":
            return self._labelled(id_.namespace, {"job-name": id_.name})
        if id_.kind in GROUPED:
            own = (work.template.get("metadata") or {}).get("labels") or {}
            select = {key: own[key] for key in _INDEXED_LABELS if key in own} | dict(work.marks)
            return sorted(self._labelled(id_.namespace, select), key=_place_in_group)
        return self._labelled(id_.namespace, (work.spec.get("selector") or {}).get("matchLabels") or {"": ""})

    def _labelled(self, namespace: str, select: Mapping[str, str]) -> list[PodInfo]:
        mark = next(((namespace, label, select[label]) for label in _INDEXED_LABELS if label in select), None)
        keys = self.items if mark is None else self._marked.get(mark, {})
        found = [
            pod
            for key in keys
            if (pod := self.cache.tables.pods.get(key)) is not None
            and pod.namespace == namespace
            and not (pod.ended or pod.deleting)
            and all(pod.labels.get(key) == value for key, value in select.items())
        ]
        return sorted(found, key=lambda pod: (pod.index, len(pod.name), pod.name))

    def revision(self, pod: PodInfo) -> str:
        """Return the revision of the pod of a Deployment or LeaderWorkerSet, if this process created it."""
        return pod.labels.get("pod-template-hash") or pod.labels.get(names.LWS_REVISION, "")

    def nodes_for(self, template: Body) -> list[str]:
        """Return the machines that a DaemonSet's pods run on, by name."""
        rules = NodeRules(template["spec"])
        return sorted(
            info.name
            for info in self.cache.tables.nodes.values()
            if rules.matches(info.name, info.labels) and rules.untolerated(info.taints) is None
        )

    def protect(self, body: Body) -> None:
        """Add a PodDisruptionBudget, with the status that its controller computes for the current pods."""
        spec, namespace = body["spec"], body["metadata"]["namespace"]
        pods = self._labelled(namespace, spec["selector"]["matchLabels"])
        running = sum(1 for pod in pods if pod.node)
        least = spec["minAvailable"] if "minAvailable" in spec else len(pods) - spec["maxUnavailable"]
        self.budgets.put({**body, "status": {"disruptionsAllowed": max(0, running - least)}})

    def want_claim(self, namespace: str, body: Body) -> None:
        """Create a PersistentVolumeClaim; it is bound at once unless its class waits for a consumer."""
        key = f"{namespace}/{body['metadata']['name']}"
        if key in self._volume_claims:
            return
        self._volume_claims.add(key)
        self.cache.volumes.put_claim(_bound_claim(namespace, body["metadata"]["name"], body["spec"]))

    # -- deciding ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Decide until nothing changes any more. Raises UnsettledError."""
        freed = -1
        left = _MAX_ROUNDS * (len(self.queue.units) + 64)
        while True:
            self._tidy()
            unit = self.queue.pop()
            if unit is None:
                if freed != self.cache.tables.change_epoch:
                    freed = self.cache.tables.change_epoch
                    self.queue.retry(freed)
                elif self._ending:
                    # Pods take time to end: groups that do not need their capacity have started by then.
                    ending, self._ending = self._ending, []
                    for pod in ending:
                        self._gone += self._stop(pod)
                elif self._gone:
                    # Replacements come last: everything that was pending has been tried by then.
                    gone, self._gone = self._gone, []
                    for made in gone:
                        metadata = {**made.pod["metadata"], "creationTimestamp": _LATEST_TIME}
                        self._put(made._replace(pod={**made.pod, "metadata": metadata}))
                else:
                    return
                continue
            left -= 1
            if left < 0:
                raise UnsettledError(f"the scheduler does not converge, at {unit.key}")
            self.cycle.decide(unit)
            self._happen()

    def _tidy(self) -> None:
        """Clean up as the daemon does before each decision."""
        if self.cache.tables.stale:
            self.cache.rebuild()
            self.cycle.clear()
        for key in sorted(self.cache.tables.waits.woken):
            if key in self.queue.units:
                self.queue.push(self.queue.units[key])
        self.cache.tables.waits.woken.clear()
        self.cycle.sync()

    def _happen(self) -> None:
        """Carry out the decisions."""
        while self._orders:
            order = self._orders.popleft()
            if order.pod.assumed == order.node:
                self._bind(order)
        while self._doomed:
            eviction = self._doomed.popleft()
            self.evictions.append(eviction)
            self._nominate(eviction)
            self._ending += [victim.pod for victim in eviction.victims]

    def _bind(self, order: BindRequest) -> None:
        pod = order.pod
        item = self.items[pod.key]
        metadata = item["metadata"]
        if order.devices:
            notes = {**(metadata.get("annotations") or {}), DEVICES.name: order.devices}
            metadata = {**metadata, "annotations": notes}
        told: dict[str, Any] = {}
        for given in order.claims:
            self._give(given, pod)
            if given.mappings:
                told = pod_status(given.claim.name, given.mappings)
        for name in order.volumes:
            self.cache.volumes.put_claim(_bound_claim(pod.namespace, name, {}))
        self.said.pop(pod.uid, None)
        status = {**(item.get("status") or {}), **told, "phase": "Running"}
        self.put_pod({**item, "metadata": metadata, "spec": {**item["spec"], "nodeName": order.node}, "status": status})

    def _nominate(self, eviction: Eviction) -> None:
        for pod, node in eviction.places.items():
            item = self.items.get(pod.key)
            if item is not None:
                self.put_pod({**item, "status": {**(item.get("status") or {}), "nominatedNodeName": node}})

    def _stop(self, pod: PodInfo) -> list[Made]:
        """Delete a pod; return its controller's pending replacements."""
        if pod.key not in self.items:
            return []
        statuses = (self.items[pod.key].get("status") or {}).get("resourceClaimStatuses") or ()
        keys = [f"{pod.namespace}/{each.get('resourceClaimName')}" for each in statuses]
        claims = [self._claims[key] for key in keys if key in self._claims]
        item = self.drop_pod(pod.key)
        if not item["metadata"].get("ownerReferences"):
            return []
        self._anew += 1
        metadata = _replacement_metadata(item["metadata"], self._anew)
        notes = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != DEVICES.name}
        metadata["annotations"] = notes
        spec = {key: value for key, value in item["spec"].items() if key != "nodeName"}
        status: dict[str, Any] = {"phase": "Pending"}
        if statuses:
            status["resourceClaimStatuses"] = statuses
        made = [
            {"metadata": _replacement_metadata(claim["metadata"], self._anew), "spec": claim["spec"]}
            for claim in claims
        ]
        return [Made({"metadata": metadata, "spec": spec, "status": status}, made)]

    # -- claims -----------------------------------------------------------------------------------------------------

    def _put_claim(self, item: Body) -> None:
        metadata = item["metadata"]
        self._claims[f"{metadata['namespace']}/{metadata['name']}"] = item
        self._claim_store.put({**item, "metadata": {"resourceVersion": "0", **metadata}})

    def _drop_claim(self, key: str) -> None:
        self._claims.pop(key, None)
        self._claim_store.remove(key)

    def _give(self, given: ClaimAllocation, pod: PodInfo) -> None:
        claim = given.claim
        if not claim.exists:
            body = claim_body(pod, claim.name, claim.spec.requests)
            self._put_claim({**body, "metadata": {**body["metadata"], "uid": f"created/{claim.key}"}})
        item = self._claims[claim.key]
        status = dict(item.get("status") or {})
        status["reservedFor"] = [
            *(status.get("reservedFor") or ()),
            {"resource": "pods", "name": pod.name, "uid": pod.uid},
        ]
        if given.allocation is not None:
            status["allocation"] = given.allocation
        self._put_claim({**item, "status": status})

    # -- sinks of the scheduler (`avactl.scheduler.interfaces`) --------------------------------------------------------

    def put(self, order: BindRequest) -> None:
        """Bind an assumed pod."""
        self._orders.append(order)

    def give_back(self, pod: PodInfo, claims: Sequence[Any]) -> None:
        """Deallocate claims that are used only by this pending pod."""
        for claim in claims:
            if all(each["uid"] == pod.uid for each in claim.reserved):
                if claim.extended_for:
                    self._drop_claim(claim.key)
                    continue
                item = self._claims[claim.key]
                self._put_claim({key: value for key, value in item.items() if key != "status"})

    def evict(self, eviction: Eviction) -> None:
        """Evict victims."""
        self._doomed.append(eviction)

    def clear(self, pods: Sequence[PodInfo]) -> None:
        """Clear the nomination of pending pods."""
        for pod in pods:
            item = self.items.get(pod.key)
            if item is not None and (item.get("status") or {}).get("nominatedNodeName"):
                status = {key: value for key, value in item["status"].items() if key != "nominatedNodeName"}
                self.put_pod({**item, "status": status})

    def unschedulable(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        """Record why a pod is unschedulable."""
        self.said[pod.uid] = message

    def not_yet(self, pod: PodInfo, message: str, reason: WaitReason) -> None:
        """Record why a pod is not scheduled yet."""
        self.said[pod.uid] = message


@contextmanager
def _object_of(resource: str, item: Body) -> Iterator[None]:
    """Wrap errors while reading one object. Raises SnapshotError if it is not as the API server returns it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        metadata = item.get("metadata") or {}
        name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
        what = shorten_middle(f"{type(error).__name__}: {error}", 200)
        hint = "take a new snapshot: `avactl snapshot > state.json`"
        raise SnapshotError(
            f"the snapshot is damaged: {resource} {shorten_middle(name, 300)} ({what})", hint
        ) from error


def _replacement_metadata(metadata: Body, number: int) -> Body:
    """Return the metadata of a replacement: a new object with a similar name."""
    return {**metadata, "uid": f"{metadata['uid']}#{number}"}


def _bound_claim(namespace: str, name: str, spec: Body) -> Body:
    """Return a claim bound to a volume that every machine reaches."""
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}"}
    return {"metadata": metadata, "spec": {**spec, "volumeName": _ANYWHERE}, "status": {"phase": "Bound"}}


def _place_in_group(pod: PodInfo) -> tuple[int, ...]:
    """Return the numbers of a pod's group, and of the pod in it."""
    texts = (pod.labels.get(label, "") for label in (names.LWS_GROUP_INDEX, names.LWS_INDEX))
    return tuple(int(text) if len(text) < 10 and text.isdecimal() else 0 for text in texts)


def _selector_labels(metadata: Body) -> Iterator[tuple[str, str, str]]:
    labels = metadata.get("labels") or {}
    for label in _INDEXED_LABELS:
        if label in labels:
            yield metadata["namespace"], label, labels[label]
