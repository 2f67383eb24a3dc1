"""Weeks of running: nothing that the scheduler remembers grows with the pods, teams and machines that are gone."""

from __future__ import annotations

from typing import Any

from avactl.kube.access import ClusterAccess
from avactl.kube.client import Client, Rate
from avactl.scheduler.constraints.pod_topology import PodTopology
from avactl.scheduler.inspection.cluster_view import ClusterView
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.writers.pod_reporter import PodReporter
from tests.scheduler.memory import Memory
from tests.scheduler.offline import pod

PODS = 3000


def test_nothing_is_left_of_pods_that_have_ended_before_they_are_deleted() -> None:
    world = Memory()
    for number in range(20):
        world.pod("vision", f"p{number}", 1)
        world.settle()
        end(world, f"vision/p{number}")
        world.drop("vision", f"p{number}")
    assert not world.cycle._learnt
    assert not world.queue.units


def test_a_pod_that_is_first_seen_again_when_it_has_ended_is_done_with() -> None:
    world = Memory()
    world.settle()
    world.pod("vision", "short", 1)
    unit = world.queue.pop()
    assert unit is not None
    world.cycle.decide(unit)
    (order,) = world.orders
    world.items["vision/short"]["spec"]["nodeName"] = order.node
    end(world, "vision/short")
    assert not order.pod.assumed
    assert not world.queue.units
    assert not world.cache.tables.state.bookings


def test_a_replica_that_stands_by_forgets_pods_that_others_have_placed() -> None:
    world = Memory()
    for number in range(PODS):
        world.pod("vision", f"p{number}", 1)
        item = world.items[f"vision/p{number}"]
        item["spec"]["nodeName"] = "n0"
        item["metadata"]["annotations"]["avactl.dev/preemption"] = "x/1"
        world._condition(f"vision/p{number}", "DisruptionTarget", "PreemptionByScheduler", "Preempted for x: y")
        assert world.cache.tables.preemption_marks
        world.drop("vision", f"p{number}")
    assert len(world.queue._active) < PODS / 2
    assert not world.cache.tables.preemption_marks


def test_pods_that_go_while_another_of_their_group_waits_leave_nothing_behind() -> None:
    world = Memory()
    world.pod("vision", "first", 16)
    world.settle()
    for number in range(PODS):
        world.pod("vision", f"p{number}", 16)
        while (unit := world.queue.pop()) is not None:
            world.cycle.decide(unit)
        world.drop("vision", f"p{number}")
    (group,) = world.queue._groups.values()
    assert len(group) < PODS / 2
    world.drop("vision", "first")
    world.queue.retry(world.cache.tables.change_epoch)
    assert not world.queue._groups


def test_units_keep_their_order_when_old_entries_are_taken_out() -> None:
    world = Memory()
    for number in range(PODS):
        world.pod("vision", f"p{number}", 1)
        if number % 3:
            world.drop("vision", f"p{number}")
    order = [next(iter(unit.pods.values())).name for unit in iter(world.queue.pop, None)]
    assert order == [f"p{number}" for number in range(0, PODS, 3)]


def test_a_gang_that_is_made_anew_with_fewer_pods_does_not_wait_for_those_of_before() -> None:
    world = Memory()
    world.gang("vision", "job", 4, 4)
    world.settle()
    for number in range(4):
        item = world.items[f"vision/job-{number}"]
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.pod_handler.put(item)
    world.gang("vision", "job", 6, 4, size=2, first=4)
    world.settle()
    world.drop("vision", *(f"job-{number}" for number in range(4)))
    world.settle()
    assert sorted(world.where()) == ["job-4", "job-5"]


def test_what_pods_waited_for_is_forgotten_with_them() -> None:
    world = Memory()
    for number in range(20):
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{number}"}}
        world.pod("vision", f"p{number}", 1, volumes=[volume])
        world.settle()
        world.drop("vision", f"p{number}")
    assert not world.cache.tables.waits


def test_nothing_is_left_of_teams_that_are_gone() -> None:
    world = Memory()
    world.quota("vision", 8)
    world.settle()
    for number in range(20):
        world.gang(f"team-{number}", "job", 2, 1, size=1)
        world.settle()
        assert len(world.where()) == 2
        world.drop(f"team-{number}", "job-0", "job-1")
    quotas = world.cache.quotas
    ledger = quotas.current_ledger()
    left = [ledger._used, ledger._amounts, quotas._ranks, quotas._surplus, quotas._members]
    assert not any(left)


def test_the_expected_workload_is_the_same_whatever_number_a_node_set_has() -> None:
    world = Memory()
    for number in range(20):
        world.pod("vision", f"p{number}", 1)
        world.settle()
        world.drop("vision", f"p{number}")
        world.cache.tables.stale = True  # as when a slice of devices changes
    assert len(world.cache.tables.scorer.workload.shares()) == 1


def test_nothing_is_left_of_machines_that_are_gone() -> None:
    world = Memory()
    world.settle()
    known = len(world.cache.dra._gpus)
    for number in range(20):
        name = f"spot-{number}"
        status = {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "10"}}
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        world.cache.put_node({"metadata": metadata, "spec": {}, "status": status})
        world.cache.drop_node(name)
    assert len(world.cache.dra._gpus) == known


def test_nothing_is_left_of_ports_and_disks_that_are_free_again() -> None:
    world = Memory()
    world.settle()
    for number in range(20):
        disk = {"name": "disk", "gcePersistentDisk": {"pdName": f"disk-{number}"}}
        port = {"name": "main", "ports": [{"hostPort": 9000 + number}]}
        world.pod("vision", f"p{number}", containers=[port], volumes=[disk])
        world.settle()
        assert world.where()
        world.drop("vision", f"p{number}")
    assert not world.constraints.get(PodTopology)._ports
    assert not world.constraints.get(PodTopology)._disks


def test_a_namespace_that_goes_takes_nothing_with_it_that_pods_of_others_hold() -> None:
    world = Memory(machines=1)
    world.cache.tables.put_namespace("vision", {})
    world.cache.tables.put_namespace("ads", {})
    term = {
        "labelSelector": {"matchLabels": {"app": "x"}},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/hostname",
    }
    alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.pod("vision", "alone", affinity=alone)
    world.settle()
    world.cache.tables.put_namespace("ads", None)
    world.drop("vision", "alone")
    world.pod("vision", "next", labels={"app": "x"})
    world.settle()
    assert list(world.where()) == ["next"]
    assert not world.constraints.get(PodTopology)._against


def test_a_pod_does_not_pay_for_the_constraints_of_those_that_were_before() -> None:
    world = Memory()
    waits = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near("late")]}}
    world.pod("vision", "waits", affinity=waits, labels={"app": "other"})
    for number in range(100):
        alone = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near(f"app-{number}")]}}
        world.pod("vision", f"alone-{number}", labels={"app": f"app-{number}"}, affinity=alone)
    world.settle()
    assert len(world.constraints.get(PodTopology)._tallies) == 101
    world.drop("vision", *(f"alone-{number}" for number in range(100)))
    for number in range(0, PODS // 2, 100):
        group = [f"p{each}" for each in range(number, number + 100)]
        for name in group:
            world.pod("vision", name)
        world.settle()
        world.drop("vision", *group)
    assert len(world.constraints.get(PodTopology)._tallies) == 1
    world.pod("vision", "comes", labels={"app": "late"})
    world.settle()
    assert "waits" in world.where()


def test_who_waits_for_company_is_told_of_it_whatever_namespaces_go_meanwhile() -> None:
    world = Memory()
    world.cache.tables.put_namespace("other", {})
    waits = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near("late")]}}
    world.pod("vision", "waits", affinity=waits)
    world.settle()
    world.cache.tables.put_namespace("other", None)
    world.settle()
    world.pod("vision", "comes", labels={"app": "late"})
    world.settle()
    assert set(world.where()) == {"waits", "comes"}


def test_who_looks_on_for_days_forgets_pods_too() -> None:
    view = ClusterView(Client(ClusterAccess("http://nobody", None, lambda: "")), "system")
    for number in range(20):
        item = pod(f"p{number % 10}", 1, "a", job="train", checkpoint_every="60")
        item["metadata"] |= {"uid": str(number), "ownerReferences": [{"controller": True}]}
        view.put_pod(item)
        item["status"]["phase"] = "Succeeded"
        if number % 2:
            view.put_pod(item)
            view.put_pod(item)
            view.drop_pod(f"vision/p{number % 10}")
    assert len(view.cache.tables.pods) == len(view.checkpoints) == len(view.owned) == 5


def test_events_of_pods_with_the_longest_names_can_be_written() -> None:
    reporter = PodReporter(Client(ClusterAccess("http://nobody", None, lambda: "")), Rate(0, 0))
    reporter.scheduled(PodInfo(pod("x" * 235 + "-" + "y" * 17, 0), 0.0), "a")
    (report,) = reporter._queue
    name, _, number = report.body["metadata"]["name"].partition(".")
    assert (name, len(number)) == ("x" * 235, 16)
    assert report.body["regarding"]["kind"] == "Pod"


def near(app: str) -> dict[str, Any]:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}


def end(world: Memory, key: str) -> None:
    item: dict[str, Any] = world.items[key]
    item["status"]["phase"] = "Succeeded"
    world.pod_handler.put(item)
