"""The library of machine types, and the topology model: levels, speeds, and the best GPUs to take."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.compiler.validate import validate_document
from avactl.hardware import library
from avactl.hardware.machine import NVLINK, Machine, Nvlink, NvlinkPair, PcieSwitch
from avactl.hardware.topology import LEVELS, Topology, satisfies, topology_of
from avactl.kinds.machine_type import MachineType
from avactl.kinds.machine_type.check import check_machine_type
from avactl.program.capacity.machine_hardware import machine_facts
from avactl.program.program import Item
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.platform.machine_type import MachineTypeSpec


def shipped(name: str) -> Item[MachineTypeSpec]:
    documents, found = load_yaml(library.display_path(name), library.read(name))
    assert not found
    assert len(documents) == 1
    resource = validate_document(documents[0])
    assert isinstance(resource, MachineType), resource
    return Item(documents[0], resource)


def of(name: str) -> Topology:
    return topology_of(Machine.from_facts(machine_facts(shipped(name).spec)))


def mask(*gpus: int) -> int:
    return sum(1 << gpu for gpu in gpus)


def matrix(machine: Topology) -> str:
    """The GPU part of `nvidia-smi topo -m`."""
    words = {"pcieSwitch": "PIX", "socket": "NODE", "node": "SYS"}
    nvlink = machine.machine.nvlink
    rows = []
    for i in range(machine.count):
        row = []
        for j in range(machine.count):
            level = machine.level(i, j)
            if i == j:
                row.append("X")
            elif level == "nvlink":
                assert nvlink is not None
                row.append(f"NV{machine.bandwidth(i, j) / nvlink.link_gbps:g}")
            else:
                row.append(words[level])
        rows.append(" ".join(f"{word:4}" for word in row).rstrip())
    return "\n".join(rows)


# -- the library ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", library.shipped_names())
def test_every_shipped_machine_is_valid_and_called_like_its_file(name: str) -> None:
    item = shipped(name)
    assert item.name == name
    assert list(check_machine_type(item)) == []
    assert library.read(name).startswith(b"# ")  # says where the facts come from


def test_spans_of_shipped_machines_are_no_paths_of_this_machine() -> None:
    assert shipped("t4").span("spec", "gpus", "model")[:2] == ("<avactl>/hardware/library/t4.yaml", 9)


def test_the_library_says_no_to_other_names() -> None:
    with pytest.raises(KeyError):
        library.read("../library")


DGX1_V100 = """
X    NV1  NV1  NV2  NV2  SYS  SYS  SYS
NV1  X    NV2  NV1  SYS  NV2  SYS  SYS
NV1  NV2  X    NV2  SYS  SYS  NV1  SYS
NV2  NV1  NV2  X    SYS  SYS  SYS  NV1
NV2  SYS  SYS  SYS  X    NV1  NV1  NV2
SYS  NV2  SYS  SYS  NV1  X    NV2  NV1
SYS  SYS  NV1  SYS  NV1  NV2  X    NV2
SYS  SYS  SYS  NV1  NV2  NV1  NV2  X
"""
DGX1_P100 = """
X    NV1  NV1  NV1  NV1  SYS  SYS  SYS
NV1  X    NV1  NV1  SYS  NV1  SYS  SYS
NV1  NV1  X    NV1  SYS  SYS  NV1  SYS
NV1  NV1  NV1  X    SYS  SYS  SYS  NV1
NV1  SYS  SYS  SYS  X    NV1  NV1  NV1
SYS  NV1  SYS  SYS  NV1  X    NV1  NV1
SYS  SYS  NV1  SYS  NV1  NV1  X    NV1
SYS  SYS  SYS  NV1  NV1  NV1  NV1  X
"""
K80 = """
X    PIX  SYS  SYS
PIX  X    SYS  SYS
SYS  SYS  X    PIX
SYS  SYS  PIX  X
"""


@pytest.mark.parametrize(("name", "expected"), [("dgx1-v100", DGX1_V100), ("dgx1-p100", DGX1_P100), ("k80-2x", K80)])
def test_shipped_machines_look_as_nvidia_smi_shows_them(name: str, expected: str) -> None:
    assert matrix(of(name)) == expected.strip()


@pytest.mark.parametrize("name", ["dgx1-p100", "dgx1-v100"])
def test_every_gpu_of_a_dgx1_uses_all_of_its_links(name: str) -> None:
    nvlink = shipped(name).spec.nvlink
    assert nvlink is not None
    assert nvlink.generation is not None
    for gpu in range(8):
        assert sum(p.links for p in nvlink.pairs if gpu in p.gpus) == NVLINK[nvlink.generation].max_links


@pytest.mark.parametrize(
    ("name", "gb_per_s"), [("a100-sxm-8", 300.0), ("h100-sxm-8", 450.0), ("gb200-nvl-tray", 900.0)]
)
def test_nvswitch_joins_all_at_full_speed(name: str, gb_per_s: float) -> None:
    machine = of(name)
    assert {machine.bandwidth(i, j) for i, j in combinations(range(machine.count), 2)} == {gb_per_s}
    assert machine.reachable_level(machine.count) == machine.certain_level(machine.count) == "nvlink"


# -- pairs ---------------------------------------------------------------------------------------------------------


def test_speeds_by_the_slowest_part() -> None:
    pcie, m4, dgx = of("v100-pcie-8"), of("m4"), of("dgx1-v100")
    assert pcie.bandwidth(0, 3) == 12.0  # one switch
    assert pcie.bandwidth(0, 4) == 3.0  # other socket
    assert m4.bandwidth(0, 1) == 8.0  # one socket, no switch
    assert dgx.bandwidth(0, 3) == 50.0  # two NVLinks
    assert dgx.bandwidth(0, 1) == 25.0  # one; the switch between them is slower
    assert dgx.bandwidth(0, 5) == 3.0  # no link
    assert pcie.bandwidth(2, 2) == float("inf")


# -- sets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("dgx1-v100", ["nvlink"] * 8),
        ("v100-pcie-8", ["nvlink", "pcieSwitch", "pcieSwitch", "pcieSwitch", "node", "node", "node", "node"]),
        ("k80-2x", ["nvlink", "pcieSwitch", "node", "node"]),
        ("m4", ["nvlink", "socket", "node", "node"]),
        ("t4", ["nvlink"]),
    ],
)
def test_reachable_levels(name: str, levels: list[str]) -> None:
    machine = of(name)
    assert [machine.reachable_level(count) for count in range(1, machine.count + 1)] == levels
    assert machine.reachable_level(machine.count + 1) is None
    assert machine.reachable_level(0) is None


def test_what_is_certain_is_what_the_worst_choice_has() -> None:
    assert of("dgx1-v100").certain_level(2) == "node"
    assert of("dgx1-v100").certain_level(8) == "nvlink"
    assert of("t4-4").certain_level(2) == "socket"


def test_a_ring_needs_links_but_not_between_all() -> None:
    dgx = of("dgx1-v100")
    assert dgx.subset_level(mask(0, 1, 5, 4)) == "nvlink"  # 0-1-5-4-0, though 0-5 has no link
    assert dgx.subset_level(mask(0, 1, 4)) == "node"  # 1-4 is missing, and three have one ring only
    assert dgx.subset_level(dgx.all) == "nvlink"


def test_room_counts_sets_that_stand_together() -> None:
    pcie, dgx = of("v100-pcie-8"), of("dgx1-v100")
    assert [pcie.room(3), pcie.room(3, "pcieSwitch"), pcie.room(4, "pcieSwitch"), pcie.room(5, "pcieSwitch")] == [
        2,
        2,
        2,
        0,
    ]
    assert of("k80-2x").room(2, "nvlink") == 0
    assert of("k80-2x").room(1, "nvlink") == 4  # one GPU has no link to wish for
    assert dgx.room(4, "nvlink") == 2
    assert dgx.room(9) == 0


def test_satisfies() -> None:
    assert satisfies("nvlink", "pcieSwitch")
    assert not satisfies("socket", "pcieSwitch")
    assert satisfies("node", "any")


@st.composite
def machines(draw: st.DrawFn, largest: int = 7) -> Machine:
    """Machines of any shape: GPUs under switches on sockets, some joined by NVLink."""
    count = draw(st.integers(1, largest))
    under = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    switches = tuple(
        PcieSwitch(socket=switch % 2, gpus=tuple(g for g in range(count) if under[g] == switch))
        for switch in sorted(set(under))
    )
    edges = list(combinations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(edges), unique=True)) if edges else []
    pairs = tuple(NvlinkPair(i, j, draw(st.integers(1, 3))) for i, j in chosen)
    return Machine(
        gpu="X",
        gpus=count,
        gpu_memory=1,
        cpu=1.0,
        memory=1,
        switches=switches,
        nvlink=Nvlink(20.0, pairs) if pairs else None,
        nics=(),
        cross_socket_gbps=3.0,
        same_socket_gbps=8.0,
        pcie_switch_gbps=12.0,
    )


@given(machines(6))
def test_levels_of_sets_are_those_of_their_definition(machine: Machine) -> None:
    found = Topology(machine)
    links = {frozenset((pair.first, pair.second)) for pair in machine.nvlink.pairs} if machine.nvlink else set()
    for count in range(1, machine.gpus + 1):
        seen = set()
        for gpus in combinations(range(machine.gpus), count):
            ring = count == 1 or any(
                all(frozenset(step) in links for step in pairwise((*order, order[0]))) for order in permutations(gpus)
            )
            worst = max((LEVELS.index(found.level(i, j)) for i, j in combinations(gpus, 2)), default=0)
            level = "nvlink" if ring else LEVELS[worst]
            assert found.subset_level(mask(*gpus)) == level
            seen.add(LEVELS.index(level))
        assert found.reachable_level(count) == LEVELS[min(seen)]
        assert found.certain_level(count) == LEVELS[max(seen)]


def test_a_topology_is_computed_once() -> None:
    machine = of("dgx1-v100").machine
    assert topology_of(machine) is topology_of(machine)
