"""Links of machines whose GPUs the kubelet chooses: what every choice has, by brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from avactl.hardware.placement.links import links
from tests.hardware.topo_matrices import library_machine

TYPES = ("v100-pcie-8", "dgx1-v100", "h100-sxm-8", "a10", "l40s-8")


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("wanted", ["nvlink", "pcieSwitch", "socket", "node", "any"])
def test_a_required_link_is_one_that_every_choice_has(name: str, wanted: str) -> None:
    machine = library_machine(name)
    known, unchosen = links(machine), links(replace(machine, kubelet_chooses=True))
    for count in range(1, machine.gpus + 1):
        sets = [sum(1 << gpu for gpu in chosen) for chosen in combinations(range(machine.gpus), count)]
        certain = not any(known.missing_levels(wanted)[sets])
        everything = (1 << machine.gpus) - 1
        assert bool(unchosen.best(everything, count, wanted, required=True)) is certain
        assert bool(unchosen.room(everything, count, wanted, required=True)) is certain
        assert known.topology.is_certain(count, wanted) is certain, (count, wanted)
        # No set is preferred to another: what is counted on is the worst one's speed.
        assert {int(unchosen.slowest[mask]) for mask in sets} == {min(int(known.slowest[mask]) for mask in sets)}
        assert {unchosen.level(mask) for mask in sets} == {max((known.level(mask) for mask in sets), key=_rank)}


def _rank(level: str) -> int:
    return ("nvlink", "pcieSwitch", "socket", "node").index(level)
