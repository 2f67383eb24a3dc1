"""Objects of other controllers, whose pods are as their controllers write them."""

from __future__ import annotations

import random
from time import monotonic
from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.pod_annotations import WITHIN
from avactl.contracts.scheduling import KNOWN_GANG_KINDS, GangKind
from avactl.scheduler.constraints.owned_gangs import UNKNOWN_S, OwnedGangs
from avactl.scheduler.objects.gang_kinds import GangNeeds, read_needs
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.queue.owned_pod_group import OwnedPodGroup
from tests.scheduler.memory import LEVELS, Memory

KINDS = {kind.kind: kind for kind in KNOWN_GANG_KINDS}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "x"}


def ray(*groups: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"headGroupSpec": {}, "workerGroupSpecs": list(groups), **spec}


def group(name: str, replicas: int | None = None, fewest: int | None = None, hosts: int = 1, **more: Any) -> Any:
    given = {"replicas": replicas, "minReplicas": fewest, "maxReplicas": 2**31 - 1}
    return {"groupName": name, "numOfHosts": hosts, **{key: n for key, n in given.items() if n is not None}, **more}


def replicated(name: str, replicas: int = 1, **job: Any) -> dict[str, Any]:
    after = {"dependsOn": job.pop("dependsOn")} if "dependsOn" in job else {}
    return {"name": name, "replicas": replicas, "template": {"spec": job}, **after}


def needs_of(kind: str, spec: dict[str, Any]) -> GangNeeds | None:
    return read_needs(KINDS[kind], {"metadata": {"name": "x"}, "spec": spec})


@pytest.mark.parametrize(
    ("kind", "spec", "pods"),
    [
        ("RayCluster", ray(group("a", 4)), {"headgroup": 1, "a": 4}),
        ("RayCluster", ray(group("a", 4, hosts=2), group("b", 1)), {"headgroup": 1, "a": 8, "b": 1}),
        ("RayCluster", ray(group("a", 4), group("b", 4, suspend=True)), {"headgroup": 1, "a": 4}),
        ("RayCluster", ray(group("a", 1, 3)), {"headgroup": 1, "a": 3}),
        ("RayCluster", ray(group("a", 9, 1, maxReplicas=4)), {"headgroup": 1, "a": 4}),
        ("RayCluster", ray(group("a", 16, 2), enableInTreeAutoscaling=True), {"headgroup": 1, "a": 2}),
        ("RayCluster", ray(group("a", 16), enableInTreeAutoscaling=True), {"headgroup": 1}),
        ("JobSet", {"replicatedJobs": [replicated("w", 4), replicated("ps", 2, parallelism=3)]}, {"w": 4, "ps": 6}),
        ("JobSet", {"replicatedJobs": [replicated("w", parallelism=4, completions=2)]}, {"w": 2}),
        ("MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 3}}}, {"launcher": 1, "worker": 3}),
        (
            "MPIJob",
            {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": {"Worker": {"replicas": 3}}},
            {"worker": 3},
        ),
        (
            "MPIJob",
            {
                "mpiReplicaSpecs": {"Worker": {"replicas": 8}},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 3}},
            },
            {"launcher": 1, "worker": 2},
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}},
            {"master": 1, "worker": 3},
        ),
        (
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 8}}, "elasticPolicy": {"minReplicas": 2}},
            {"worker": 2},
        ),
    ],
)
def test_an_object_says_how_many_pods_start_together(kind: str, spec: dict[str, Any], pods: dict[str, int]) -> None:
    assert needs_of(kind, spec) == GangNeeds(pods)


@pytest.mark.parametrize(
    "spec",
    [
        {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [replicated("a"), replicated("b")]},
        {"replicatedJobs": [replicated("a"), replicated("b", dependsOn=[{"name": "a", "status": "Complete"}])]},
    ],
)
def test_jobs_in_an_order_are_gangs_of_their_own(spec: dict[str, Any]) -> None:
    assert needs_of("JobSet", spec) == GangNeeds({"a": 1, "b": 1}, in_turn=True)


@pytest.mark.parametrize(
    "spec",
    [
        {"replicatedJobs": [replicated("a", -1)]},
        {"replicatedJobs": [replicated("a", 10**9)]},
        {"replicatedJobs": [{"name": "a", "replicas": "2"}]},
        {"replicatedJobs": [replicated(str(number)) for number in range(1001)]},
        {"replicatedJobs": "none"},
        {},
        "none",
    ],
)
def test_what_is_no_number_of_pods_is_unknown(spec: Any) -> None:
    assert needs_of("JobSet", spec) is None


def test_paths_of_added_kinds() -> None:
    paths = ("spec.tfReplicaSpecs.*.replicas", "spec.extra.replicas", "spec.groups.*.size")
    kind = GangKind(api_version="kubeflow.org/v1", kind="TFJob", resource="tfjobs", label="job", replicas=paths)
    spec = {"tfReplicaSpecs": {"Chief": {}, "Worker": {"replicas": 4}}, "groups": [{"size": 2}, {}]}
    assert read_needs(kind, {"metadata": {}, "spec": spec}) == GangNeeds({"": 1 + 4 + 2 + 1})
    assert read_needs(kind, {"metadata": {}, "spec": {}}) is None
    assert read_needs(kind, {"metadata": {"deletionTimestamp": "x"}, "spec": spec}) is None


# -- what the scheduler makes of them ----------------------------------------------------------------------------------


def put(memory: Memory, kind: str, name: str, spec: dict[str, Any] | None, namespace: str = "vision") -> None:
    """Add, change or remove an object."""
    gangs = memory.constraints.get(OwnedGangs)
    store = next(watch.store for watch in _watches(memory, gangs) if watch.resource == KINDS[kind].resource)
    if spec is None:
        store.remove(f"{namespace}/{name}")
    else:
        store.put({"metadata": {"namespace": namespace, "name": name}, "spec": spec})
    wake(memory)


def _watches(memory: Memory, gangs: OwnedGangs) -> list[Any]:
    return list(gangs.watches())


def wake(memory: Memory) -> None:
    for key in sorted(memory.cache.tables.waits.woken):
        if key in memory.queue.units:
            memory.queue.push(memory.queue.units[key])
    memory.cache.tables.waits.woken.clear()
    memory.settle()


def ray_pod(memory: Memory, name: str, role: str, gpus: int = 8, cluster: str = "train", **more: Any) -> None:
    kind = "head" if role == "headgroup" else "worker"
    labels = {"ray.io/cluster": cluster, "ray.io/group": role, "ray.io/node-type": kind, "ray.io/is-ray-node": "yes"}
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster, "uid": cluster}
    memory.pod("vision", name, gpus, labels=labels, **{"owner": owner, **more})


def ray_cluster(memory: Memory, workers: int, gpus: int = 8, cluster: str = "train") -> None:
    ray_pod(memory, f"{cluster}-head", "headgroup", 0, cluster)
    for number in range(workers):
        ray_pod(memory, f"{cluster}-w-{number}", "w", gpus, cluster)


def jobset_pod(memory: Memory, name: str, role: str, gpus: int = 8, **more: Any) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": role}
    memory.pod("vision", name, gpus, labels=labels, owner=JOB, **more)


def test_a_ray_cluster_starts_as_a_whole() -> None:
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_cluster(memory, 3)
    memory.settle()
    assert memory.where() == {}
    assert memory.said["train-w-0"].startswith("needs 3 machines with 8 free GPUs; only 2 available")
    assert memory.reasons["train-head"] is WaitReason.UNSCHEDULABLE
    memory.machine("n2", 8, {LEVELS[0]: "b", LEVELS[1]: "r1"})
    memory.settle()
    assert sorted(memory.where()) == ["train-head", "train-w-0", "train-w-1", "train-w-2"]


def test_two_clusters_do_not_share_what_only_one_can_use() -> None:
    """One pod at a time, each would hold one machine and wait for the other's."""
    memory = Memory(machines=2)
    for cluster in ("a", "b"):
        put(memory, "RayCluster", cluster, ray(group("w", 2)))
    for number in range(2):
        for cluster in ("a", "b"):
            ray_pod(memory, f"{cluster}-w-{number}", "w", cluster=cluster)
    for cluster in ("a", "b"):
        ray_pod(memory, f"{cluster}-head", "headgroup", 0, cluster)
    memory.settle()
    assert sorted(memory.where()) == ["a-head", "a-w-0", "a-w-1"]


def test_pods_that_do_not_exist_yet_are_waited_for() -> None:
    memory = Memory(machines=4)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_cluster(memory, 2)
    memory.settle()
    assert memory.where() == {}
    (unit,) = memory.queue.units.values()
    assert [(len(pods), there, size) for pods, there, size in unit.incomplete()] == [(3, 3, 4)]
    ray_pod(memory, "train-w-2", "w")
    memory.settle()
    assert len(memory.where()) == 4
    assert list(unit.incomplete()) == []


def test_an_autoscaled_cluster_starts_with_its_fewest_workers_and_grows() -> None:
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 16, 1), enableInTreeAutoscaling=True))
    ray_cluster(memory, 3)
    memory.settle()
    assert sorted(memory.where()) == ["train-head", "train-w-0", "train-w-1"]
    # A new machine helps the third one, which is no reason to stop the others, of this cluster or of another one.
    assert memory.reasons["train-w-2"] is WaitReason.UNSCHEDULABLE
    assert memory.evictions == []
    memory.machine("n2", 8, {LEVELS[0]: "b", LEVELS[1]: "r1"})
    memory.settle()
    assert "train-w-2" in memory.where()


def test_a_pod_that_replaces_another_does_not_wait_for_the_rest() -> None:
    memory = Memory(machines=3)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_cluster(memory, 3)
    memory.settle()
    assert len(memory.where()) == 4
    memory.drop("vision", "train-w-0", "train-w-1")
    ray_pod(memory, "train-w-3", "w")
    memory.settle()
    assert "train-w-3" in memory.where()


def test_small_pods_follow_though_a_large_one_does_not_fit() -> None:
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 1), group("x", 0)))
    ray_cluster(memory, 1)
    memory.settle()
    ray_pod(memory, "big", "x", 16)
    ray_pod(memory, "small", "x", 4)
    memory.settle()
    assert sorted(memory.where()) == ["small", "train-head", "train-w-0"]


def test_after_a_restart_ended_pods_count() -> None:
    """A Job with more completions than it runs at once: the last pod is alone."""
    memory = Memory(machines=4)
    put(memory, "JobSet", "train", {"replicatedJobs": [replicated("w", parallelism=4, completions=5)]})
    for number in range(4):
        jobset_pod(memory, f"w-{number}", "w")
    memory.settle()
    assert len(memory.where()) == 4
    for number in range(4):
        memory.items[f"vision/w-{number}"]["status"]["phase"] = "Succeeded"
        memory.pod_handler.put(memory.items[f"vision/w-{number}"])
    other = memory.restart()
    put(other, "JobSet", "train", {"replicatedJobs": [replicated("w", parallelism=4, completions=5)]})
    jobset_pod(other, "w-4", "w")
    other.settle()
    assert "w-4" in other.where()


def test_jobs_in_an_order_start_one_after_the_other() -> None:
    memory = Memory(machines=2)
    policy = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    put(memory, "JobSet", "train", {**policy, "replicatedJobs": [replicated("init"), replicated("node", 2)]})
    jobset_pod(memory, "init", "init", 0)
    memory.settle()
    assert "init" in memory.where()
    jobset_pod(memory, "node-0", "node")
    memory.settle()
    assert "node-0" not in memory.where()
    jobset_pod(memory, "node-1", "node")
    memory.settle()
    assert {"node-0", "node-1"} <= memory.where().keys()


def test_a_launcher_that_comes_after_its_workers() -> None:
    memory = Memory(machines=2)
    specs = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
    put(memory, "MPIJob", "train", {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": specs})
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "train", "uid": "t"}
    labels = {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/operator-name": "mpi-operator"}
    for number in range(2):
        role = {"training.kubeflow.org/job-role": "worker"}
        memory.pod("vision", f"w-{number}", 8, labels={**labels, **role}, owner=owner)
    memory.settle()
    assert sorted(memory.where()) == ["w-0", "w-1"]
    memory.pod("vision", "launcher", labels={**labels, "training.kubeflow.org/job-role": "launcher"}, owner=JOB)
    memory.settle()
    assert "launcher" in memory.where()


def test_a_helper_with_the_labels_is_alone() -> None:
    """KubeRay's Job that cleans up after a cluster has the labels of its head, and the cluster waits for its end."""
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_pod(memory, "cleanup", "headgroup", 0, owner=JOB)
    memory.settle()
    assert "cleanup" in memory.where()


def test_a_changed_number_is_taken_over_while_it_waits() -> None:
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_cluster(memory, 3)
    memory.settle()
    assert memory.where() == {}
    put(memory, "RayCluster", "train", ray(group("w", 2)))
    assert sorted(memory.where()) == ["train-head", "train-w-0", "train-w-1"]


def test_pods_of_an_unknown_object_start_one_by_one_after_a_moment() -> None:
    memory = Memory(machines=2)
    ray_cluster(memory, 3)
    memory.settle()
    assert memory.where() == {}
    assert memory.said["train-head"].startswith("waits for vision/RayCluster/train: the scheduler does not know it")
    assert memory.reasons["train-head"] is WaitReason.GANG
    _later(memory)
    assert sorted(memory.where()) == ["train-head", "train-w-0", "train-w-1"]
    assert memory.said["train-w-2"].endswith(
        "; placed one by one, because the scheduler does not know vision/RayCluster/train"
    )


def _later(memory: Memory) -> None:
    gangs = memory.constraints.get(OwnedGangs)
    for pod in memory.cache.tables.pods.values():
        pod.seen = monotonic() - UNKNOWN_S - 1
    gangs._due = dict.fromkeys(gangs._due, 0.0)
    gangs.tick()
    wake(memory)


def test_an_object_that_is_seen_late_makes_a_gang() -> None:
    memory = Memory(machines=2)
    ray_cluster(memory, 3)
    memory.settle()
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    _later(memory)
    assert memory.where() == {}
    assert memory.said["train-head"].startswith("needs 3 machines")


def test_objects_of_other_namespaces_do_not_matter() -> None:
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 99)), namespace="other")
    ray_cluster(memory, 2)
    _later(memory)
    assert len(memory.where()) == 3


def test_gangs_by_label_and_pod_groups_come_first() -> None:
    memory = Memory(machines=2)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_pod(memory, "grouped", "w", schedulingGroup={"podGroupName": "g"})
    labels = {names.GANG_LABEL: "mine", "ray.io/cluster": "train", "ray.io/group": "w"}
    memory.pod("vision", "labelled", 8, labels=labels, owner={"kind": "RayCluster", "name": "train"})
    memory.settle()
    assert sorted(memory.where()) == ["labelled"]
    assert not any(isinstance(unit, OwnedPodGroup) for unit in memory.queue.units.values())


def test_within_one_rack() -> None:
    memory = Memory(machines=4, rack=2)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_pod(memory, "train-head", "headgroup", 0, notes={WITHIN.name: LEVELS[1]})
    for number in range(3):
        ray_pod(memory, f"train-w-{number}", "w", notes={WITHIN.name: LEVELS[1]})
    memory.settle()
    assert memory.where() == {}
    assert "rack" in memory.said["train-head"]


def test_quotas_admit_it_as_a_whole() -> None:
    memory = Memory(machines=4)
    memory.quota("vision", 16, 0)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_cluster(memory, 3)
    memory.settle()
    assert memory.where() == {}
    assert memory.reasons["train-w-0"] is WaitReason.QUOTA


def test_preemption_takes_workers_that_ray_can_do_without_first() -> None:
    memory = Memory(machines=3)
    put(memory, "RayCluster", "train", ray(group("w", 3, 1), enableInTreeAutoscaling=True))
    ray_cluster(memory, 3)
    memory.settle()
    assert len(memory.where()) == 4
    memory.pod("vision", "urgent", 8, priority=10)
    memory.settle()
    assert [victim.pod.name for each in memory.evictions for victim in each.victims] == ["train-w-2"]


def test_preemption_takes_the_whole_of_what_needs_all() -> None:
    memory = Memory(machines=3)
    put(memory, "RayCluster", "train", ray(group("w", 3)))
    ray_cluster(memory, 3)
    memory.settle()
    memory.pod("vision", "urgent", 8, priority=10)
    memory.settle()
    victims = sorted(victim.pod.name for each in memory.evictions for victim in each.victims)
    assert victims == ["train-head", "train-w-0", "train-w-1", "train-w-2"]


def test_a_gang_preempts_for_all_of_its_pods() -> None:
    memory = Memory(machines=2)
    for name in ("a", "b"):
        memory.pod("vision", name, 8)
    memory.settle()
    put(memory, "RayCluster", "train", ray(group("w", 2)))
    ray_pod(memory, "train-head", "headgroup", 0, priority=10)
    for number in range(2):
        ray_pod(memory, f"train-w-{number}", "w", priority=10)
    memory.settle()
    assert sorted(victim.pod.name for each in memory.evictions for victim in each.victims) == ["a", "b"]
    memory.go()
    memory.settle()
    assert sorted(memory.where()) == ["train-head", "train-w-0", "train-w-1"]


@pytest.mark.parametrize("seed", range(8))
def test_random_objects_start_as_a_whole_or_wait(seed: int) -> None:
    """Whatever order objects and pods come in, and whatever ends: a gang that has not run has no pod on a node."""
    rng = random.Random(seed)
    memory = Memory(machines=4)
    needs: dict[str, tuple[int, int]] = {}
    """Workers that start together, and those that are made, by cluster."""
    made: dict[str, int] = {}
    started: set[str] = set()
    for step in range(60):
        if len(needs) < 12 and rng.random() < 0.4:
            name, workers, fewest = f"c{step}", rng.randint(1, 4), rng.randint(0, 3)
            scales = rng.random() < 0.4
            needs[name] = (min(fewest, workers) if scales else workers), workers
            spec = ray(group("w", workers, min(fewest, workers)), enableInTreeAutoscaling=scales)
            put(memory, "RayCluster", name, spec)
        for name, (_, workers) in needs.items():
            if made.get(name, -1) < workers and rng.random() < 0.6:
                number = made[name] = made.get(name, -1) + 1
                role = "headgroup" if not number else "w"
                ray_pod(memory, f"{name}-{number}", role, 0 if not number else rng.choice([4, 8]), name)
        memory.settle()
        for name, (fewest, workers) in needs.items():
            mine = {pod for pod in memory.where() if pod.startswith(f"{name}-")}
            if name not in started and mine:
                assert f"{name}-0" in mine, f"step {step}: {name} runs without its head"
                assert len(mine) > fewest, f"step {step}: {name} runs with {len(mine) - 1} of {workers} workers"
                started.add(name)
        running = sorted(memory.where())
        if running and rng.random() < 0.5:
            victim = rng.choice(running)
            rest = [pod for pod in running if pod.startswith(f"{victim.partition('-')[0]}-")]
            memory.drop("vision", *(rest if rng.random() < 0.3 else [victim]))
    assert len(started) > 3


def test_pods_that_fit_are_tried_behind_many_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's pods name the same owner, and differ, so that the time for one gang ends before its own pods."""
    monkeypatch.setattr("avactl.scheduler.cycle.scheduling_cycle.CHOICE_S", -1.0)
    memory = Memory(machines=1)
    for number in range(3):
        ray_pod(memory, f"train-forged-{number}", "w", 9 + number)
    ray_pod(memory, "train-own", "w", 8)
    _later(memory)
    for _ in range(3):
        memory.cache.tables.change_epoch += 1
        memory.settle()
    assert list(memory.where()) == ["train-own"]
