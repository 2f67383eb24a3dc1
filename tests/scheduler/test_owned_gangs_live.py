"""RayClusters, JobSets and MPIJobs on a real API server, with pods as their controllers and that of Jobs write them."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts.scheduling import KNOWN_GANG_KINDS
from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
KINDS = {kind.kind: kind for kind in KNOWN_GANG_KINDS}


@pytest.fixture
def kinds(world: World) -> World:
    """The scheduler on a plane that serves all kinds but PyTorchJobs."""
    for kind in KNOWN_GANG_KINDS:
        if kind.kind != "PyTorchJob":
            _define(world, kind.kind)
    return world


def _define(world: World, name: str) -> None:
    kind = KINDS[name]
    group, _, version = kind.api_version.partition("/")
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"kind": name, "listKind": f"{name}List", "plural": kind.resource, "singular": name.lower()},
        "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
    }
    # The API server asks for it in groups of Kubernetes' own domains.
    approval = {"api-approved.kubernetes.io": "unapproved, for tests"}
    metadata = {"name": f"{kind.resource}.{group}", "annotations": approval}
    definition = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    world.kube.define({**definition, "metadata": metadata, "spec": spec})


def _make(world: World, kind: str, spec: dict[str, Any], name: str = "train") -> list[dict[str, Any]]:
    """Create an object; return the owner references of what its controller makes."""
    metadata = {"name": name, "namespace": world.namespace}
    made = world.kube.create(
        {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, "spec": spec}, validation="Ignore"
    ).body
    owner = {"apiVersion": made["apiVersion"], "kind": kind, "name": name, "uid": made["metadata"]["uid"]}
    return [{**owner, "controller": True, "blockOwnerDeletion": True}]


def _pod(world: World, name: str, owners: list[dict[str, Any]], labels: dict[str, str], gpus: int = 8) -> None:
    amounts = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "main", "image": "registry.example.com/x:1"}
    metadata = {"name": name, "namespace": world.namespace, "labels": labels, "ownerReferences": owners}
    world.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {
                "schedulerName": "avactl",
                "terminationGracePeriodSeconds": 0,
                "containers": [{**container, "resources": {"requests": amounts, "limits": amounts}}],
            },
        }
    )


def _ray_pod(world: World, owners: list[dict[str, Any]], name: str, group: str) -> None:
    kind = "head" if group == "headgroup" else "worker"
    labels = {"ray.io/cluster": owners[0]["name"], "ray.io/group": group, "ray.io/node-type": kind}
    _pod(world, name, owners, labels, 0 if kind == "head" else 8)


def _job(world: World, owners: list[dict[str, Any]], name: str, labels: dict[str, str], pods: int, gpus: int) -> None:
    """A Job of a JobSet or MPIJob, whose pods the controller of Jobs makes."""
    amounts = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {
        "name": "main",
        "image": "registry.example.com/x:1",
        "resources": {"requests": amounts, "limits": amounts},
    }
    pod = {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [container]}
    metadata = {"name": name, "namespace": world.namespace, "labels": labels, "ownerReferences": owners}
    spec = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    world.kube.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})


def _machines(world: World, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        world.node(f"n{number}")
    world.ready()


def test_a_ray_cluster_starts_whole_and_gets_a_lost_worker_back(kinds: World) -> None:
    world = kinds
    _machines(world, 2)
    group = {"groupName": "w", "replicas": 3, "minReplicas": 1, "maxReplicas": 5, "numOfHosts": 1}
    owners = _make(world, "RayCluster", {"headGroupSpec": {}, "workerGroupSpecs": [group]})
    first = world.start()
    _ray_pod(world, owners, "head", "headgroup")
    for number in range(2):
        _ray_pod(world, owners, f"w-{number}", "w")
    assert world.waiting("head") == "waits for the other pods of its gang: 3 of 4 exist"
    _ray_pod(world, owners, "w-2", "w")
    world.waiting("head", "needs 3 machines with 8 free", 40)
    assert not any(world.nodes_of().values())
    _machines(world, 1, first=2)
    assert len(set(world.bound().values())) == 3
    # KubeRay makes a lost worker anew; a scheduler that knows nothing but the API server places it at once.
    world.kill(first)
    world.free_lease()
    world.kube.delete("v1", "Pod", "w-0", world.namespace)
    world.wait(lambda: "w-0" not in world.pods())
    world.start()
    _ray_pod(world, owners, "w-3", "w")
    world.bound("w-3")
    assert world.defects() == []


def test_two_job_sets_do_not_hold_what_the_other_lacks(kinds: World) -> None:
    world = kinds
    _machines(world, 2)
    for name in ("a", "b"):
        spec = {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 1}}}]}
        owners = _make(world, "JobSet", spec, name)
        for number in range(2):
            labels = {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": "w"}
            _job(world, owners, f"{name}-w-{number}", labels, 1, 8)
    world.wait(lambda: len(world.pods()) == 4)
    world.start()
    world.wait(lambda: sum(map(bool, world.nodes_of().values())) == 2)
    placed = {name[0] for name, node in world.nodes_of().items() if node}
    assert len(placed) == 1
    late = next(name for name, node in world.nodes_of().items() if not node)
    assert world.waiting(late, "needs 2 machines").startswith("needs 2 machines with 8 free")
    assert world.defects() == []


def test_an_mpi_job_with_a_launcher_made_by_a_job(kinds: World) -> None:
    world = kinds
    _machines(world, 1)
    specs = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
    owners = _make(world, "MPIJob", {"mpiReplicaSpecs": specs})
    labels = {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/operator-name": "mpi-operator"}
    world.start()
    for number in range(2):
        _pod(world, f"w-{number}", owners, {**labels, "training.kubeflow.org/job-role": "worker"})
    _job(world, owners, "train-launcher", {**labels, "training.kubeflow.org/job-role": "launcher"}, 1, 0)
    world.waiting("w-0", "needs 2 machines", 40)
    assert not any(world.nodes_of().values())
    _machines(world, 1, first=1)
    world.wait(lambda: len(world.pods()) == 3 and all(world.nodes_of().values()))
    assert world.defects() == []


def test_a_kind_that_is_not_served_is_placed_one_by_one(kinds: World) -> None:
    world = kinds
    _machines(world, 1)
    account = world.kube.get("v1", "ServiceAccount", "default", world.namespace)
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "train"}
    # No such object can exist; the collector of garbage does not know its kind, either.
    owners = [{**owner, "uid": account["metadata"]["uid"], "controller": True}]
    world.start()
    for number in range(2):
        labels = {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/replica-type": "worker"}
        _pod(world, f"w-{number}", owners, labels)
    world.wait(lambda: sum(map(bool, world.nodes_of().values())) == 1)
    late = next(name for name, node in world.nodes_of().items() if not node)
    words = f"placed one by one, because the scheduler does not know {world.namespace}/PyTorchJob/train"
    assert world.waiting(late, "placed one by one").endswith(words)
    assert world.defects() == []
