"""The MachineType kind: what is left out is filled in, and a spec takes the place of a shipped machine."""

from __future__ import annotations

from avactl.hardware.machine import Machine
from avactl.hardware.topology import Topology
from avactl.kinds import MachineType
from avactl.program import registry
from avactl.program.capacity.machine_hardware import machine_facts
from tests.kinds.compiling import codes, compiled, unchecked

CLUSTER = "kind: Cluster\nmetadata: {name: main}\n---\n"
POOL = "\n---\nkind: NodePool\nmetadata: {name: pool}\nspec: {cluster: main, machineType: %s, count: 2}"


def machine(spec: str) -> Machine:
    result = compiled(f"{CLUSTER}kind: MachineType\nmetadata: {{name: box}}\nspec: {spec}")
    return Machine.from_facts(machine_facts(result.program.get_kind(MachineType, "box").spec))


def test_gpus_without_switches_stand_alone_spread_over_the_sockets() -> None:
    found = machine("{gpus: {model: P40, count: 4, memory: 24Gi}, cpu: 40, memory: 256Gi, sockets: 2}")
    assert [(switch.socket, switch.gpus) for switch in found.switches] == [(0, (0,)), (0, (1,)), (1, (2,)), (1, (3,))]
    topology = Topology(found)
    assert (topology.level(0, 1), topology.level(1, 2)) == ("socket", "node")


def test_measured_speeds_take_the_place_of_those_of_the_generation() -> None:
    spec = "{gpus: {model: V100, count: 2, memory: 32Gi}, cpu: 40, memory: 256Gi, bandwidth: {%s}, "
    spec += "nvlink: {generation: 2, pairs: [{gpus: [1, 0], links: 2}]}}"
    assert Topology(machine(spec % "")).bandwidth(0, 1) == 50.0
    assert Topology(machine(spec % "nvlink: 22.5")).bandwidth(0, 1) == 45.0


def test_a_spec_takes_the_place_of_the_shipped_machine_of_its_name() -> None:
    own = "kind: MachineType\nmetadata: {name: t4}\n"
    own += "spec: {gpus: {model: T4, count: 2, memory: 16Gi}, cpu: 8, memory: 30Gi}"
    result = compiled(CLUSTER + own + POOL % "t4")
    assert [item.spec.gpu_count for item in result.program.machine_types()] == [2]
    result = compiled(CLUSTER.rstrip("-\n") + POOL % "t4")
    assert [item.spec.gpu_count for item in result.program.machine_types()] == [1]


def test_only_shipped_machines_in_use_are_in_the_program() -> None:
    result = compiled(CLUSTER.rstrip("-\n") + POOL % "dgx1-v100")
    (item,) = result.program.of_kind(MachineType)
    assert item.name == "dgx1-v100"
    facts = registry.get_kind("MachineType").facts(item, result.program)
    assert facts["GPUs"] == "8 V100 of 32Gi"
    assert facts["NVLink"] == "24 links, generation 2"
    assert not [manifest for manifest in result.manifests if manifest.item is item]


def test_capacity_is_not_judged_by_a_machine_with_problems() -> None:
    """A wrong machine type is one problem, not one more for each quota over it."""
    result = unchecked(
        CLUSTER
        + "kind: MachineType\nmetadata: {name: box}\n"
        + "spec: {gpus: {model: P40, count: 2, memory: 24Gi}, cpu: 40, memory: 256Gi, switches: [{gpus: [0]}]}"
        + POOL % "box"
        + "\n---\nkind: Team\nmetadata: {name: vision}"
        + "\n---\nkind: Quota\nmetadata: {name: gpus, team: vision}\nspec: {gpus: [{gpu: P40, guaranteed: 400}]}"
    )
    assert codes(result) == ["invalid-topology"]


def test_links_of_other_vendors_have_a_speed_of_their_own() -> None:
    spec = (
        "{gpus: {model: MI300X, count: 2, memory: 192Gi}, cpu: 40, memory: 256Gi, %snvlink: {pairs: [{gpus: [0, 1]}]}}"
    )
    topology = Topology(machine(spec % "bandwidth: {nvlink: 64}, "))
    assert (topology.level(0, 1), topology.bandwidth(0, 1)) == ("nvlink", 64.0)
    result = unchecked(f"{CLUSTER}kind: MachineType\nmetadata: {{name: box}}\nspec: {spec % ''}")
    assert [str(each.message) for each in result.diagnostics] == ["the speed of the links is not known"]


def test_cards_that_are_linked_with_each_other() -> None:
    for name, links, speed in (("mi300x-8", 1, 64.0), ("mi355x-8", 1, 76.8), ("gaudi3-8", 3, 75.0)):
        result = compiled(CLUSTER.rstrip("-\n") + POOL % name)
        (item,) = result.program.machine_types()
        topology = Topology(Machine.from_facts(machine_facts(item.spec)))
        assert {topology.links(i, j) for i in range(8) for j in range(i)} == {links}, name
        assert topology.bandwidth(0, 7) == speed, name
