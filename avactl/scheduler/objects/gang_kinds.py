"""Objects of other controllers whose pods start together: RayClusters, JobSets, MPIJobs, PyTorchJobs, and added kinds.

Their controllers write a label with the object's name, and the object says how many pods there are. Tenants write
both; all of it concerns their own namespace only. The fields are those of upstream: ray-operator/apis/ray/v1 of
ray-project/kuberay, api/jobset/v1alpha2 of kubernetes-sigs/jobset, pkg/apis/kubeflow/v2beta1 of kubeflow/mpi-operator
and pkg/apis/kubeflow.org/v1 of kubeflow/training-operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from avactl.base.object_identity import controller_of
from avactl.contracts.scheduling import GangKind

MAX_PODS = 100_000
"""Largest number of pods of one object."""
MAX_ROLES = 1000
_LEADERS = frozenset(("headgroup", "launcher", "master"))
"""Roles that have one pod."""


class GangNeeds(NamedTuple):
    """The pods that an object starts with."""

    pods: Mapping[str, int]
    """Their number by role."""
    in_turn: bool = False
    """True if the roles are created one after the other, so that each is a gang of its own."""


class OwnedGang(NamedTuple):
    """The gang of a pod that belongs to an object of another controller."""

    name: str
    """Kind and name: `RayCluster/train`. Gangs by label have no slash."""
    role: str

    @property
    def leads(self) -> bool:
        """True for the pod that others of the gang cannot do without."""
        return self.role in _LEADERS


class _Fields(NamedTuple):
    """How pods and objects of a known kind are read."""

    role: str
    """Label of the pods with their role."""
    through_jobs: bool
    """True if pods may be controlled by a Job of the object."""
    needs: Callable[[Mapping[str, Any]], GangNeeds]
    """Reads the spec. Raises ValueError."""


def gang_of_owner(metadata: Mapping[str, Any], kinds: Sequence[GangKind]) -> OwnedGang | None:
    """Return the gang of a pod by its controller and a label; None if it belongs to no object of these kinds.

    Pods with the labels but another controller are helpers, such as those that clean up after a RayCluster.
    """
    labels = metadata.get("labels")
    if not labels:
        return None
    for kind in kinds:
        name = labels.get(kind.label)
        if not name:
            continue
        fields = _KNOWN.get(kind.kind) if not kind.replicas else _ADDED
        maker = controller_of(metadata).get("kind")
        if fields is not None and (maker == kind.kind or (fields.through_jobs and maker == "Job")):
            return OwnedGang(f"{kind.kind}/{name}", labels.get(fields.role, "") if fields.role else "")
    return None


def read_needs(kind: GangKind, item: Mapping[str, Any]) -> GangNeeds | None:
    """Return the pods that an object starts with; None if it does not say so, or is being deleted."""
    spec = item.get("spec")
    if not isinstance(spec, Mapping) or "deletionTimestamp" in item["metadata"]:
        return None
    try:
        if kind.replicas:
            needs = GangNeeds({"": sum(sum(_at(item, path.split("."))) for path in kind.replicas)})
        else:
            needs = _KNOWN[kind.kind].needs(spec)
    except (KeyError, ValueError):
        return None
    pods = {role: number for role, number in needs.pods.items() if number}
    return needs._replace(pods=pods) if pods and len(pods) <= MAX_ROLES and sum(pods.values()) <= MAX_PODS else None


# -- the fields of each kind -------------------------------------------------------------------------------------------


def _number(value: object, default: int) -> int:
    """Return a number of pods. Raises ValueError."""
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PODS:
        raise ValueError("not a number of pods")
    return value


def _part(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _parts(value: object) -> Sequence[Mapping[str, Any]]:
    return [_part(each) for each in value] if isinstance(value, list) else ()


def _ray_cluster(spec: Mapping[str, Any]) -> GangNeeds:
    """A head, and the workers of all groups; with Ray's autoscaler, the fewest workers that it keeps."""
    pods = {"headgroup": 1}
    for group in _parts(spec.get("workerGroupSpecs")):
        if group.get("suspend") is True:
            continue
        fewest, most = _number(group.get("minReplicas"), 0), _number(_capped(group.get("maxReplicas")), MAX_PODS)
        wanted = fewest
        if spec.get("enableInTreeAutoscaling") is not True:
            wanted = max(fewest, min(_number(group.get("replicas"), fewest), most))
        name = str(group.get("groupName"))
        pods[name] = pods.get(name, 0) + wanted * _number(group.get("numOfHosts"), 1)
    return GangNeeds(pods)


def _capped(value: object) -> object:
    """Return a number of pods that stands for no limit, such as 2147483647, as the largest one."""
    return min(value, MAX_PODS) if isinstance(value, int) else value


def _job_set(spec: Mapping[str, Any]) -> GangNeeds:
    """All Jobs together, unless they are created in an order."""
    pods: dict[str, int] = {}
    in_turn = _part(spec.get("startupPolicy")).get("startupPolicyOrder") == "InOrder"
    for each in _parts(spec.get("replicatedJobs")):
        job = _part(_part(each.get("template")).get("spec"))
        together = _number(job.get("parallelism"), 1)
        together = min(together, _number(job.get("completions"), together))
        pods[str(each.get("name"))] = _number(each.get("replicas"), 1) * together
        in_turn |= bool(each.get("dependsOn"))
    return GangNeeds(pods, in_turn)


def _mpi_job(spec: Mapping[str, Any]) -> GangNeeds:
    """The workers, and the launcher unless it is created once they are ready."""
    specs = _part(spec.get("mpiReplicaSpecs"))
    pods = {"worker": _number(_part(specs.get("Worker")).get("replicas"), 0)}
    if spec.get("launcherCreationPolicy") != "WaitForWorkersReady":
        pods["launcher"] = 1
    return GangNeeds(_at_least(pods, spec))


def _pytorch_job(spec: Mapping[str, Any]) -> GangNeeds:
    """Master and workers; of an elastic job, the fewest."""
    specs = _part(spec.get("pytorchReplicaSpecs"))
    pods = {role.lower(): _number(_part(each).get("replicas"), 1) for role, each in specs.items()}
    elastic = _part(spec.get("elasticPolicy")).get("minReplicas")
    return GangNeeds(_at_least(pods, spec, _number(elastic, MAX_PODS)))


def _at_least(pods: dict[str, int], spec: Mapping[str, Any], fewest: int = MAX_PODS) -> dict[str, int]:
    """Return the pods with no more workers than a gang needs, by `fewest` or by the object's scheduling policy."""
    policy = _part(_part(spec.get("runPolicy")).get("schedulingPolicy"))
    fewest = _number(policy.get("minAvailable"), fewest)
    others = sum(number for role, number in pods.items() if role != "worker")
    if "worker" in pods:
        pods["worker"] = min(pods["worker"], max(0, fewest - others))
    return pods


def _at(value: object, path: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of pods at a path. A field that is absent below one that is there means one pod."""
    if not path:
        yield _number(value, 1)
    elif path[0] == "*":
        entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        for each in entries:
            yield from _at(each, path[1:])
    elif isinstance(value, Mapping) and (path[0] in value or len(path) == 1):
        yield from _at(value.get(path[0]), path[1:])


_KNOWN = {
    "RayCluster": _Fields("ray.io/group", False, _ray_cluster),
    "JobSet": _Fields("jobset.sigs.k8s.io/replicatedjob-name", True, _job_set),
    "MPIJob": _Fields("training.kubeflow.org/job-role", True, _mpi_job),
    "PyTorchJob": _Fields("training.kubeflow.org/replica-type", False, _pytorch_job),
}
_ADDED = _Fields("", True, lambda _: GangNeeds({}))
