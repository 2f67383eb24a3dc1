"""A pipeline from a new version of its dataset to the service: git, reconciler, both daemons, real programs."""

from __future__ import annotations

import json

import pytest

from avactl.datasets.stores.opening import open_store
from tests.delivery.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]


def data(s3: str, seed: int, noise: float) -> None:
    """What the next version of the dataset has."""
    open_store("s3://data/digits", s3).write("newest", f"{seed} {noise}".encode())


def test_from_a_new_version_to_the_service(world: World, s3: str) -> None:
    store = open_store("s3://data", s3)
    data(s3, 1, 0.2)
    world.begin()
    world.until(lambda: world.state().primed)
    world.until(lambda: world.runs() == {"1": 4})
    # A better model: trained, measured, published, committed, applied, canary, promoted.
    world.new_version("v2")
    world.until(lambda: world.ended(1))
    state = world.state()
    assert (state.reason, state.metrics["accuracy"] > 0.9) == ("Deployed", True)
    assert world.runs() == {"1": 4}  # run 1 publishes version 1, which the specs began with
    world.new_version("v3")
    world.until(lambda: world.ended(2))
    assert world.state().reason == "Deployed"
    assert world.served() == "2"
    world.until(lambda: world.runs() == {"2": 4})
    subjects = world.log_of_git()
    assert subjects.count("web: deploy version 2 of digits") == 1
    found = store.find("published/digits/2/lineage.json")
    assert found is not None
    lineage = json.loads(store.read(found))
    assert (lineage["run"], lineage["parent"], lineage["cause"]) == (2, "1", "v3")
    assert lineage["metrics"] == {"accuracy": state.metrics["accuracy"]}
    assert lineage["image"].startswith("registry.example.com/train@")
    assert lineage["ran"] == {"images": [lineage["image"]]}
    assert lineage["source"] == "s3://data/training/digits/2/export"
    # A worse one stops at the validation, with its numbers.
    data(s3, 2, 3.0)
    world.new_version("v4")
    world.until(lambda: world.ended(3))
    state = world.state()
    assert state.reason == "Rejected"
    assert state.message.startswith("accuracy: 0.")
    assert world.served() == "2"
    assert store.find("published/digits/3/lineage.json") is None
    world.until(lambda: len(world.events()) == 6)
    assert [reason for reason, _ in world.events()] == [
        "RunStarted",
        "Deployed",
        "RunStarted",
        "Deployed",
        "RunStarted",
        "Rejected",
    ]
