"""Pods in PodGroups of Kubernetes: those of the policy `gang` start together, on what their PodGroup asks for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from avactl.contracts.scheduling import PlacementPolicy
from avactl.scheduler.constraints.pod_groups import PodGroups
from avactl.scheduler.inspection.usage import job_of
from avactl.scheduler.objects.node_rules import UnsupportedError
from avactl.scheduler.objects.pod_groups import MAX_PODS, read_pod_group
from avactl.scheduler.objects.pod_info import read_pod
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup
from avactl.scheduler.writers.group_conditions import wanted_condition
from avactl.scheduler.writers.stale_gangs import StaleGangs
from tests.scheduler.memory import LEVELS, Memory

BASIC: dict[str, Any] = {"schedulingPolicy": {"basic": {}}}
GROUP = {"podGroupName": "etl-x7"}
KEY = "vision/etl-x7"
INDEX = "batch.kubernetes.io/job-completion-index"


def gang(count: int = 2, **more: Any) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": count}}, **more}


def within(key: str) -> dict[str, Any]:
    return {"schedulingConstraints": {"topology": [{"key": key}]}}


def group(spec: dict[str, Any], namespace: str = "vision", **status: Any) -> dict[str, Any]:
    metadata = {"namespace": namespace, "name": "etl-x7", "uid": "u-1", "generation": 1}
    return {"metadata": metadata, "spec": spec, "status": status}


def put(memory: Memory, *items: dict[str, Any]) -> None:
    """Change PodGroups, and decide."""
    for item in items:
        memory.constraints.get(PodGroups).put(item)
    decide(memory)


def decide(memory: Memory) -> None:
    for key in sorted(memory.cache.tables.waits.woken & memory.queue.units.keys()):
        memory.queue.push(memory.queue.units[key])
    memory.cache.tables.waits.woken.clear()
    memory.settle()


def members(memory: Memory, count: int, gpus: int = 8, first: int = 0, **spec: Any) -> None:
    for number in range(first, first + count):
        notes = {INDEX: str(number)}
        labels = {"batch.kubernetes.io/job-name": "etl"}
        memory.pod("vision", f"etl-{number}", gpus, notes=notes, labels=labels, schedulingGroup=GROUP, **spec)


def told(memory: Memory, *items: dict[str, Any]) -> str:
    """The message of the pod `train` after changes of PodGroups; empty once it is bound."""
    put(memory, *items)
    return "" if "nodeName" in memory.items["vision/train"]["spec"] else memory.said["train"]


def condition(memory: Memory, key: str = KEY) -> tuple[str, str, str]:
    """What the scheduler would write."""
    for item in memory.items.values():
        message = memory.said.get(item["metadata"]["name"])
        if message and not item["spec"].get("nodeName"):
            reason = memory.reasons[item["metadata"]["name"]].value
            entry = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            item["status"]["conditions"] = [entry]
            memory.pod_handler.put(item)
    found = memory.cache.tables.pod_groups[key]
    wanted = None if found is None else wanted_condition(found)
    return ("", "", "") if wanted is None else wanted[:3]


# -- basic groups, and what is refused


def test_a_basic_group_asks_for_nothing() -> None:
    memory = Memory()
    memory.pod("vision", "train", 8, schedulingGroup=GROUP)
    assert told(memory) == "waits for its PodGroup etl-x7 (scheduling.k8s.io/v1beta1), which does not exist"
    assert memory.reasons["train"] is WaitReason.POD_GROUP
    assert told(memory, group(BASIC, namespace="other")).endswith("does not exist")
    assert told(memory, group({**BASIC, "disruptionMode": {"single": {}}, "priority": 0})) == ""
    assert condition(memory) == ("True", "Scheduled", "")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "a `schedulingPolicy` other than `basic` and `gang`"),
        ({"schedulingPolicy": {"later": {}}}, "a `schedulingPolicy` other than `basic` and `gang`"),
        (gang(0), "a policy `gang` without a `minCount` of 1 to 100000, or with other fields"),
        (gang(MAX_PODS + 1), "a policy `gang` without a `minCount`"),
        ({"schedulingPolicy": {"gang": {"minCount": 2, "timeout": 5}}}, "a policy `gang` without a `minCount`"),
        ({**BASIC, **within(LEVELS[1])}, "a topology constraint with the policy `basic`"),
        (gang(schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]}), "a topology constraint other"),
        (gang(schedulingConstraints={"topology": [{"key": LEVELS[1], "mode": "x"}]}), "a topology constraint other"),
        (gang(schedulingConstraints={"racks": []}), "the constraint `racks`"),
        (gang(resourceClaims=[{"name": "gpu"}]), "`resourceClaims`, which its pods share"),
        ({**BASIC, "disruptionMode": {"all": {}}}, "the disruption mode `all` with the policy `basic`"),
        (gang(disruptionMode={"some": {}}), "a `disruptionMode` other than `single` and `all`"),
        (gang(parentCompositePodGroupName="all"), "a parent, `parentCompositePodGroupName`"),
        (gang(later={}), "`later`"),
    ],
)
def test_what_is_not_supported_is_refused(spec: dict[str, Any], words: str) -> None:
    memory = Memory()
    memory.pod("vision", "train", 8, schedulingGroup=GROUP)
    memory.pod("vision", "other", 8, schedulingGroup=GROUP)
    message = told(memory, group(spec))
    assert message.startswith(f"its PodGroup etl-x7 has {words}")
    assert message.endswith(": not supported")
    assert memory.reasons["train"] is WaitReason.UNSUPPORTED
    assert condition(memory)[:2] == ("False", "SchedulerError")
    assert told(memory, group(gang())) == ""


def test_a_topology_key_is_a_level_of_the_cluster() -> None:
    memory = Memory()
    members(memory, 2)
    put(memory, group(gang(**within("kubernetes.io/hostname"))))
    assert memory.said["etl-0"] == (
        "its PodGroup etl-x7 has the topology key `kubernetes.io/hostname`, which is no level of the cluster "
        "(example.com/block, example.com/rack): add it to `placement.levels` of the Cluster"
    )


@pytest.mark.parametrize(
    ("spec", "pod", "words"),
    [
        (gang(priority=5), {}, "the priority 5, and its pod etl-0 0"),
        ({**BASIC, "priority": 5}, {}, "the priority 5, and its pod etl-0 0"),
        (gang(priority=5, preemptionPolicy="Never"), {"priority": 5}, "the preemption policy Never, and its pod etl-0"),
    ],
)
def test_pods_contradict_their_group(spec: dict[str, Any], pod: dict[str, Any], words: str) -> None:
    memory = Memory()
    members(memory, 1, **pod)
    members(memory, 2, first=1, priority=5, preemptionPolicy=spec.get("preemptionPolicy", ""))
    put(memory, group(spec))
    assert memory.where() == {}
    assert memory.said["etl-1"].startswith(f"its PodGroup etl-x7 has {words}")
    # Without that pod it starts.
    memory.drop("vision", "etl-0")
    decide(memory)
    assert set(memory.where()) == {"etl-1", "etl-2"}


def test_gangs_of_avactl_do_not_need_it() -> None:
    memory = Memory()
    notes = {GANG_SIZE.name: "1"}
    memory.pod("vision", "train", 8, notes=notes, labels={names.GANG_LABEL: "train"}, schedulingGroup=GROUP)
    assert told(memory) == ""
    assert condition(memory) == ("", "", "")
    put(memory, group(gang(7)))
    assert [unit.key for unit in memory.queue] == ["vision/train"]


def test_a_gang_of_the_same_name_is_another_one() -> None:
    memory = Memory()
    memory.gang("vision", "etl-x7", 2, 8)
    members(memory, 2)
    put(memory, group(gang()))
    assert sorted(unit.key for unit in memory.queue) == ["vision/etl-x7", "vision/podgroup/etl-x7"]


def test_pods_of_different_groups_are_equal() -> None:
    """The name of the group is no requirement: equal pods are decided upon once."""
    pods = []
    for name in ("a", "b"):
        spec = {"containers": [], "schedulerName": "avactl", "schedulingGroup": {"podGroupName": name}}
        metadata = {"namespace": "vision", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        pods.append(read_pod({"metadata": metadata, "spec": spec, "status": {}}, 0.0))
    assert pods[0].shape is pods[1].shape
    assert [pod.pod_group for pod in pods] == ["a", "b"]


def test_an_account_without_the_right_refuses_them() -> None:
    memory = Memory()
    policy = PlacementPolicy(cluster="main", system_namespace="avactl-system", levels=(), gpu_driver="gpu.example.com")
    groups = PodGroups(memory.cache, policy)
    assert list(groups.watches()) == []
    memory.pod("vision", "train", 8, schedulingGroup=GROUP)
    (unit,) = memory.queue.units.values()
    with pytest.raises(UnsupportedError, match="may not read its PodGroup"):
        groups.check_ready(unit.waiting[0])


# -- gangs


@pytest.mark.parametrize("late", [False, True])
def test_all_start_or_none(late: bool) -> None:
    """Whichever comes first, the PodGroup or its pods."""
    memory = Memory(machines=2)
    if not late:
        put(memory, group(gang(3)))
    members(memory, 3)
    if late:
        put(memory, group(gang(3)))
    decide(memory)
    assert memory.where() == {}
    assert memory.said["etl-0"].startswith("needs 3 machines with 8 free GPUs; only 2")
    assert condition(memory)[:2] == ("False", "Unschedulable")
    memory.machine("n2", 8, {LEVELS[0]: "b", LEVELS[1]: "r1"})
    decide(memory)
    assert len(set(memory.where().values())) == 3
    assert condition(memory) == ("True", "Scheduled", "")
    assert {job_of(pod) for pod in memory.cache.tables.pods.values()} == {("etl", "job")}


def test_it_waits_for_as_many_pods_as_it_needs() -> None:
    memory = Memory()
    put(memory, group(gang(2)))
    members(memory, 1)
    decide(memory)
    assert memory.where() == {}
    assert condition(memory) == ("", "", "")
    members(memory, 1, first=1)
    decide(memory)
    assert len(memory.where()) == 2


def test_more_pods_start_where_there_is_room() -> None:
    """The first ones together; the others preempt nothing."""
    memory = Memory(machines=3)
    memory.pod("vision", "low", 8, priority=-1)
    memory.settle()
    put(memory, group(gang(2)))
    members(memory, 3)
    decide(memory)
    assert set(memory.where()) == {"low", "etl-0", "etl-1"}
    assert not memory.evictions
    assert memory.reasons["etl-2"] is WaitReason.GROWTH


def test_any_pods_of_the_group_make_it_whole() -> None:
    """A pod that fits nowhere holds none of the others back."""
    memory = Memory(machines=3)
    put(memory, group(gang(2)))
    members(memory, 1, nodeSelector={"zone": "moon"})
    members(memory, 2, first=1)
    decide(memory)
    assert set(memory.where()) == {"etl-1", "etl-2"}
    assert condition(memory) == ("True", "Scheduled", "")


def test_a_pod_that_comes_later_makes_it_whole() -> None:
    """What was found of the pods before does not hold for others."""
    memory = Memory(machines=2, gpus=4)
    put(memory, group(gang(2)))
    members(memory, 1, gpus=4)
    members(memory, 1, gpus=8, first=1)
    decide(memory)
    assert memory.where() == {}
    members(memory, 1, gpus=4, first=2)
    decide(memory)
    assert set(memory.where()) == {"etl-0", "etl-2"}


def test_a_member_that_runs_already_waits_for_any_other() -> None:
    memory = Memory(machines=2, gpus=4)
    put(memory, group(gang(2)))
    members(memory, 1, gpus=4, nodeName="n0")
    for number, gpus in ((1, 8), (2, 4)):
        members(memory, 1, gpus=gpus, first=number)
        decide(memory)
    assert set(memory.where()) == {"etl-0", "etl-2"}


def test_other_pods_than_the_first_make_it_whole() -> None:
    """The first pod takes the room of both others."""
    memory = Memory(machines=1)
    put(memory, group(gang(2)))
    members(memory, 1, gpus=8)
    members(memory, 2, gpus=4, first=1)
    decide(memory)
    assert set(memory.where()) == {"etl-1", "etl-2"}


def test_one_domain_holds_all() -> None:
    memory = Memory(machines=4, rack=2)
    memory.pod("vision", "here", 8, nodeSelector={"kubernetes.io/hostname": "n0"})
    memory.settle()
    members(memory, 3)
    put(memory, group(gang(3, **within(LEVELS[1]))))
    assert set(memory.where()) == {"here"}
    assert memory.said["etl-0"].startswith("needs 3 machines with 8 free GPUs in one rack; ")
    memory.drop("vision", *(f"etl-{number}" for number in range(3)))
    memory.constraints.get(PodGroups).remove(KEY)
    members(memory, 2)
    put(memory, group(gang(2, **within(LEVELS[1]))))
    assert {memory.where()[f"etl-{number}"] for number in range(2)} == {"n2", "n3"}
    # Another one keeps to the domain of those that run.
    members(memory, 1, first=2)
    decide(memory)
    assert "etl-2" not in memory.where()


def test_a_node_without_the_label_is_in_no_domain() -> None:
    memory = Memory(machines=0)
    memory.machine("n0", 8, {})
    members(memory, 1)
    put(memory, group(gang(1, **within(LEVELS[1]))))
    assert memory.where() == {}
    memory.machine("n1", 8, {LEVELS[0]: "b", LEVELS[1]: "r"})
    decide(memory)
    assert memory.where() == {"etl-0": "n1"}


def test_min_count_can_change() -> None:
    memory = Memory(machines=2)
    members(memory, 3)
    put(memory, group(gang(3)))
    assert memory.where() == {}
    put(memory, group(gang(2)))
    assert len(memory.where()) == 2
    team = memory.cache.quotas
    assert team.may_yield_to(memory.cache.tables.pods["vision/etl-2"], ["V100"]) is False
    # Those that run go on; one of them is surplus now.
    put(memory, group(gang(1)))
    (unit,) = memory.queue
    assert (unit.size, unit.missing, unit.surplus) == (1, 0, 1)
    assert team.may_yield_to(memory.cache.tables.pods["vision/etl-2"], ["V100"]) is True


def test_a_group_that_is_gone() -> None:
    memory = Memory(machines=2)
    members(memory, 3)
    put(memory, group(gang(3)))
    memory.constraints.get(PodGroups).remove(KEY)
    decide(memory)
    assert memory.where() == {}
    assert memory.said["etl-0"].endswith("which does not exist")
    assert len(list(memory.queue)) == 3
    memory.drop("vision", "etl-0", "etl-1", "etl-2")
    assert memory.cache.tables.pod_groups[KEY] is None
    assert not memory.cache.tables.pod_groups.changed
    assert not list(memory.queue)


def test_the_next_pods_of_a_job_are_a_gang_again() -> None:
    """A Job makes as many pods at a time as it may; when they have succeeded, the next ones start together, too."""
    memory = Memory(machines=2)
    put(memory, group(gang(2)))
    members(memory, 2)
    decide(memory)
    for name in ("etl-0", "etl-1"):
        memory.items[f"vision/{name}"]["status"]["phase"] = "Succeeded"
        memory.pod_handler.put(memory.items[f"vision/{name}"])
    memory.pod("vision", "other", 8)
    decide(memory)
    members(memory, 2, first=2)
    decide(memory)
    assert {"etl-2", "etl-3"}.isdisjoint(memory.where())
    memory.drop("vision", "other")
    decide(memory)
    assert {"etl-2", "etl-3"} <= memory.where().keys()


def test_a_pod_made_anew_joins_those_that_have_succeeded() -> None:
    memory = Memory(machines=2)
    put(memory, group(gang(2)))
    members(memory, 2)
    decide(memory)
    for name, phase in (("etl-0", "Succeeded"), ("etl-1", "Failed")):
        memory.items[f"vision/{name}"]["status"]["phase"] = phase
        memory.pod_handler.put(memory.items[f"vision/{name}"])
    memory.pod("vision", "etl-1b", 8, schedulingGroup=GROUP)
    decide(memory)
    assert "etl-1b" in memory.where()


@pytest.mark.parametrize("order", ["pods", "groups"])
def test_another_replica_knows_the_gangs(order: str) -> None:
    """Of pods that run and that have ended, in whichever order it learns."""
    memory = Memory(machines=3)
    put(memory, group(gang(2)))
    members(memory, 3)
    decide(memory)
    memory.items["vision/etl-0"]["status"]["phase"] = "Succeeded"
    memory.pod_handler.put(memory.items["vision/etl-0"])
    other = Memory(machines=0)
    if order == "groups":
        other.constraints.get(PodGroups).put(group(gang(2)))
    for item in memory.items.values():
        other.pod_handler.put(item)
    other.constraints.get(PodGroups).put(group(gang(2)))
    (unit,) = other.queue
    assert (unit.key, len(unit.pods), unit.size) == ("vision/podgroup/etl-x7", 3, 2)
    # Of a basic group, only those are kept that hold resources.
    other.constraints.get(PodGroups).put(group(BASIC))
    assert not list(other.queue)
    assert set(other.cache.tables.pods) == {"vision/etl-1", "vision/etl-2"}


# -- disruption


@pytest.mark.parametrize("mode", ["single", "all"])
def test_disruption_of_a_part_or_of_all(mode: str) -> None:
    """One pod more than needed stops alone with the mode `single`, and with `all` none does."""
    memory = Memory(machines=3)
    members(memory, 3)
    put(memory, group(gang(2, disruptionMode={mode: {}})))
    assert len(memory.where()) == 3
    memory.pod("vision", "urgent", 8, priority=10)
    decide(memory)
    memory.settle()
    stopped = memory.go()
    assert len(stopped) == (1 if mode == "single" else 3)


def test_the_condition_stays() -> None:
    """Once a PodGroup was scheduled it is never said to be unschedulable; unchanged conditions are not written."""
    memory = Memory(machines=1)
    entry = {"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled", "message": ""}
    members(memory, 2)
    put(memory, group(gang(2), conditions=[entry]))
    assert condition(memory) == ("", "", "")
    put(memory, group(gang(2)))
    status, reason, message = condition(memory)
    assert (status, reason) == ("False", "Unschedulable")
    entry = {"type": "PodGroupInitiallyScheduled", "status": status, "reason": reason, "message": message}
    put(memory, group(gang(2), conditions=[{**entry, "lastTransitionTime": "2026-01-01T00:00:00Z"}]))
    assert condition(memory) == ("", "", "")


def test_what_a_tenant_writes_is_bounded() -> None:
    name = "x" * 300
    parsed = read_pod_group(group(gang(**{name: 1})))
    assert len(parsed.refused) < 100


def test_min_count_stops_no_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang that is not whole is restarted, unless its PodGroup was scheduled before."""
    memory = Memory(machines=2)
    put(memory, group(gang(2)))
    members(memory, 2)
    decide(memory)
    entry = {"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled", "message": ""}
    nobody: Any = None
    stale = StaleGangs(nobody, memory.queue, cast(Any, memory), -1.0)
    restarted: list[str] = []
    monkeypatch.setattr(stale, "_restart_gang", lambda unit: restarted.append(unit.key))
    for conditions in ([], [entry]):
        put(memory, group(gang(3), conditions=conditions))
        stale.tick()
        stale.tick()
        assert restarted == ["vision/podgroup/etl-x7"]


class Unread(dict[str, Any]):
    """Pods of a unit, at all of which nobody looks."""

    def values(self) -> Any:
        raise AssertionError("it looks at all pods")


def test_a_changed_group_of_many_pods_looks_at_its_gang_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, count, pushed = Memory(machines=0), 40, list[str]()
    memory.constraints.get(PodGroups).put(group(gang(count)))
    members(memory, count)
    push = memory.queue.push

    def counted(unit: QueuedPodGroup) -> None:
        pushed.append(unit.key)
        push(unit)

    monkeypatch.setattr(memory.queue, "push", counted)
    memory.constraints.get(PodGroups).put(group(gang(2)))
    assert pushed == [f"vision/podgroup/{GROUP['podGroupName']}"]
    # Pods leave a gang without a look at the others.
    (unit,) = (unit for unit in memory.queue.units.values() if unit.gang)
    pods, unit.pods = list(unit.pods.values()), Unread(unit.pods)
    for pod in pods[1:]:
        unit.remove(pod)
    assert (len(unit.pods), unit.size) == (1, 2)
    unit.remove(pods[0])
    assert unit.size == 1
