"""Machines that are not what their type says, or of which nobody says anything; GPUs that are asked for oddly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.pod_annotations import DEVICES, GANG_SIZE, GPU_SHARE, LINK, LINK_POLICY
from avactl.hardware.machine import Machine, Nvlink
from avactl.hardware.placement import gang_search
from avactl.scheduler.objects.config import ConfiguredPool
from tests.hardware.topo_matrices import library_machine
from tests.scheduler.memory import Memory


def world(machine: Machine | None, gpus: int, **status: Any) -> Memory:
    """One machine with so many GPUs of a pool with this type."""
    made = Memory(machines=0)
    if machine is not None:
        made.cache.put_pool(ConfiguredPool("p", "devicePlugin", "nvidia.com/gpu", "", "", machine))
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    labels = {names.POOL_LABEL: "p", names.GPU_LABEL: "V100"}
    made.cache.put_node({"metadata": {"name": "n", "labels": labels}, "status": {"allocatable": amounts, **status}})
    return made


def starts(made: Memory, gpus: int, link: str = "any") -> bool:
    made.pod("a", "p", gpus, {LINK.name: link, LINK_POLICY.name: "required"})
    made.settle()
    return "p" in made.where()


PCIE, SWITCHED = library_machine("v100-pcie-8"), library_machine("a100-sxm-8")


@pytest.mark.parametrize(
    ("machine", "gpus", "link", "expected"),
    [
        (PCIE, 8, "socket", True),
        # Which of them went nobody knows, so those that are left may be anywhere.
        (PCIE, 6, "socket", False),
        (PCIE, 6, "node", True),
        (PCIE, 10, "socket", False),
        (None, 8, "pcieSwitch", False),
        (None, 8, "any", True),
        # All that are left reach each other through NVSwitch.
        (SWITCHED, 7, "nvlink", True),
        (SWITCHED, 9, "nvlink", False),
    ],
)
def test_links_are_counted_on_where_they_are_known(
    machine: Machine | None, gpus: int, link: str, expected: bool
) -> None:
    made = world(machine, gpus)
    assert starts(made, 4, link) is expected
    if not expected:
        assert f"1 has no 4 GPUs that are known to have link {link}; no node is suitable" in made.said["p"]


def test_a_machine_that_differs_has_no_links_through_nvswitch() -> None:
    condition = {"type": names.TOPOLOGY_CONDITION, "status": "False"}
    assert isinstance(SWITCHED.nvlink, Nvlink)
    assert not starts(world(SWITCHED, 7, conditions=[condition]), 4, "nvlink")


def test_gpus_go_under_a_pod_and_come_back() -> None:
    made = world(PCIE, 8)
    assert starts(made, 8)
    item = {"metadata": {"name": "n", "labels": made.cache.tables.nodes["n"].labels}}
    for gpus in (6, 8):
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        made.cache.put_node({**item, "status": {"allocatable": amounts}})
        made.pod("a", f"late{gpus}", 2)
        made.settle()
        assert "1 has fewer than 2 free GPUs (at most 0)" in made.said[f"late{gpus}"]
        assert set(made.where()) == {"p"}
    made.drop("a", "p")
    made.settle()
    assert {"late6", "late8"} <= set(made.where())


@pytest.mark.parametrize("share", ["0", "1.5", "half", "-0.5", "1/2", ""])
def test_shares_that_there_are_not(share: str) -> None:
    made = world(PCIE, 8)
    made.pod("a", "p", 0, {GPU_SHARE.name: share})
    made.settle()
    assert made.said["p"] == f"annotation {GPU_SHARE.name}: `{share}` is not a share of one GPU such as 0.5"


def test_a_part_of_a_gpu_beside_whole_ones() -> None:
    made = world(PCIE, 8)
    made.pod("a", "p", 1, {GPU_SHARE.name: "0.5"})
    made.settle()
    assert "a share of a GPU" in made.said["p"]
    made.drop("a", "p")
    made.pod("a", "q", 0, {GPU_SHARE.name: "0.5"})
    made.settle()
    assert "q" in made.where()


def test_shares_in_a_cluster_without_gpus() -> None:
    made = world(None, 0)
    made.pod("a", "p", 0, {GPU_SHARE.name: "0.5"})
    made.settle()
    assert made.said["p"] == "fits on none of 1 node: 1 is excluded (1 no shareable GPUs)"


def test_a_gang_whose_roles_never_fit_together() -> None:
    made = world(PCIE, 8)
    labels, notes = {names.GANG_LABEL: "g"}, {GANG_SIZE.name: "3"}
    made.pod("a", "small", 1, notes, labels=labels)
    for name, gpus in (("chief", 4), ("worker", 5)):
        made.pod("a", name, gpus, notes, labels=labels)
    made.settle()
    assert made.said["chief"].endswith("but not all of them together, not even if the cluster is empty")


def test_pods_of_a_machine_with_nvswitch_get_one_socket() -> None:
    made = world(library_machine("h100-sxm-8"), 8)
    made.pod("a", "one", 1)
    made.settle()
    made.pod("a", "four", 4)
    made.settle()
    devices = {name: made.items[f"a/{name}"]["metadata"]["annotations"][DEVICES.name] for name in ("one", "four")}
    assert devices == {"one": "0", "four": "4,5,6,7"}
    made.pod("a", "two", 2, {LINK.name: "socket", LINK_POLICY.name: "required"})
    made.settle()
    made.drop("a", "four")
    for name in ("b1", "b2", "b3"):
        made.pod("a", name, 1)
    made.settle()
    assert starts(made, 2, "socket"), "GPUs 6 and 7"
    made.drop("a", "two", "p")
    made.settle()
    assert not starts(made, 4, "socket")


def test_a_gang_whose_roles_share_machines() -> None:
    made = Memory(machines=2, gpus=4)
    labels, notes = {names.GANG_LABEL: "g"}, {GANG_SIZE.name: "4"}
    for number in range(2):
        made.pod("a", f"worker-{number}", 1, notes, labels=labels, amounts={"cpu": "18"})
        made.pod("a", f"server-{number}", 0, notes, labels=labels, amounts={"cpu": "40"})
    made.settle()
    where = made.where()
    assert {where["worker-0"], where["worker-1"]} == {where["server-0"], where["server-1"]} == {"n0", "n1"}


@pytest.fixture
def small_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A search that compares hardly anything."""
    monkeypatch.setattr(gang_search, "MAX_GRID", 1)
    gang_search._node_option.cache_clear()
    yield
    gang_search._node_option.cache_clear()


def too_much_together() -> Memory:
    made = Memory(machines=3, gpus=0)
    labels, notes = {names.GANG_LABEL: "g"}, {GANG_SIZE.name: "4"}
    for number, cpu in enumerate((40, 40, 40, 30)):
        made.pod("a", f"p{number}", 0, notes, labels=labels, amounts={"cpu": str(cpu)})
    made.settle()
    assert not made.where()
    return made


def test_all_ways_were_compared_before_a_gang_is_told_that_it_never_fits() -> None:
    assert too_much_together().said["p0"] == (
        "each of its pods would fit, but not all of them together, not even if the cluster is empty"
    )


@pytest.mark.usefixtures("small_search")
def test_a_gang_that_is_too_large_to_compare_is_not_told_that_it_never_fits() -> None:
    assert too_much_together().said["p0"] == (
        "no placement found for all of its pods together, though each of them would fit"
    )


def node(made: Memory, name: str, gpus: int = 8, model: str = "V100", **spec: Any) -> None:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    metadata = {"name": name, "labels": {names.GPU_LABEL: model}}
    made.cache.put_node({"metadata": metadata, "spec": spec, "status": {"allocatable": amounts}})


CORDONED = {"unschedulable": True}
TAINTED = {"taints": [{"key": "upgrade", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("pods", "gpus", "model", "never"),
    [
        (1, 8, "V100", False),
        (3, 8, "V100", False),
        (4, 8, "V100", True),
        (1, 9, "V100", True),
        (1, 8, "T4", True),
        (1, 4, "T4", False),
        (1, 1, "H100", True),
    ],
)
def test_cordons_and_taints_go_but_no_machine_grows(pods: int, gpus: int, model: str, never: bool) -> None:
    """Three V100 machines, of which two are kept from pods for a while; never is told at once, and only then."""
    made = Memory(machines=0)
    for name, model_, spec in (("a", "V100", {}), ("b", "V100", CORDONED), ("c", "V100", TAINTED), ("t", "T4", {})):
        node(made, name, 4 if model_ == "T4" else 8, model_, **spec)
    for name, label in (("busy", "V100"), ("busy4", "T4")):
        made.pod("a", name, 1, nodeSelector={names.GPU_LABEL: label})
    made.settle()
    made.gang("a", "g", pods, gpus, nodeSelector={names.GPU_LABEL: model})
    made.pod("a", "alone", gpus, nodeSelector={names.GPU_LABEL: model})
    made.settle()
    assert ("even if it is empty" in made.said["g-0"]) is never, made.said["g-0"]
    assert ("even if it is empty" in made.said["alone"]) is (never and pods == 1), made.said["alone"]


def test_machines_are_counted_once() -> None:
    made = Memory(machines=0)
    for name, model, spec in (("a", "V100", CORDONED), ("b", "V100", TAINTED), ("c", "H100", CORDONED)):
        node(made, name, 8, model, **spec)
    made.pod("a", "p", 8, nodeSelector={names.GPU_LABEL: "V100"})
    made.settle()
    assert made.said["p"] == ("fits on none of 3 nodes: 2 are excluded (1 cordoned, 1 taint upgrade), 1 has no V100")
