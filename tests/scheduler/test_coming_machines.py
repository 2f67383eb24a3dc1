"""Preemptions wait for machines that autoscalers have ordered (`preemptAfter`), for a bounded time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from avactl.contracts import names
from avactl.kube.timestamps import timestamp, unix_time
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.planned_machines import read_autoscaler_status
from avactl.scheduler.objects.wait_reasons import WaitReason
from avactl.scheduler.preemption.coming_machines import ORDER_S
from tests.hardware.topo_matrices import library_machine
from tests.scheduler.memory import Memory
from tests.scheduler.test_claims import GPU, TWO_SOCKETS, Claiming, request

AFTER = 300
START = unix_time("2026-01-01T00:00:00Z")
GROUP = "asg-v100"


def pool(name: str = "p", most: int | None = 4, after: float = AFTER, taint: str = "") -> ConfiguredPool:
    return ConfiguredPool(
        name,
        "devicePlugin",
        "nvidia.com/gpu",
        "",
        "",
        library_machine("v100-pcie-8"),
        labels={names.POOL_LABEL: name, names.GPU_LABEL: "V100"},
        taints=({"key": taint, "effect": "NoSchedule"},) if taint else (),
        preempt_after=after,
        node_groups=(GROUP,),
        most=most,
    )


@dataclass
class Cluster:
    """A machine whose GPUs all belong to pods of low priority, of a pool that an autoscaler can extend."""

    pool: ConfiguredPool = field(default_factory=pool)
    memory: Memory = field(default_factory=lambda: Memory(machines=0))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.memory.time = lambda: START + self.now
        self.memory.cache.put_pool(self.pool)
        self.machine("n0")
        for number in range(8):
            self.memory.pod("a", f"low{number}", 1)
        self.memory.settle()
        assert len(self.memory.where()) == 8

    @property
    def coming(self) -> Any:
        return self.memory.cycle.preemptor.machines

    def machine(self, name: str) -> None:
        self.memory.machine(name, 8, self.pool.labels, cpu="40")

    def at(self, seconds: float) -> None:
        """Set the time, and let the scheduler decide."""
        self.now = seconds
        self.memory.clock = int(seconds)
        self.memory.settle()

    def ask(self, name: str = "high", gpus: int = 8, **more: Any) -> None:
        self.memory.clock = int(self.now) - 1
        self.memory.pod("a", name, gpus, priority=10, **more)
        self.memory.settle()

    def order(self, name: str = "claim", labels: Mapping[str, str] = {}, **status: Any) -> None:
        """Have Karpenter order a machine."""
        given = {names.POOL_LABEL: self.pool.name, **labels}
        metadata = {"name": name, "labels": given, "creationTimestamp": timestamp(START + self.now)}
        self.coming.put_claim({"metadata": metadata, "status": status})
        self.memory.settle()

    def report(self, status: str, target: int, ready: int, since: float = 0.0, **counts: Any) -> None:
        """Have Cluster Autoscaler write its status."""
        registered = {"total": ready, "ready": ready, "notStarted": 0, **counts}
        text = STATUS.format(
            group=GROUP, status=status, target=target, since=timestamp(START + since), registered=registered
        )
        self.coming.put_status({"data": {"status": text}})
        self.memory.settle()

    @property
    def preempted(self) -> bool:
        return bool(self.memory.evictions)

    def said(self, name: str = "high") -> str:
        return self.memory.said[name]


STATUS = """time: 2026-01-01 00:00:00.5 +0000 UTC
autoscalerStatus: Running
clusterWide:
  health: {{status: Healthy}}
nodeGroups:
- name: other
  health: {{cloudProviderTarget: 9, nodeCounts: {{registered: {{total: 1}}}}}}
  scaleUp: {{status: InProgress}}
- name: {group}
  health:
    status: Healthy
    nodeCounts:
      registered: {registered}
      longUnregistered: 0
      unregistered: 0
    cloudProviderTarget: {target}
    minSize: 0
    maxSize: 4
  scaleUp:
    status: {status}
    lastProbeTime: "2026-01-01T00:00:00.123456789Z"
    lastTransitionTime: "{since}"
"""


def test_a_machine_that_comes_is_used() -> None:
    cluster = Cluster()
    cluster.ask()
    assert "a machine of pool p may be ordered: no pod is preempted for it until 2026-01-01T00:00:30Z" in cluster.said()
    assert cluster.memory.reasons["high"] is WaitReason.UNSCHEDULABLE  # or the autoscaler would give the machine up
    cluster.at(10)
    cluster.order(conditions=[{"type": "Launched", "status": "True"}])
    assert "a machine of pool p is on its way: no pod is preempted for it until 2026-01-01T00:05:00Z" in cluster.said()
    cluster.at(200)
    assert not cluster.preempted
    cluster.machine("n1")
    cluster.at(201)
    assert cluster.memory.where()["high"] == "n1"
    cluster.order(conditions=[{"type": "Initialized", "status": "True"}])
    cluster.at(AFTER + 1)
    assert not cluster.preempted
    assert not cluster.coming.waiting


@pytest.mark.parametrize("ordered", [False, True], ids=["never ordered", "never ready"])
def test_a_machine_that_does_not_come_leads_to_the_preemption(ordered: bool) -> None:
    cluster = Cluster()
    cluster.ask()
    bound = AFTER if ordered else ORDER_S
    if ordered:
        cluster.at(5)
        cluster.order()
    cluster.at(bound - 1)
    assert not cluster.preempted
    cluster.at(bound)
    assert cluster.preempted
    assert cluster.memory.reasons["high"] is WaitReason.PREEMPTION


def test_a_pod_that_takes_any_model_waits_for_the_one_that_comes() -> None:
    cluster = Cluster()
    other = {names.POOL_LABEL: "q", names.GPU_LABEL: "H100"}
    machine = library_machine("h100-sxm-8")
    cluster.memory.cache.put_pool(replace(pool("q", most=1), machine=machine, labels=other, node_groups=()))
    cluster.memory.machine("q0", 8, other)
    cluster.memory.pod("a", "low-q", 8)
    cluster.memory.settle()
    cluster.order()
    cluster.ask()
    assert "a machine of pool p is on its way" in cluster.said()
    cluster.at(AFTER - 1)
    assert not cluster.preempted
    cluster.at(AFTER)
    assert cluster.preempted


def test_an_order_that_is_given_up_ends_the_wait() -> None:
    cluster = Cluster()
    cluster.ask()
    cluster.order()
    cluster.at(ORDER_S + 1)
    assert not cluster.preempted
    cluster.coming.drop_claim("claim")
    cluster.memory.settle()
    assert cluster.preempted


@pytest.mark.parametrize(
    "more",
    [
        {"after": 0},
        {"most": 1},  # it may not grow
        {"taint": "example.com/other"},
    ],
    ids=["not asked for", "full", "of others"],
)
def test_nobody_waits_for_a_machine_that_cannot_help(more: dict[str, Any]) -> None:
    cluster = Cluster(pool(**more))
    cluster.ask()
    assert cluster.preempted


def test_nobody_waits_for_a_machine_that_is_too_small_or_elsewhere() -> None:
    cluster = Cluster(pool(most=2))
    cluster.ask("elsewhere", nodeSelector={"kubernetes.io/hostname": "n0"})
    assert cluster.preempted
    cluster = Cluster(pool(most=2))
    cluster.memory.gang("a", "pair", 2, 8, priority=10)
    cluster.memory.settle()
    # It needs both machines: one is on its way, and the other is in use.
    assert not cluster.preempted
    assert "pair-0" not in cluster.memory.where()
    cluster.at(ORDER_S + 1)
    assert not cluster.preempted


def test_quotas_are_not_helped_by_machines() -> None:
    cluster = Cluster()
    cluster.memory.quota("a", 8, 0)
    cluster.ask("high", 1)
    assert cluster.preempted


def test_a_machine_is_promised_once() -> None:
    cluster = Cluster(pool(most=2))
    cluster.ask("first")
    cluster.order()
    cluster.at(1)
    assert not cluster.preempted
    cluster.ask("second", 4)
    assert [eviction.victims[0].pod.name[:3] for eviction in cluster.memory.evictions] == ["low"]
    assert "second" in {pod.name for eviction in cluster.memory.evictions for pod in eviction.places}
    cluster.memory.go()
    cluster.at(2)
    assert "second" in cluster.memory.where()
    assert "first" not in cluster.memory.where()


def test_cluster_autoscalers_status() -> None:
    cluster = Cluster()
    cluster.report("NoActivity", 1, 1)
    cluster.ask()
    cluster.at(20)
    cluster.report("InProgress", 2, 1, since=20)
    cluster.at(AFTER - 1)
    assert not cluster.preempted
    assert "is on its way" in cluster.said()
    cluster.report("Backoff", 1, 1, since=AFTER - 1)
    assert cluster.preempted


def test_an_autoscaler_that_backs_off_orders_nothing() -> None:
    cluster = Cluster()
    cluster.report("Backoff", 1, 1)
    cluster.ask()
    assert cluster.preempted


@pytest.mark.parametrize(
    ("counts", "coming"),
    [
        ({"target": 3, "ready": 1}, 2),
        ({"target": 3, "ready": 3}, 0),
        # A machine that is being deleted is registered, and not part of the target.
        ({"target": 2, "ready": 2, "beingDeleted": 1}, 1),
        # One has registered, and its kubelet is not ready yet.
        ({"target": 3, "ready": 2, "total": 3, "notStarted": 1}, 1),
    ],
)
def test_how_many_machines_a_group_waits_for(counts: dict[str, int], coming: int) -> None:
    cluster = Cluster()
    cluster.report("InProgress", **counts)
    assert cluster.coming.groups[GROUP].coming == coming


def test_a_machine_that_lacks_its_gpus_still_is_on_its_way() -> None:
    """Its device plugin starts minutes after its kubelet, and Cluster Autoscaler has done what it wanted."""
    cluster = Cluster()
    cluster.report("InProgress", 2, 1)
    cluster.ask()
    cluster.at(100)
    cluster.report("NoActivity", 2, 1, since=100, total=2, unready={"total": 1, "resourceUnready": 1})
    cluster.at(200)
    assert not cluster.preempted
    assert "is on its way" in cluster.said()
    cluster.at(AFTER)
    assert cluster.preempted


@pytest.mark.parametrize("text", ["", "[", "a", "nodeGroups: 3", "nodeGroups: [{name: {}}, 4]", "x" * (1 << 21), None])
def test_an_unreadable_status_is_none(text: object) -> None:
    assert read_autoscaler_status({"data": {"status": text}}, 0) == {}


def test_equal_pods_do_not_wait_one_after_the_other() -> None:
    """Only the first of equal units is tried: the others must not begin to wait when it is done."""
    cluster = Cluster()
    for number in range(3):
        cluster.ask(f"high{number}", 2)
    cluster.order()
    cluster.order("second")
    for second in range(AFTER + 3):
        cluster.at(second)
        cluster.memory.go()
    assert {"high0", "high1", "high2"} <= cluster.memory.where().keys()


def test_no_wait_is_longer_than_the_bound() -> None:
    """Random orders, machines, ends and pods: who could preempt does so in time, and never while it could not."""
    waited = 0
    for seed in range(60):
        draw = random.Random(seed)
        cluster = Cluster(pool(most=draw.randint(1, 5), after=draw.choice([20, 60, AFTER])))
        asked: dict[str, int] = {}
        claims = 0
        for second in range(0, 900, 5):
            cluster.at(second)
            event = draw.random()
            if event < 0.04 and len(asked) < 6:
                name = f"high{len(asked)}"
                cluster.ask(name, draw.choice([1, 4, 8]))
                asked[name] = second
            elif event < 0.12:
                cluster.order(f"claim{claims}")
                claims += 1
            elif event < 0.14 and claims:
                cluster.coming.drop_claim(f"claim{draw.randrange(claims)}")
            elif event < 0.16 and claims:
                number = draw.randrange(claims)
                cluster.machine(f"new{number}")
                cluster.order(f"claim{number}", conditions=[{"type": "Initialized", "status": "True"}])
            cluster.memory.settle()
            waited += cluster.coming.waiting
            for key, wait in cluster.coming._waits.items():
                latest = asked[key.rpartition("-")[0]] + cluster.pool.preempt_after
                assert cluster.now < wait.until - START <= latest, seed
            cluster.memory.go()
            cluster.memory.settle()
            for name, since in asked.items():
                if name not in cluster.memory.where() and cluster.now >= since + cluster.pool.preempt_after + 5:
                    assert "no pod is preempted" not in cluster.said(name), (seed, second, name)
    assert waited > 500


def test_claims_wait_for_machines_too() -> None:
    world = Claiming(1)
    grown = pool("p", most=4)
    machine = ConfiguredPool("p", "dra", "", "", GPU, TWO_SOCKETS)
    world.cache.put_pool(replace(machine, labels=grown.labels, preempt_after=AFTER, most=4))
    world.time = lambda: START
    for name in ("low", "high"):
        world.claim(name, request("r", 8))
        world.asking(name, name, priority=0 if name == "low" else 10)
        world.settle()
    assert set(world.where()) == {"low"}
    assert not world.evictions
    assert "a machine of pool p may be ordered" in world.said["high"]
    world.time = lambda: START + world.clock + ORDER_S
    world.settle()
    assert world.evictions


def test_pods_without_gpus_wait_for_machines_too() -> None:
    memory = Memory(machines=0)
    cpus = replace(library_machine("v100-pcie-8"), gpu="", gpus=0, switches=(), nvlink=None)
    memory.cache.put_pool(replace(pool("c", most=2), machine=cpus, labels={names.POOL_LABEL: "c"}))
    memory.time = lambda: START
    labels = {names.POOL_LABEL: "c"}
    metadata = {"name": "c0", "labels": labels}
    memory.cache.put_node(
        {"metadata": metadata, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "9"}}}
    )
    memory.pod("a", "low", amounts={"cpu": "8"})
    memory.settle()
    memory.pod("a", "large", amounts={"cpu": "1000"}, priority=10)
    memory.pod("a", "high", amounts={"cpu": "8"}, priority=10)
    memory.settle()
    assert not memory.evictions
    assert "a machine of pool c may be ordered" in memory.said["high"]
    assert "machine of pool" not in memory.said["large"]
