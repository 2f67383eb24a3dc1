"""kill -9 of both daemons at random points: a version is deployed or not, once, and git says what runs."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.delivery.world import SERVICE, World
from tests.serving.prometheus import Prometheus

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]
QUERY = 'sum(mine{namespace="{{namespace}}",pod=~"{{pods}}"})'
ANALYSED = SERVICE.replace(
    "pause: 1s}]", f"pause: 1s}}], analysis: {{interval: 2s, query: [{{name: bad, max: 1, promql: '{QUERY}'}}]}}"
)
"""The service with a canary that can fail."""


def killed(world: World, kills: int, seed: int) -> None:
    """Let models be good, bad at the validation, or bad in the canary, while daemons are killed."""
    order, prometheus = random.Random(seed), Prometheus()
    world.serving_options = ["--prometheus", prometheus.url]
    accuracy = {"value": 0.9}

    def instead(pod: dict[str, Any]) -> tuple[int, str]:
        step = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        return 0, f'{{"accuracy": {accuracy["value"]}}}' if step == "validate" else ""

    world.kubelet.instead = instead
    world.begin(service=ANALYSED)
    world.until(lambda: world.state().primed and world.runs() == {"1": 4})
    live, run, done = "1", 0, 0
    outcomes: dict[str, int] = {}
    while done < kills:
        run += 1
        kind = order.choice(["good", "good", "worse", "bad"]) if run > 1 else "good"
        accuracy["value"] = 0.5 if kind == "worse" else 0.9
        prometheus.other = 5.0 if kind == "bad" else 0.0
        world.new_version(f"v{run + 1}")
        while done < kills and not world.ended(run):
            world.kill(name := order.choice(["delivery", "delivery", "serving"]))
            world.start(name)
            done += 1
            ends = time.monotonic() + order.uniform(0.8, 3.0)
            while time.monotonic() < ends and not world.ended(run):
                found = world.runs()
                if kills > 10:
                    assert sum(found.values()) >= 4, f"{found}\n{(world.folder / 'serving.log').read_text()[-6000:]}"
                time.sleep(0.05)
        world.until(lambda run=run: world.ended(run))  # type: ignore[misc]
        reason = world.state().reason
        outcomes[reason] = outcomes.get(reason, 0) + 1
        expected = {"good": "Deployed", "worse": "Rejected", "bad": "RolledBack"}[kind]
        assert reason == expected, (run, kind, world.state())
        live = str(run) if kind == "good" else live
        # git and the cluster agree.
        assert world.served() == live
        world.until(lambda live=live: world.runs() == {live: 4})  # type: ignore[misc]
        subjects = world.log_of_git()
        deployed = subjects.count(f"web: deploy version {run} of digits")
        assert deployed == (kind != "worse" and run > 1), subjects
        assert len([each for each in subjects if "roll digits back" in each]) == outcomes.get("RolledBack", 0)
    prometheus.close()
    print(f"{done} kills, {outcomes}")


def test_killed_at_a_few_points(world: World) -> None:
    killed(world, kills=6, seed=3)


@pytest.mark.slow
def test_killed_at_a_hundred_points(world: World) -> None:
    killed(world, kills=100, seed=5)
