"""Topology spread follows changes of nodes: which of them count is remembered until one changes."""

from __future__ import annotations

from collections import Counter

from tests.scheduler.memory import Memory

_TAINT = {"key": "sick", "effect": "NoSchedule"}


def _spread(world: Memory, *names: str) -> Counter[str]:
    """Place pods that spread over nodes whose taints they tolerate, and return the pods of each node."""
    even = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
    for name in names:
        world.pod("a", name, labels={"app": "a"}, topologySpreadConstraints=[even])
    world.settle()
    return Counter(world.where().values())


def test_a_node_counts_for_a_spread_once_its_taint_is_gone() -> None:
    world = Memory(0)
    world.machine("n0", 0, {})
    world.machine("n1", 0, {}, taints=[_TAINT])
    assert _spread(world, "a", "b", "c") == {"n0": 3}
    world.machine("n1", 0, {})
    assert _spread(world, "d", "e", "f") == {"n0": 3, "n1": 3}
    world.machine("n2", 0, {})
    assert _spread(world, "h", "i", "j") == {"n0": 3, "n1": 3, "n2": 3}
    world.machine("n2", 0, {}, taints=[_TAINT])
    assert _spread(world, "k", "l") == {"n0": 4, "n1": 4, "n2": 3}
