"""Runs that a pipeline stops or does not begin: `concurrency: replace`, `timeout` and `suspended`."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from avactl.contracts import names
from tests.delivery.world import DATASET, PIPELINE, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]
REPLACING = PIPELINE.replace("  publish:", "  concurrency: replace\n  publish:")
VERSION = '    - {name: NEXT, url: "s3://data/digits/NEXT"}\n'


def test_replaced_timed_out_and_suspended(world: World) -> None:
    go_on = threading.Event()

    def instead(pod: dict[str, Any]) -> tuple[int, str]:
        go_on.wait()
        return 0, '{"accuracy": 0.9}'

    def training(run: int) -> bool:
        """Return True if the pod of this run, and no other one, is there."""
        pods = world.kube.list("v1", "Pod", world.team, label_selector=names.RUN)
        runs = [(pod["metadata"]["labels"][names.RUN], pod["status"]["phase"]) for pod in pods]
        return world.state().phase == "training" and runs == [(str(run), "Running")]

    def plan() -> dict[str, Any]:
        found = world.kube.get("v1", "ConfigMap", f"pipeline.{world.team}.digits", "avactl-system")
        data: dict[str, Any] = json.loads(found["data"]["pipeline.json"])
        return data

    world.kubelet.instead = instead
    try:
        world.begin(pipeline=REPLACING)
        world.until(lambda: world.state().primed)
        world.new_version("v2")
        world.until(lambda: training(1))
        world.new_version("v3")
        world.until(lambda: training(2))
        assert world.events()[1] == ("Replaced", "run 1: by v3")
        world.commit({"digits.yaml": f"{REPLACING}  timeout: 1s\n"})
        world.until(lambda: world.ended(2))
        assert (world.state().reason, world.state().message) == ("TimedOut", "after 1 s in phase training")
        assert world.kube.list("v1", "Pod", world.team, label_selector=names.RUN) == []
        # What is due meanwhile begins no run later.
        versions = "".join(VERSION.replace("NEXT", each) for each in ("v2", "v3", "v4"))
        world.commit({"digits.yaml": f"{REPLACING}  suspended: true\n", "dataset.yaml": DATASET + versions})
        world.until(lambda: world.state().handled == "v4")
        world.commit({"digits.yaml": REPLACING})
        world.until(lambda: plan()["suspended"] is False)
        go_on.set()
        world.new_version("v5")
        world.until(lambda: world.ended(3))
    finally:
        go_on.set()
    assert [each for each in world.events() if each[0] == "RunStarted"] == [
        ("RunStarted", "run 1: for v2"),
        ("RunStarted", "run 2: for v3"),
        ("RunStarted", "run 3: for v5"),
    ]
    assert world.state().reason == "Deployed"
