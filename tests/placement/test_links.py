"""The best GPUs of a machine: tables against plain enumeration."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avactl.hardware import library
from avactl.hardware.machine import Machine, Nic, Nvlink, NvlinkPair, PcieSwitch
from avactl.hardware.placement.links import Links, links, unknown_links
from avactl.hardware.topology import LEVELS, Level, Topology, gpus_in_mask, satisfies
from tests.kinds.test_hardware import mask, of
from tests.work import calls


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Two sockets with switches of any sizes, some NVLinks, some NICs."""
    switches: list[PcieSwitch] = []
    nics: list[Nic] = []
    gpus = 0
    for index in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 2))
        socket = draw(st.integers(0, 1))
        name = f"mlx5_{index}"
        has_nic = draw(st.booleans())
        if has_nic:
            nics.append(Nic(name, socket, 100.0, draw(st.booleans())))
        switches.append(PcieSwitch(socket, tuple(range(gpus, gpus + size)), (name,) if has_nic else ()))
        gpus += size
    pairs = [NvlinkPair(i, j, draw(st.integers(1, 2))) for i, j in combinations(range(gpus), 2) if draw(st.booleans())]
    nvlink = Nvlink(25.0, tuple(pairs)) if pairs else None
    return Machine("X", gpus, 2**34, 8.0, 2**36, tuple(switches), nvlink, tuple(nics), 3.3, 8.1, 12.7)


@given(machines(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_best_subset_is_that_of_an_enumeration(machine: Machine, data: st.DataObject) -> None:
    topology, table = Topology(machine), Links(Topology(machine))
    free = data.draw(st.integers(0, topology.all))
    count = data.draw(st.integers(1, machine.gpus))
    wanted = data.draw(st.sampled_from([*LEVELS, "any"]))
    required, rdma = data.draw(st.booleans()), data.draw(st.booleans())

    def worth(rest: int) -> int:
        gpus = gpus_in_mask(rest)
        return sum(max(slowest(mask(*each)) for each in combinations(gpus, size)) for size in range(2, len(gpus) + 1))

    def slowest(each: int) -> int:
        return min(
            (round(topology.bandwidth(i, j) * 1000) for i, j in combinations(gpus_in_mask(each), 2)), default=10**15
        )

    def key(each: int) -> tuple[float, ...]:
        level = topology.subset_level(each)
        near = sum(int(table.nic_distance[1 << gpu]) for gpu in gpus_in_mask(each)) if rdma else 0
        total = sum(round(topology.bandwidth(i, j) * 1000) for i, j in combinations(gpus_in_mask(each), 2))
        apart = len(by_socket(each))
        whole = sum(gpus**2 for gpus in by_socket(free ^ each).values())
        lacking = not as_wanted(each, level)
        return (lacking, near, -slowest(each), -total, apart, -worth(free ^ each), -whole, each)

    def by_socket(each: int) -> Counter[int]:
        return Counter(topology.switch(gpu).socket for gpu in gpus_in_mask(each))

    def as_wanted(each: int, level: Level) -> bool:
        return satisfies(level, wanted) and (wanted != "socket" or len(by_socket(each)) == 1)

    options = [mask(*each) for each in combinations(gpus_in_mask(free), count)]
    if required:
        options = [each for each in options if as_wanted(each, topology.subset_level(each))]
    expected = min(options, key=key, default=0)
    assert table.best(free, count, wanted, required, rdma) == expected


@given(machines())
@settings(max_examples=60, deadline=None)
def test_levels_are_those_of_the_topology(machine: Machine) -> None:
    topology, table = Topology(machine), Links(Topology(machine))
    assert [table.level(each) for each in range(1, topology.all + 1)] == [
        topology.subset_level(each) for each in range(1, topology.all + 1)
    ]


@pytest.mark.parametrize("name", library.shipped_names())
def test_speeds_are_those_of_the_topology(name: str) -> None:
    topology = of(name)
    table = links(topology.machine)
    for each in range(1, topology.all + 1):
        speeds = [topology.bandwidth(i, j) for i, j in combinations(gpus_in_mask(each), 2)]
        if speeds:
            assert table.slowest[each] == pytest.approx(min(speeds) * 1000)
        assert table.total[each] == pytest.approx(sum(speeds) * 1000, abs=len(speeds) + 1)


def test_single_gpus_keep_sockets_whole() -> None:
    table = links(of("v100-pcie-8").machine)
    free = mask(2, 3, 4, 5, 6, 7)
    assert table.best(free, 1) in (mask(2), mask(3))
    assert table.best(free, 2) == mask(2, 3)
    assert table.best(mask(3, 4, 5, 6, 7), 4) == mask(4, 5, 6, 7)
    assert table.best(mask(0, 1, 2, 4, 5, 6), 4, "pcieSwitch", required=True) == 0
    assert table.best(mask(0, 1, 2, 4, 5, 6), 4, "pcieSwitch").bit_count() == 4


def test_sockets_of_an_nvswitch_machine_stay_whole() -> None:
    table = links(of("h100-sxm-8").machine)
    assert table.best(0b11111110, 4) == 0b11110000, "among equal links, those on one socket"
    assert table.best(0b11111110, 1) == 0b10, "the other socket stays whole"
    assert table.best(0b11111110, 2) == 0b110
    assert table.best(0b11100001, 4, "socket", required=True) == 0
    assert table.best(0b11100001, 4, "socket") == 0b11100001, "only preferred"
    assert table.best(0b11100001, 4, "nvlink", required=True) == 0b11100001
    assert [table.room(free, 2, "socket", required=True) for free in (0xFF, 0b11101110, 0b10001)] == [4, 2, 0]


def test_rdma_goes_next_to_the_nic() -> None:
    table = links(of("v100-pcie-8").machine)
    assert table.best(mask(0, 1, 4, 5), 2, rdma=True) == mask(0, 1)
    assert table.nic(0) == table.nic(7) == "mlx5_0"
    dgx = links(of("dgx1-v100").machine)
    assert [dgx.nic(gpu) for gpu in range(8)] == [f"mlx5_{gpu // 2}" for gpu in range(8)]


def test_room_counts_disjoint_sets() -> None:
    table = links(of("v100-pcie-8").machine)
    assert table.room(mask(0, 1, 2, 4, 5, 6), 2, "pcieSwitch", required=True) == 2
    assert table.room(mask(0, 1, 2, 4, 5, 6), 2) == 3


def test_unknown_hardware_takes_the_lowest_gpus() -> None:
    assert unknown_links(4).best(0b1110, 2) == 0b0110
    assert unknown_links(4).best(0b1110, 2, "pcieSwitch", required=True) == 0
    assert unknown_links(0).best(0, 1) == 0


def test_sixteen_gpus_are_practical() -> None:
    """All masks of a 16-GPU machine: tables for the fleet at once, exact."""
    switches = tuple(PcieSwitch(index // 2, tuple(range(4 * index, 4 * index + 4))) for index in range(4))
    pairs = tuple(NvlinkPair(gpu, (gpu + 1) % 16, 2) for gpu in range(15))
    machine = Machine("X", 16, 2**34, 8.0, 2**36, switches, Nvlink(25.0, pairs), (), 3.0, 8.0, 12.0)
    table = Links(Topology(machine))
    free = np.random.default_rng(3).integers(0, 1 << 16, 200)
    assert calls(lambda: [table.choose(free, count) for count in (1, 2, 4, 8)]) < len(free) * 200
    chosen = [table.choose(free, count) for count in (1, 2, 4, 8)]
    assert all((masks & ~free == 0).all() for masks in chosen)
