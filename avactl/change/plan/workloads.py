"""Create pods from compiled manifests as Kubernetes controllers and admission do.

Sources: pkg/controller/{job,replicaset,statefulset,daemon} and plugin/pkg/admission/{priority,limitranger,
defaulttolerationseconds} of kubernetes; pkg/{controllers,webhooks} of sigs.k8s.io/lws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from avactl.base.object_identity import ObjectKey
from avactl.change.plan.model import PlannedOwner
from avactl.change.plan.spec_origin import SpecOrigin
from avactl.contracts import names
from avactl.contracts.pod_annotations import JOB_INDEX
from avactl.program.autoscalers import scale_target
from avactl.program.manifest import Body, Manifest

GROUPS = "LeaderWorkerSet"
"""Kind whose replicas are groups of pods."""
ROLES = "DisaggregatedSet"
"""Kind of several roles, each of which is a workload of groups."""
GROUPED = (GROUPS, ROLES)
KINDS = {
    "Job": "batch",
    "Deployment": "apps",
    "StatefulSet": "apps",
    "DaemonSet": "apps",
    "Pod": "",
    GROUPS: "leaderworkerset.x-k8s.io",
    ROLES: "disaggregatedset.x-k8s.io",
}
"""Kubernetes kinds that run pods, with their API groups: operators have kinds of the same names. CronJobs run rarely
and are not counted, except the templates of a pipeline's training: a plan is for the time of a run."""

_SCALER_BOUNDS = {
    "HorizontalPodAutoscaler": ("minReplicas", "maxReplicas"),
    "ScaledObject": ("minReplicaCount", "maxReplicaCount"),
}
"""Autoscalers, Kubernetes' and KEDA's, with their fields for the bounds."""
_PREEMPTS = "PreemptLowerPriority"
_PRIORITIES = {
    "system-cluster-critical": (2_000_000_000, _PREEMPTS),
    "system-node-critical": (2_000_001_000, _PREEMPTS),
}
_TOLERATION_SECONDS = 300
"""For which a pod stays on a node that is not ready, by default."""
_DEFAULT_TOLERATIONS = [
    {
        "key": f"node.kubernetes.io/{what}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _TOLERATION_SECONDS,
    }
    for what in ("not-ready", "unreachable")
]


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """A Job, Deployment, StatefulSet, DaemonSet, LeaderWorkerSet or role of a DisaggregatedSet."""

    id: ObjectKey
    origin: SpecOrigin
    body: Body
    fewest: int | None = None
    """Minimum of the autoscaler, if there is one."""
    most: int = 1 << 30
    """Maximum of the autoscaler, if there is one."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Labels that the controller of groups gives to the pods, by which they are found."""

    @property
    def spec(self) -> Body:
        """`spec`, or the pod itself as its template."""
        spec: Body = self.body["spec"]
        return spec

    @property
    def template(self) -> Body:
        """Template of its pods; of a LeaderWorkerSet, that of the leaders, which request what the others do."""
        return self.template_of(0)

    def template_of(self, number: int) -> Body:
        """Return the template of the pod with an index."""
        if self.id.kind not in GROUPED:
            return self.pattern
        leads = number % self.size == 0 and self.pattern.get("leaderTemplate")
        template: Body = self.pattern["leaderTemplate" if leads else "workerTemplate"]
        return template

    @property
    def pattern(self) -> Body:
        """Part of its spec whose change replaces the pods."""
        pattern: Body = self.spec["leaderWorkerTemplate" if self.id.kind in GROUPED else "template"]
        return pattern

    @property
    def size(self) -> int:
        """Pods of each replica."""
        size: int = self.pattern.get("size", 1) if self.id.kind in GROUPED else 1
        return size

    def count(self, now: int | None = None) -> int:
        """Return its number of pods; `now`: the running ones, if something other than the spec scales it."""
        spec, size = self.spec, self.size
        if self.id.kind == "Job":
            return 0 if spec.get("suspend") else min(spec.get("parallelism", 1), spec.get("completions", 1 << 30))
        if self.fewest is not None:
            return min(max(self.fewest * size, now or 0), self.most * size)
        replicas: int = spec.get("replicas", 1)
        return replicas * size

    @property
    def owner(self) -> PlannedOwner:
        """Its spec."""
        return PlannedOwner(*self.origin.key)

    @property
    def revision(self) -> str:
        """Digest of what the pods are made from."""
        return hashlib.sha256(orjson.dumps(self.pattern, option=orjson.OPT_SORT_KEYS)).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Objects that admission and the claim controller look up, from the manifests of one cluster."""

    priorities: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Value and preemption policy, by class."""
    claims: Mapping[tuple[str, str], Body] = field(default_factory=dict)
    """Specs of ResourceClaimTemplates by namespace and name."""
    defaults: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Default container requests by namespace."""


def find_workloads(manifests: Iterable[Manifest], cluster: str) -> dict[ObjectKey, PlannedWorkload]:
    """Return the workloads of a cluster, in apply order."""
    found: dict[ObjectKey, PlannedWorkload] = {}
    scaled: dict[ObjectKey, tuple[int, int]] = {}
    origins: dict[tuple[str, str, str], SpecOrigin] = {}
    for manifest in manifests:
        if manifest.cluster != cluster:
            continue
        kind = manifest.kind
        if KINDS.get(kind) == manifest.id.group:
            id_ = manifest.id.key
            origin = origins.get(manifest.item.key)
            if origin is None:
                origin = origins[manifest.item.key] = SpecOrigin.of(manifest.item)
            for part in _object_workloads(id_, manifest.body):
                found[part.id] = PlannedWorkload(part.id, origin, part.body, marks=part.marks)
        elif kind == "CronJob" and _is_training_template(manifest.body):
            id_ = ObjectKey(KINDS["Job"], "Job", manifest.namespace, manifest.name)
            job = {**manifest.body, "kind": "Job", "spec": manifest.body["spec"]["jobTemplate"]["spec"]}
            found[id_] = PlannedWorkload(id_, SpecOrigin.of(manifest.item), job)
        elif kind in _SCALER_BOUNDS:
            spec, (low, high) = manifest.body["spec"], _SCALER_BOUNDS[kind]
            target = scale_target(manifest.body, manifest.namespace)
            if target is not None:
                scaled[target] = spec.get(low, 1), spec.get(high, 100)
    for id_, (fewest, most) in scaled.items():
        if id_ in found:
            found[id_] = replace(found[id_], fewest=fewest, most=most)
    return found


class _Part(NamedTuple):
    """Object, or part of one, that is a workload of its own."""

    id: ObjectKey
    body: Body
    marks: Mapping[str, str]


def _object_workloads(id_: ObjectKey, body: Body) -> Iterator[_Part]:
    """Yield the workloads of an object: the roles of a DisaggregatedSet, else the object itself."""
    if id_.kind != ROLES:
        yield _Part(id_, body, {names.LWS_NAME: id_.name} if id_.kind == GROUPS else {})
        return
    for role in body["spec"]["roles"]:
        marks = {names.DISAGGREGATED_NAME: id_.name, names.DISAGGREGATED_ROLE: role["name"]}
        yield _Part(id_._replace(name=f"{id_.name}-{role['name']}"), {**body, "spec": role["spec"]}, marks)


def _is_training_template(body: Body) -> bool:
    """Return True for the template of a pipeline's training, unless the pipeline is suspended."""
    notes = body["metadata"].get("annotations") or {}
    return notes.get(names.PIPELINE_STEP) == names.TRAINS


def find_surroundings(manifests: Iterable[Manifest], cluster: str) -> Surroundings:
    """Return the objects that admission uses for the pods of a cluster."""
    priorities = dict(_PRIORITIES)
    claims: dict[tuple[str, str], Body] = {}
    defaults: dict[str, Mapping[str, str]] = {}
    for manifest in manifests:
        if manifest.cluster != cluster:
            continue
        body = manifest.body
        if manifest.kind == "PriorityClass":
            priorities[manifest.name] = (body["value"], body.get("preemptionPolicy", _PREEMPTS))
        elif manifest.kind == "ResourceClaimTemplate":
            claims[manifest.namespace, manifest.name] = body["spec"]["spec"]
        elif manifest.kind == "LimitRange":
            for limit in body["spec"]["limits"]:
                if limit.get("type") == "Container" and limit.get("defaultRequest"):
                    defaults[manifest.namespace] = limit["defaultRequest"]
    return Surroundings(priorities, claims, defaults)


class Made(NamedTuple):
    """A pod and the ResourceClaims created for it."""

    pod: Body
    claims: list[Body]


class WorkloadMaker:
    """Creates the pods of workloads."""

    def __init__(self, around: Surroundings, created: str, mark: str) -> None:
        """`created` is their time, as Kubernetes writes it; `mark` tells their names from those of other runs."""
        self._around, self._created, self._mark = around, created, mark
        self._specs: dict[tuple[ObjectKey, bool], Body] = {}
        """Pod specs, by workload and whether the pod is the first one of its replica."""

    def pods(self, work: PlannedWorkload, numbers: Iterable[int]) -> Iterator[Made]:
        """Return the pods with these indexes; those of a group follow each other."""
        for number in numbers:
            kind = (work.id, number % work.size == 0)
            if kind not in self._specs:
                self._specs[kind] = self._admitted(work, work.template_of(number))
            yield self._made(work, number)

    def daemons(self, work: PlannedWorkload, nodes: Iterable[str]) -> Iterator[Made]:
        """Return the pods of a DaemonSet, one per node."""
        for number, node in enumerate(nodes):
            made = next(self.pods(work, [number]))
            field_ = {"key": "metadata.name", "operator": "In", "values": [node]}
            affinity = dict(made.pod["spec"].get("affinity") or {})
            terms = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
            affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            made.pod["spec"] = {**made.pod["spec"], "affinity": affinity}
            yield made

    def _admitted(self, work: PlannedWorkload, template: Body) -> Body:
        """The pod spec with what admission adds; shared by all pods of the template."""
        spec = dict(template["spec"])
        value, policy = self._around.priorities.get(spec.get("priorityClassName", ""), (0, _PREEMPTS))
        spec = {"priority": value, "preemptionPolicy": policy, **spec}
        spec.setdefault("schedulerName", "default-scheduler")
        given = list(spec.get("tolerations") or ())
        for toleration in _DEFAULT_TOLERATIONS:
            if not any(_tolerates(each, toleration) for each in given):
                given.append(toleration)
        spec["tolerations"] = given
        if spec.get("resourceClaims"):
            # Templates of other controllers, such as the channel of a ComputeDomain, are not simulated.
            spec["resourceClaims"] = [
                claim
                for claim in spec["resourceClaims"]
                if (work.id.namespace, claim.get("resourceClaimTemplateName")) in self._around.claims
            ]
        defaults = self._around.defaults.get(work.id.namespace)
        if defaults:
            for group in ("containers", "initContainers"):
                if spec.get(group):
                    spec[group] = [_with_defaults(container, defaults) for container in spec[group]]
        volumes = spec.get("volumes") or []
        templates = work.spec.get("volumeClaimTemplates") if work.id.kind == "StatefulSet" else None
        if templates:
            spec["volumes"] = volumes  # each pod's own are added to it
        return spec

    def _made(self, work: PlannedWorkload, number: int) -> Made:
        id_, template = work.id, work.template_of(number)
        spec = self._specs[id_, number % work.size == 0]
        given = template.get("metadata") or {}
        labels, notes = dict(given.get("labels") or {}), dict(given.get("annotations") or {})
        name = f"{id_.name}-{number}"
        if id_.kind == "Job":
            if work.spec.get("completionMode") == "Indexed":
                labels[JOB_INDEX.name] = str(number)
                notes[JOB_INDEX.name] = str(number)
            labels |= {"batch.kubernetes.io/job-name": id_.name, "job-name": id_.name}
            name = f"{name}-{self._mark}"
        elif id_.kind == "StatefulSet":
            labels |= {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": str(number)}
            claims = [
                (each.get("metadata") or {}).get("name", "") for each in work.spec.get("volumeClaimTemplates") or ()
            ]
            if claims:
                own = [{"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}} for claim in claims]
                spec = {**spec, "volumes": [*spec["volumes"], *own]}
        elif id_.kind in GROUPED:
            group, index = divmod(number, work.size)
            name = f"{id_.name}-{group}-{index}-{work.revision}-{self._mark}"
            labels |= {
                names.LWS_NAME: id_.name,
                **work.marks,
                names.LWS_GROUP: f"{id_.name}-{group}-{work.revision}-{self._mark}",
                names.LWS_REVISION: work.revision,
                names.LWS_GROUP_INDEX: str(group),
                names.LWS_INDEX: str(index),
            }
        else:
            if id_.kind == "Deployment":
                labels["pod-template-hash"] = work.revision
                name = f"{id_.name}-{work.revision}-{number}"
            name = f"{name}-{self._mark}"
        uid = f"{self._mark}:{id_.kind}:{id_.namespace}/{name}"
        metadata = {
            "namespace": id_.namespace,
            "name": name,
            "uid": uid,
            "creationTimestamp": self._created,
            "labels": labels,
            "annotations": notes,
        }
        if id_.kind != "Pod":
            owner = {"Deployment": "ReplicaSet", GROUPS: "StatefulSet", ROLES: "StatefulSet"}.get(id_.kind, id_.kind)
            metadata["ownerReferences"] = [{"kind": owner, "name": id_.name, "controller": True}]
        made, statuses = self._claims(spec, id_.namespace, name, uid)
        status: Body = {"phase": "Pending"}
        if statuses:
            status["resourceClaimStatuses"] = statuses
        return Made({"metadata": metadata, "spec": spec, "status": status}, made)

    def _claims(self, spec: Body, namespace: str, pod: str, uid: str) -> tuple[list[Body], list[Body]]:
        """ResourceClaims of a pod from their templates, and what its status says of them."""
        made, statuses = [], []
        for each in spec.get("resourceClaims") or ():
            template = self._around.claims.get((namespace, each.get("resourceClaimTemplateName") or ""))
            if template is None:
                continue
            name = f"{pod}-{each['name']}"
            metadata = {"namespace": namespace, "name": name, "uid": f"{uid}/{name}", "resourceVersion": "0"}
            made.append({"metadata": metadata, "spec": template})
            statuses.append({"name": each["name"], "resourceClaimName": name})
        return made, statuses


def _tolerates(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return True if a toleration covers the default one."""
    key, effect = given.get("key"), given.get("effect")
    return (not key or key == wanted["key"]) and (not effect or effect == wanted["effect"])


def _with_defaults(container: Body, defaults: Mapping[str, str]) -> Body:
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    # The API server makes requests of limits before a LimitRange is looked at.
    missing = {name: text for name, text in defaults.items() if name not in requests and name not in limits}
    if not missing:
        return container
    return {**container, "resources": {**resources, "requests": {**missing, **requests}}}
