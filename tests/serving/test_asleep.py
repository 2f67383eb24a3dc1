"""Rollouts of services that have no pods while nobody uses them. `scale` does what KEDA does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.serving.prometheus import Prometheus
from tests.serving.test_gateway import hosts
from tests.serving.world import World

MORE = "replicas: {min: 0, max: 4}\n  expose: {host: web.ai.example.com}"
STEPS = "steps: [{percent: 5, pause: 1s}, {percent: 50, pause: 1s}]"
ERRORS = 'sum(rate(failed{namespace="{{namespace}}",pod=~"{{pods}}"}[{{interval}}]))'
MEASURED = (
    f"{{canary: {{{STEPS}, analysis: {{interval: 2s, query: [{{name: errors, promql: '{ERRORS}', max: 0.5}}]}}}}}}"
)
PLAIN = f"{{canary: {{{STEPS}}}}}"
SWITCH = "{blueGreen: {keep: 1s}}"
SLOW = "{blueGreen: {keep: 1h}}"


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    server = Prometheus()
    yield server
    server.close()


def service(world: World, version: int, rollout: str) -> str:
    """The service, which starts fast enough to have no pods."""
    text = world.service(version, rollout, MORE).replace("path: /health", "path: /health, startup: 2m")
    return hosts(text, world)


def begin(world: World, rollout: str) -> None:
    """Start the daemon and version 1, and let it fall asleep."""
    world.start()
    world.deploy(service(world, 1, rollout))
    if rollout != SWITCH:
        world.until(lambda: world.weights() == {"1": 100})
        world.accept()
    world.until(lambda: world.settled("1", 1) and world.condition()[1] == "Stable")
    world.scale(0)
    world.until(lambda: world.ready() == {})


def test_a_measured_version_waits_for_requests(world: World, prometheus: Prometheus) -> None:
    prometheus.other = 0.1  # an answer about other pods than those of the rollout must not promote it
    world.options = ["--prometheus", prometheus.url]
    begin(world, MEASURED)
    world.deploy(service(world, 2, MEASURED))
    world.until(lambda: world.condition()[1] == "NoRequests")
    assert world.condition()[2] == "the service has no pods: the rollout goes on when a request has started one"
    ends = time.monotonic() + 4
    while time.monotonic() < ends:
        assert (world.ready(), world.weights(), prometheus.queries) == ({}, {"1": 100}, [])
        time.sleep(0.2)

    # A request: the rollout begins, and both versions have pods.
    prometheus.other = None
    world.scale(1)
    world.until(lambda: world.weights() == {"1": 95, "2": 5} and world.ready() == {"1": 1, "2": 1})
    world.until(lambda: world.condition()[1] == "NoRequests")

    # The last request is long ago: the stable version has the next one, and the daemon may die meanwhile.
    world.scale(0)
    world.until(lambda: world.ready() == {})
    world.until(lambda: world.weights() == {"1": 100, "2": 0})
    world.kill()
    prometheus.other = 0.1
    world.start()
    world.until(lambda: world.condition()[2].startswith("the service has no pods"))
    assert world.state()["stable"] == world.sets()["1"]["metadata"]["labels"]["pod-template-hash"]

    world.scale(1)
    world.until(lambda: world.settled("2", 1) and world.weights() == {"2": 100})
    assert world.reasons().count("RolloutPromoted") == 1


@pytest.mark.parametrize("rollout", [PLAIN, SWITCH], ids=["canary", "blueGreen"])
def test_a_version_without_analysis_starts_once(world: World, rollout: str) -> None:
    begin(world, rollout)
    world.deploy(service(world, 2, rollout.replace("1s", "1h")))
    world.until(lambda: world.ready() == {"2": 1})
    world.deploy(service(world, 2, rollout))
    world.until(lambda: world.state().get("outcome") == "promoted" and world.ready() == {})
    world.until(lambda: world.condition()[1] in ("Promoted", "Stable"))
    world.scale(2)
    world.until(lambda: world.settled("2", 2))


def test_a_sleeping_service_that_was_rolling_is_compared(world: World) -> None:
    """Its strategy and its version change at once: what ran last is the stable version."""
    world.start()
    world.deploy(service(world, 1, "{rolling: {}}"))
    world.until(lambda: world.ready() == {"1": 1})
    world.deploy(service(world, 2, "{rolling: {}}"))
    world.until(lambda: world.ready() == {"2": 1})
    world.scale(0)
    world.until(lambda: world.ready() == {})
    world.deploy(service(world, 3, SLOW))
    world.until(lambda: world.state().get("stable") == world.sets()["2"]["metadata"]["labels"]["pod-template-hash"])
    world.until(lambda: world.ready() == {"3": 1})
    world.deploy(service(world, 3, SWITCH))
    world.until(lambda: world.state().get("outcome") == "promoted" and world.ready() == {})
