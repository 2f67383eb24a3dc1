"""Which GPUs pods get: by the scheduler's choice, by the kubelet's, where the plugin withdraws or shares some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from avactl.change.plan.snapshot.loader import _strip_node
from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES, GPU_SHARE, LINK, LINK_POLICY
from avactl.hardware.machine import Machine
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.writers.node_warnings import GPUS_UNUSABLE, NodeWarnings, nodes_with_unusable_gpus
from tests.hardware.topo_matrices import library_machine
from tests.scheduler.memory import Memory

PCIE, DGX1, SWITCHED = (library_machine(name) for name in ("v100-pcie-8", "dgx1-v100", "h100-sxm-8"))
TIME_SLICED = {
    "nvidia.com/gpu.product": "NVIDIA-A10-SHARED",
    "nvidia.com/gpu.count": "4",
    "nvidia.com/gpu.replicas": "15",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
MIG_SINGLE = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
    "nvidia.com/gpu.count": "56",
    "nvidia.com/mig.strategy": "single",
}


def world(machine: Machine = PCIE, kubelet: bool = False, nodes: int = 1, **node: Any) -> Memory:
    """Nodes n0, n1, … of a pool; `node`: as in `put`."""
    made = Memory(machines=0)
    machine = replace(machine, kubelet_chooses=kubelet)
    made.cache.put_pool(ConfiguredPool("p", "devicePlugin", "nvidia.com/gpu", "", "", machine))
    for number in range(nodes):
        put(made, f"n{number}", **{"gpus": machine.gpus, **node})
    return made


def put(
    made: Memory,
    name: str = "n0",
    gpus: int = 8,
    healthy: int | None = None,
    labels: dict[str, str] | None = None,
    more: dict[str, str] | None = None,
) -> dict[str, Any]:
    usual = {"cpu": "64", "memory": "512Gi", "pods": "110", **(more or {})}
    item = {
        "metadata": {"name": name, "labels": {names.POOL_LABEL: "p", names.GPU_LABEL: "V100", **(labels or {})}},
        "status": {
            "capacity": {**usual, "nvidia.com/gpu": str(gpus)},
            "allocatable": {**usual, "nvidia.com/gpu": str(gpus if healthy is None else healthy)},
        },
    }
    made.cache.put_node(item)
    return item


def named(made: Memory, pod: str) -> str | None:
    found: str | None = made.items[f"a/{pod}"]["metadata"]["annotations"].get(DEVICES.name)
    return found


# -- the kubelet chooses ----------------------------------------------------------------------------------------------


def test_pods_name_no_gpus_that_they_may_not_get() -> None:
    made = world(kubelet=True)
    for name in "bcd":
        made.pod("a", name, 2)
    made.settle()
    assert set(made.where()) == set("bcd")
    assert {named(made, name) for name in "bcd"} == {None}
    # As many as they hold are counted, also by a scheduler that has just started.
    for each in (made, made.restart()):
        if each is not made:
            each.cache.put_pool(made.cache.tables.pools["p"])
        each.pod("a", "more", 3)
        each.settle()
        assert "more" not in each.where()
        each.drop("a", "more")
    made.pod("a", "last", 2)
    made.settle()
    assert "last" in made.where()


@pytest.mark.parametrize(
    ("machine", "gpus", "link", "starts"),
    [
        (PCIE, 4, "socket", False),
        (PCIE, 2, "pcieSwitch", False),
        (PCIE, 8, "node", True),
        (DGX1, 4, "nvlink", False),
        (DGX1, 8, "nvlink", True),
        (SWITCHED, 4, "nvlink", True),
        (SWITCHED, 4, "socket", False),
    ],
)
def test_a_required_link_is_one_that_every_choice_has(machine: Machine, gpus: int, link: str, starts: bool) -> None:
    notes = {LINK.name: link, LINK_POLICY.name: "required"}
    for kubelet in (False, True):
        made = world(machine, kubelet=kubelet)
        made.pod("a", "b", gpus, notes)
        made.settle()
        assert ("b" in made.where()) is (starts or not kubelet)
        if not made.where():
            assert f"link {link}" in made.said["b"]


def test_shares_are_not_placed_where_the_kubelet_chooses() -> None:
    for kubelet in (False, True):
        made = world(kubelet=kubelet)
        made.pod("a", "b", 0, {GPU_SHARE.name: "0.5"})
        made.settle()
        assert ("b" in made.where()) is not kubelet
    assert "1 no shareable GPUs" in made.said["b"]


# -- withdrawn by the plugin ------------------------------------------------------------------------------------------


def test_a_withdrawn_gpu_is_given_to_nobody() -> None:
    made = world(nodes=2)
    put(made, "n0", healthy=7)
    for number in range(9):
        made.pod("a", f"b{number}", 1)
    made.settle()
    assert set(made.where().values()) == {"n1"}
    assert len(made.where()) == 8
    (waiting,) = {f"b{number}" for number in range(9)} - made.where().keys()
    assert "1 with GPUs that the device plugin withdrew, without saying which" in made.said[waiting]
    assert "not even if" not in made.said[waiting]
    put(made, "n0")
    made.settle()
    assert len(made.where()) == 9


def test_a_gang_on_two_machines_with_one_bad_gpu_each_waits() -> None:
    made = world(nodes=2, gpus=2, healthy=1)
    made.gang("a", "g", 2, 1)
    made.settle()
    assert not made.where()
    assert "2 with GPUs that the device plugin withdrew" in made.said["g-0"]


def test_the_kubelet_hands_out_healthy_ones() -> None:
    made = world(kubelet=True, gpus=8, healthy=7)
    for number in range(8):
        made.pod("a", f"b{number}", 1)
    made.settle()
    assert len(made.where()) == 7
    assert not made.cache.tables.nodes["n0"].unusable_gpus


def test_pods_keep_their_gpus_while_the_plugin_restarts() -> None:
    made = world()
    for number in range(8):
        made.pod("a", f"b{number}", 1)
    made.settle()
    before = {name: named(made, name) for name in made.where()}
    assert sorted(before.values(), key=str) == [str(gpu) for gpu in range(8)]
    for healthy in (0, 7, 8):
        put(made, healthy=healthy)
        made.settle()
        booked = {pod.name: made.cache._bookings.devices(pod) for pod in made.cache.tables.pods_by_node["n0"].values()}
        assert booked == before
    made.drop("a", "b3")
    made.pod("a", "new", 1)
    made.settle()
    assert named(made, "new") == before["b3"]


# -- shared by the plugin ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "gpus", "more", "present", "way"),
    [
        (TIME_SLICED, 60, {}, 4, "time-slicing"),
        ({**TIME_SLICED, "nvidia.com/gpu.sharing-strategy": "mps"}, 60, {}, 4, "MPS"),
        ({"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"}, 16, {}, 8, "time-slicing"),
        (MIG_SINGLE, 56, {}, 8, "MIG"),
        ({"nvidia.com/gpu.count": "3"}, 1, {"nvidia.com/mig-3g.40gb": "2"}, 3, "MIG"),
        (TIME_SLICED, 0, {"nvidia.com/gpu.shared": "60"}, 4, "time-slicing"),
    ],
)
def test_replicas_are_not_gpus(labels: dict[str, str], gpus: int, more: dict[str, str], present: int, way: str) -> None:
    made = world(gpus=gpus, labels=labels, more=more)
    made.pod("a", "b", 1)
    made.settle()
    assert not made.where()
    assert f"1 with GPUs that the device plugin shares ({way})" in made.said["b"]
    state = made.cache.tables.state
    assert state.gpu_count[state.slots["n0"]] == present
    # Turned off, the node is used.
    put(made, gpus=8)
    made.settle()
    assert made.where() == {"b": "n0"}


def test_whole_gpus_beside_divided_ones_are_the_kubelets() -> None:
    made = world(kubelet=True, gpus=1, more={"nvidia.com/mig-3g.40gb": "2"})
    made.pod("a", "b", 1)
    made.settle()
    assert made.where() == {"b": "n0"}


@pytest.mark.parametrize("count", ["", "x", "-1", "9" * 5000, "0"])
def test_labels_that_say_nothing(count: str) -> None:
    made = world(gpus=60, labels={"nvidia.com/gpu.replicas": "15", "nvidia.com/gpu.count": count})
    made.pod("a", "b", 1)
    made.settle()
    assert not made.where()
    assert made.cache.tables.state.gpu_count[0] == PCIE.gpus


def test_it_is_said_once() -> None:
    told: list[tuple[str, str, str]] = []

    class Reporter:
        def warn_of_node(self, node: str, reason: str, note: str) -> None:
            told.append((node, reason, note))

    made = world(nodes=2, gpus=8)
    warnings = NodeWarnings(GPUS_UNUSABLE, lambda: nodes_with_unusable_gpus(made.cache.tables), Reporter())
    made.settle()
    warnings.tick()
    assert not told
    put(made, "n1", healthy=6)
    made.settle()
    warnings.tick()
    warnings.tick()
    ((node, reason, note),) = told
    assert (node, reason) == ("n1", "GPUsUnusable")
    assert note.startswith("no pod gets its GPUs: the device plugin has withdrawn 2 of them, without saying which")


def test_a_plan_sees_withdrawn_gpus() -> None:
    item = put(world(), healthy=7)
    assert _strip_node(item)["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    assert "capacity" not in _strip_node(put(world()))["status"]
