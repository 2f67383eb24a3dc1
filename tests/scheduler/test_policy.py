"""What the Cluster says of placement reaches the scheduler, and changes what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from avactl.contracts.document import DocumentError, load_file
from avactl.contracts.scheduling import PlacementPolicy
from tests.kinds.compiling import body, compiled
from tests.scheduler.memory import Memory
from tests.scheduler.world import SPECS, SYSTEM


def test_the_objective_reaches_the_scheduler(tmp_path: Path) -> None:
    specs = SPECS.replace("placement: {levels:", "placement: {objective: spread, levels:")
    policy = tmp_path / "policy.json"
    policy.write_text(body(compiled(specs), "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"])
    found = load_file(PlacementPolicy, policy)
    assert found.objective == "spread"
    assert found.widest_first == ("example.com/block", "example.com/rack")
    policy.write_text(policy.read_text().replace("spread", "spraed"))
    with pytest.raises(DocumentError, match="`objective` is not one of 'pack', 'links' or 'spread'"):
        load_file(PlacementPolicy, policy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "it is not an object"),
        ('{"cluster": 3}', "`cluster` is not a string"),
        ('{"cluster": "a", "gpuDriver": "g", "levels": []}', "`systemNamespace` is missing"),
        ('{"cluster": "a", "gpuDriver": "g", "systemNamespace": "s", "levels": "rack"}', "`levels` is not a list"),
        ('{"cluster": "a", ', "it is not JSON: EOF while parsing"),
        ("", "it is missing"),
    ],
)
def test_what_is_no_policy(tmp_path: Path, text: str, words: str) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(text)
    with pytest.raises(DocumentError, match=re.escape(words)):
        load_file(PlacementPolicy, policy)


@pytest.mark.parametrize(("objective", "nodes"), [("pack", 1), ("spread", 4)])
def test_pack_keeps_machines_whole_and_spread_loads_them_alike(objective: str, nodes: int) -> None:
    world = Memory(machines=4, objective=objective)
    for number in range(4):
        world.pod("a", f"p{number}", 2)
        world.settle()
    assert len(set(world.where().values())) == nodes
    world.cache.tables.stale = True
    world.settle()
    for number in range(4):
        world.pod("a", f"cpu{number}")
        world.settle()
    assert len({node for name, node in world.where().items() if name.startswith("cpu")}) == nodes
