"""Machines and GPUs with faults: what new pods get, who has to leave, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.gpu_faults import GpuFault, render_faults
from avactl.contracts.pod_annotations import DEVICES, GANG_SIZE, GPU_SHARE
from avactl.hardware.machine import Machine
from avactl.scheduler.cache.node_faults import describe_faulty_nodes, suspended_pools
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.node_faults import NodeFault, read_faults, read_true_conditions
from avactl.scheduler.objects.pod_info import FAULT, PodInfo
from avactl.scheduler.writers.fault_evictions import FaultEvictions
from tests.hardware.topo_matrices import library_machine
from tests.scheduler.memory import Memory
from tests.scheduler.test_claims import GPU, Claiming, request

PCIE = library_machine("v100-pcie-8")
RESET = GpuFault(3, True, "needs a reset")


class Stopper:
    """Marks and removes pods at once, as if they had ended; the names of those that it was told to stop."""

    def __init__(self, world: Memory) -> None:
        self._world = world
        self.stopped: list[str] = []
        self.notes: dict[str, str] = {}

    def stop(self, pods: Sequence[PodInfo], reason: str, note: str, cause: str) -> None:
        assert (reason, cause) == (FAULT, "fault")
        for pod in pods:
            self.stopped.append(pod.name)
            self.notes[pod.name] = note
        for pod in list(pods):
            self._world.drop(pod.namespace, pod.name)


class Faulty(Memory):
    """Machines n0, n1, … of a pool."""

    def __init__(
        self,
        on_fault: str = "avoid",
        nodes: int = 2,
        kubelet: bool = False,
        machine: Machine = PCIE,
        fault_conditions: tuple[str, ...] = (),
    ) -> None:
        super().__init__(machines=0)
        machine = replace(machine, kubelet_chooses=kubelet)
        pool = ConfiguredPool("p", "devicePlugin", "nvidia.com/gpu", "", "", machine, on_fault, fault_conditions)
        self.cache.put_pool(pool)
        self.gpus = machine.gpus
        for number in range(nodes):
            self.node(f"n{number}")
        self.stopper = Stopper(self)
        self.evictions_by_fault = FaultEvictions(self.cache, self.queue, self.budgets, self.stopper)

    def node(
        self, name: str, *faults: GpuFault, healthy: int | None = None, conditions: Mapping[str, str] = {}
    ) -> None:
        """A machine with faults that the node daemon reports, and with conditions of others that are true."""
        usual = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        told = [{"type": kind, "status": "True", "message": said} for kind, said in conditions.items()]
        if faults:
            told.append({"type": names.GPUS_CONDITION, "status": "False", "message": render_faults(faults)})
        status = {
            "capacity": {**usual, "nvidia.com/gpu": str(self.gpus)},
            "allocatable": {**usual, "nvidia.com/gpu": str(self.gpus if healthy is None else healthy)},
            "conditions": told,
        }
        labels = {names.POOL_LABEL: "p", names.GPU_LABEL: "V100", "kubernetes.io/hostname": name}
        self.cache.put_node({"metadata": {"name": name, "labels": labels}, "status": status})

    def devices(self, name: str, team: str = "team") -> set[int]:
        text = self.items[f"{team}/{name}"]["metadata"]["annotations"].get(DEVICES.name, "")
        return {int(index) for index in text.split(",") if index}

    def leave(self) -> list[str]:
        """Those who have to leave do; their names."""
        self.stopper.stopped.clear()
        self.settle()
        self.evictions_by_fault.tick()
        return sorted(self.stopper.stopped)


# -- what new pods get ------------------------------------------------------------------------------------------------


def test_new_pods_get_the_other_gpus_of_the_machine() -> None:
    world = Faulty(nodes=1)
    world.node("n0", RESET)
    for number in range(8):
        world.pod("team", f"one-{number}", 1)
    world.settle()
    started = [name for name in world.where() if name.startswith("one-")]
    assert len(started) == 7
    assert set.union(*(world.devices(name) for name in started)) == set(range(8)) - {3}
    waits = next(name for name in world.said if name not in started)
    assert "never" not in world.said[waits]
    world.node("n0")
    world.settle()
    assert world.devices(waits) == {3}, "it is repaired"


def test_a_faulty_gpu_stays_with_its_pod_and_goes_to_nobody_else() -> None:
    world = Faulty(nodes=1)
    world.pod("team", "old", 8)
    world.settle()
    world.node("n0", RESET, GpuFault(5, False, "is to be reset"))
    world.pod("team", "new", 6)
    world.settle()
    assert set(world.where()) == {"old"}
    assert world.cache.claims.held_gpus(world.cache.tables.pods["team/old"]) == 8000
    world.drop("team", "old")
    world.settle()
    assert world.devices("new") == {0, 1, 2, 4, 6, 7}
    world.pod("team", "more", 1)
    world.settle()
    assert "more" not in world.where()
    world.cache.tables.stale = True
    world.settle()
    assert "more" not in world.where(), "nor after a restart"


def test_parts_of_a_faulty_gpu_are_not_shared() -> None:
    world = Faulty(nodes=1)
    world.pod("team", "half", 0, {GPU_SHARE.name: "0.5"})
    world.settle()
    (gpu,) = world.devices("half")
    world.node("n0", GpuFault(gpu, False, "is to be reset"))
    world.pod("team", "other", 0, {GPU_SHARE.name: "0.5"})
    world.settle()
    assert world.devices("other") != {gpu}
    assert world.devices("half") == {gpu}


def test_nobody_is_preempted_for_a_faulty_gpu() -> None:
    world = Faulty(nodes=1)
    world.quota("owner", 8)
    world.quota("guest", 0, 8)
    world.pod("guest", "old", 4)
    world.settle()
    held = world.devices("old", "guest")
    world.node("n0", *(GpuFault(gpu, False, "is to be reset") for gpu in sorted(held)))
    world.pod("owner", "mine", 8)
    world.settle()
    assert not world.evictions, "the GPUs of the guest would not help"


@pytest.mark.parametrize(
    ("withdrawn", "faults", "free"),
    [(0, 1, 7), (1, 1, 7), (2, 1, 0), (1, 0, 0), (1, 2, 0), (0, 0, 8)],
    ids=["known", "both", "another one", "unknown", "one of two", "none"],
)
def test_a_withdrawn_gpu_that_is_known_closes_no_machine(withdrawn: int, faults: int, free: int) -> None:
    world = Faulty(nodes=1)
    world.node("n0", *[GpuFault(gpu, True, "needs a reset") for gpu in range(faults)], healthy=8 - withdrawn)
    for number in range(8):
        world.pod("team", f"one-{number}", 1)
    world.settle()
    assert len(world.where()) == free
    assert all(0 not in world.devices(name) for name in world.where()) or not faults


@pytest.mark.parametrize(("withdrawn", "starts"), [(0, False), (1, True), (2, True)])
def test_where_the_kubelet_chooses_it_has_to_know_the_fault(withdrawn: int, starts: bool) -> None:
    world = Faulty(nodes=1, kubelet=True)
    world.node("n0", RESET, healthy=8 - withdrawn)
    world.pod("team", "one", 1)
    world.pod("team", "cpu")
    world.settle()
    assert ("one" in world.where()) == starts
    assert "cpu" in world.where()
    if not starts:
        assert "with a fault (avactl.dev/GPUsHealthy)" in world.said["one"]


def test_a_fault_of_the_machine_closes_it_for_gpus_only() -> None:
    world = Faulty()
    world.node("n0", GpuFault(None, True, "GPU 0000:17:00.0: GPU is lost"))
    for name in ("a", "b"):
        world.pod("team", name, 8)
    world.pod("team", "cpu", nodeSelector={"kubernetes.io/hostname": "n0"})
    world.settle()
    assert sorted(world.where().items())[-1] == ("cpu", "n0")
    assert [world.where().get(name) for name in ("a", "b")] in (["n1", None], [None, "n1"])


def test_a_drained_machine_takes_no_pods() -> None:
    world = Faulty("drain", nodes=1)
    world.node("n0", RESET)
    world.pod("team", "gpu", 1)
    world.pod("team", "cpu")
    world.settle()
    assert not world.where()
    assert "with a fault" in world.said["cpu"]
    world.node("n0")
    world.settle()
    assert set(world.where()) == {"gpu", "cpu"}


# -- who leaves -------------------------------------------------------------------------------------------------------


def test_by_default_nobody_has_to_leave() -> None:
    world = Faulty("avoid")
    world.pod("team", "old", 8)
    world.settle()
    world.node("n0", RESET)
    world.node("n1", RESET)
    assert world.leave() == []


def test_pods_on_the_gpu_leave_with_their_gang_and_start_elsewhere() -> None:
    world = Faulty("evict", nodes=4)
    world.gang("team", "big", 2, 8)
    world.pod("team", "other", 4)
    world.settle()
    bad = world.where()["big-1"]
    assert world.leave() == []
    world.node(bad, RESET)
    assert world.leave() == ["big-0", "big-1"]
    assert world.stopper.notes["big-0"].startswith("its gang starts again elsewhere: ")
    assert f"node {bad}: GPU 3: needs a reset (avactl.dev/GPUsHealthy)" in world.stopper.notes["big-1"]
    world.gang("team", "big", 2, 8)
    world.settle()
    assert bad not in (world.where()["big-0"], world.where()["big-1"])
    assert world.leave() == []


def test_pods_on_other_gpus_stay() -> None:
    world = Faulty("evict", nodes=1)
    for number in range(8):
        world.pod("team", f"one-{number}", 1)
    world.settle()
    world.node("n0", RESET)
    (mine,) = (name for name in world.where() if world.devices(name) == {3})
    assert world.leave() == [mine]


def test_pods_that_can_go_on_leave_only_drained_machines() -> None:
    for policy, leave in (("evict", []), ("drain", ["old"])):
        world = Faulty(policy)
        world.pod("team", "old", 8)
        world.settle()
        world.node(world.where()["old"], GpuFault(0, False, "is to be reset when its programs have ended"))
        assert world.leave() == leave


def test_an_elastic_gang_loses_only_those_that_it_can_do_without() -> None:
    world = Faulty("evict", nodes=4)
    world.gang("team", "fit", 4, 8, size=2)
    world.settle()
    where = world.where()
    world.node(where["fit-3"], RESET)
    assert world.leave() == ["fit-3"]
    world.node(where["fit-0"], RESET)
    assert world.leave() == ["fit-0", "fit-1", "fit-2"], "without the first there is no job"


@pytest.mark.parametrize(("gpus", "leave"), [(8, ["old"]), (4, [])])
def test_where_the_kubelet_chooses_only_the_certain_leave(gpus: int, leave: list[str]) -> None:
    world = Faulty("evict", kubelet=True)
    world.pod("team", "old", gpus)
    world.settle()
    world.node(world.where()["old"], RESET)
    assert world.leave() == leave


def test_a_pod_whose_kubelet_reports_its_device() -> None:
    world = Faulty("evict", kubelet=True)
    for name in ("sick", "well"):
        world.pod("team", name, 2)
    world.settle()
    devices = [{"resourceID": "GPU-1", "health": "Healthy"}, {"resourceID": "GPU-2", "health": "Unhealthy"}]
    status = {"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": devices}]}
    world.items["team/sick"]["status"]["containerStatuses"] = [status]
    world.pod_handler.put(world.items["team/sick"])
    assert world.leave() == ["sick"]
    assert "its kubelet reports nvidia.com/gpu GPU-2 as unhealthy" in world.stopper.notes["sick"]


def test_replicas_that_work_leave_as_their_budget_says() -> None:
    world = Faulty("drain")
    labels = {"app": "web"}
    for name in ("a", "b"):
        world.pod("team", name, 1, labels=labels, nodeSelector={"kubernetes.io/hostname": "n0"})
    world.settle()
    budget: dict[str, Any] = {
        "metadata": {"namespace": "team", "name": "web"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": 0},
    }
    world.budgets.put(budget)
    spare = next(gpu for gpu in range(8) if gpu not in world.devices("a") | world.devices("b"))
    world.node("n0", GpuFault(spare, True, "needs a reset"))
    assert world.leave() == []
    (gpu,) = world.devices("a")
    world.node("n0", GpuFault(gpu, True, "needs a reset"))
    assert world.leave() == ["a"], "it does not work any more"
    budget["status"]["disruptionsAllowed"] = 1
    world.budgets.put(budget)
    assert world.leave() == ["b"]


def test_nobody_leaves_when_most_machines_report_faults() -> None:
    """A monitor or a driver that is wrong everywhere must not stop everything."""
    world = Faulty("evict", nodes=4)
    for number in range(4):
        world.pod("team", f"job-{number}", 8)
    world.settle()
    for number in range(3):
        world.node(f"n{number}", RESET)
    assert world.leave() == []
    reason = "3 of 4 machines of pool p have faults, so no pod is evicted from them"
    assert suspended_pools(world.cache.tables) == {"p": reason}
    assert describe_faulty_nodes(world.cache.tables)["n0"].endswith(f"no pod gets these GPUs; {reason}")
    world.node("n2")
    assert len(world.leave()) == 2


def test_pods_of_others_are_left_alone() -> None:
    world = Faulty("drain")
    world.pod("team", "theirs", 1, schedulerName="default-scheduler", nodeName="n0")
    world.node("n0", RESET)
    assert world.leave() == []


def test_a_pod_is_told_once_to_leave() -> None:
    """Until its deletion is seen, it is there still."""
    world = Faulty("evict")
    world.pod("team", "old", 8)
    world.settle()
    world.node(world.where()["old"], RESET)
    world.items["team/old"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.pod_handler.put(world.items["team/old"])
    assert world.leave() == []


# -- what is believed -------------------------------------------------------------------------------------------------


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.mark.parametrize(
    "said",
    [
        condition("GpuXidWatch", message="ErrorCode:79 GPU:0 xid 79 seen Recommended Action=REPLACE_VM;"),
        condition("SysLogsXIDError", message="ErrorCode:79 GPU has fallen off the bus. Recommended Action=RESTART_BM;"),
        condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
        condition("AcceleratedHardwareReady", "False", "NvidiaDoubleBitError"),
        condition("GPUMissing"),
        condition("NVLinkStatusInactive"),
        condition("NebiusGPUError"),
    ],
    ids=lambda said: f"{said['type']} {said['reason']}",
)
def test_conditions_that_report_faults(said: dict[str, str]) -> None:
    (fault,) = read_faults([said])
    assert (fault.condition, fault.gpu, fault.evict) == (said["type"], None, True)


@pytest.mark.parametrize(
    "said",
    [
        condition("GpuXidWatch", "False", "GpuXidWatchIsHealthy", "No Health Failures"),
        # A daemon that this machine does not need: NVIDIA/NVSentinel#1471.
        condition(
            "GpuNvlinkWatch", message="ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0 Recommended Action=CONTACT_SUPPORT;"
        ),
        condition("AcceleratedHardwareReady"),
        condition("AcceleratedHardwareReady", "False", "DCGMError"),
        # Every program can cause it, so every tenant could.
        condition("AcceleratedHardwareReady", "False", "NvidiaXID13Error"),
        condition("AcceleratedHardwareReady", "False", "NvidiaXID31Error"),
        condition("XIDErrors"),
        condition("KernelDeadlock"),
        condition("ReadonlyFilesystem"),
        condition("Ready"),
        condition("Ready", "False"),
        condition(names.GPUS_CONDITION),
        condition(names.GPUS_CONDITION, "Unknown", "CheckFailed"),
        condition("MemoryPressure"),
    ],
    ids=lambda said: f"{said['type']} {said['status']} {said['reason']}",
)
def test_conditions_that_report_none(said: dict[str, str]) -> None:
    assert not read_faults([said])


def test_what_tenants_write_is_no_fault() -> None:
    world = Faulty("drain", nodes=1)
    forged = {names.GPUS_CONDITION: "GPU 3 NoExecute: needs a reset", "avactl.dev/faults": "GPU 3"}
    conditions = [{"type": names.GPUS_CONDITION, "status": "False", "message": "GPU 3 NoExecute: needs a reset"}]
    world.pod("team", "forger", 1, forged, {"avactl.dev/GPUsHealthy": "False"}, nodeSelector={})
    world.items["team/forger"]["spec"]["conditions"] = conditions
    world.pod_handler.put(world.items["team/forger"])
    world.pod("ads", "victim", 7)
    assert world.leave() == []
    assert set(world.where()) == {"forger", "victim"}
    assert not describe_faulty_nodes(world.cache.tables)
    # Nor can they report that a machine is repaired.
    world.node("n0", RESET)
    forged[names.GPUS_CONDITION] = "True"
    world.pod("team", "again", 1, forged)
    assert world.leave() == ["forger", "victim"]
    assert "again" not in world.where()


def test_a_pool_names_conditions_of_its_own() -> None:
    world = Faulty(nodes=1, fault_conditions=("XIDErrors", "GPUMissing", "example.com/GpuBurnFailed"))
    world.node("n0", conditions={"example.com/GpuBurnFailed": "GFLOPS below 80%"})
    world.pod("team", "one", 1)
    world.settle()
    assert not world.where()
    told = describe_faulty_nodes(world.cache.tables)
    assert told == {
        "n0": "GFLOPS below 80% (example.com/GpuBurnFailed); no pod gets its GPUs; its pods stay",
    }
    world.node("n0", conditions={"MemoryPressure": "yes"})
    world.settle()
    assert set(world.where()) == {"one"}


def test_conditions_are_bounded() -> None:
    many = [condition(f"C{number}", message="x" * 10_000) for number in range(1000)]
    known = read_true_conditions(many)
    assert len(known) == 64
    assert all(len(fault.text) <= 101 for fault in known.values())
    assert not read_true_conditions([condition("Ready"), condition(names.GPUS_CONDITION)])
    assert read_faults([{**condition(names.GPUS_CONDITION, "False"), "message": "a" * 10_000}])[0] == NodeFault(
        names.GPUS_CONDITION, None, False, f"{'a' * 50}…{'a' * 49}"
    )


# -- DRA --------------------------------------------------------------------------------------------------------------


class FaultyClaims(Claiming):
    """A machine n0 with 8 GPUs by claims, on which the node daemon, or the driver, reports faults."""

    def __init__(self, on_fault: str = "evict", machines: int = 1) -> None:
        super().__init__(machines)
        self.cache.put_pool(replace(self.cache.tables.pools["p"], on_fault=on_fault))
        self.stopper = Stopper(self)
        self.evictions_by_fault = FaultEvictions(self.cache, self.queue, self.budgets, self.stopper)

    def fault(self, *faults: GpuFault) -> None:
        told = [{"type": names.GPUS_CONDITION, "status": "False", "message": render_faults(faults)}] if faults else []
        labels = {names.POOL_LABEL: "p", names.GPU_LABEL: "V100"}
        status = {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}, "conditions": told}
        self.cache.put_node({"metadata": {"name": "n0", "labels": labels}, "status": status})

    def taint(self, gpu: int, effect: str) -> None:
        taints = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect}]
        devices: list[dict[str, Any]] = [{"name": f"d{n}", "attributes": {"index": {"int": n}}} for n in range(8)]
        devices[gpu]["taints"] = taints
        pool = {"name": "n0", "generation": 2, "resourceSliceCount": 1}
        spec = {"nodeName": "n0", "driver": GPU, "pool": pool, "devices": devices}
        changed = self.cache.dra.put_slice({"metadata": {"name": f"{GPU}-n0"}, "spec": spec})
        self.cache.tables.stale |= changed

    def leave(self) -> list[str]:
        self.settle()
        self.evictions_by_fault.tick()
        return sorted(self.stopper.stopped)


@pytest.mark.parametrize("searched", [False, True], ids=["counted", "searched"])
def test_claims_get_no_faulty_gpu(searched: bool) -> None:
    world = FaultyClaims()
    world.settle()
    world.fault(RESET)
    # What no number of GPUs says is searched by the allocator.
    more = [request("nic", device_class="nic")] if searched else []
    world.claim("all", request("gpus", 8), *more)
    world.asking("all", "all")
    world.claim("seven", request("gpus", 7), *more)
    world.asking("seven", "seven")
    world.settle()
    assert set(world.where()) == {"seven"}
    assert world.gpus("seven") == set(range(8)) - {3}
    world.claim("one", request("gpus", 1))
    world.asking("one", "one")
    world.settle()
    assert "one" not in world.where()
    world.fault()
    world.settle()
    assert world.gpus("one") == {3}


def test_pods_leave_the_faulty_gpus_of_their_claims() -> None:
    world = FaultyClaims()
    for name in ("a", "b"):
        world.claim(name, request("gpus", 4))
        world.asking(name, name)
    world.settle()
    world.fault(RESET)
    (mine,) = (name for name in ("a", "b") if 3 in world.gpus(name))
    assert world.leave() == [mine]


@pytest.mark.parametrize(("effect", "leave"), [("NoExecute", True), ("NoSchedule", False)])
def test_pods_leave_devices_with_a_taint(effect: str, leave: bool) -> None:
    world = FaultyClaims()
    for name in ("a", "b"):
        world.claim(name, request("gpus", 4))
        world.asking(name, name)
    world.settle()
    # The API server has the allocations.
    for name in ("a", "b"):
        world.claim(name, request("gpus", 4), status={"allocation": world.cache.dra.giving[name]})
    (mine,) = (name for name in ("a", "b") if 3 in world.gpus(name))
    world.taint(3, effect)
    assert world.leave() == ([mine] if leave else [])
    world.claim("new", request("gpus", 4))
    world.asking("new", "new")
    world.settle()
    assert "new" not in world.where(), "one of the four is tainted"


def test_the_gang_of_a_pod_that_kubernetes_evicts_leaves_with_it() -> None:
    """Its controller of device taints knows no gangs."""
    world = FaultyClaims(machines=2)
    notes, labels = {GANG_SIZE.name: "2"}, {names.GANG_LABEL: "big"}
    for name in ("a", "b"):
        world.claim(name, request("gpus", 8))
        world.asking(name, name, notes=notes, labels=labels)
    world.settle()
    for name in ("a", "b"):
        world.claim(name, request("gpus", 8), status={"allocation": world.cache.dra.giving[name]})
    mine = next(name for name, node in world.where().items() if node == "n0")
    world.taint(3, "NoExecute")
    world.items[f"a/{mine}"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    world.pod_handler.put(world.items[f"a/{mine}"])
    assert world.leave() == [{"a": "b", "b": "a"}[mine]]
