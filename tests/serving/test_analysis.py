"""Analysis: a worse version is rolled back and not tried again, and without an answer nothing moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.prometheus import Prometheus
from tests.serving.world import World

ERRORS = 'sum(rate(failed{namespace="{{namespace}}",pod=~"{{pods}}"}[{{interval}}]))'
QUERY = f"{{name: errors, promql: '{ERRORS}', max: 0.5, maxRatio: 10}}"
ANALYSIS = f"analysis: {{interval: 2s, query: [{QUERY}]}}"
CANARY = f"{{canary: {{traffic: replicas, steps: [{{percent: 25, pause: 1s}}], {ANALYSIS}}}}}"


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    server = Prometheus()
    yield server
    server.close()


@pytest.fixture
def measured(world: World, prometheus: Prometheus) -> World:
    """The service in version 1, and a Prometheus where its requests succeed."""
    prometheus.other = 0.1
    world.options = ["--prometheus", prometheus.url]
    world.start()
    world.deploy(world.service(1, CANARY))
    world.until(lambda: world.settled("1"))
    return world


def test_a_worse_version_is_rolled_back_and_not_tried_again(measured: World, prometheus: Prometheus) -> None:
    world = measured
    prometheus.values["x"] = None
    world.deploy(world.service(2, CANARY))
    canary = world.until(lambda: world.state().get("canary"))
    prometheus.values[canary] = 0.9
    world.until(lambda: world.settled("1"))
    assert world.reasons() == ["RolloutStarted", "RolloutStep", "RolloutAborting", "RolloutRolledBack"]
    assert "errors 0.9, stable 0.1: above 0.5" in world.condition()[2]
    world.until(lambda: world.condition()[:2] == ("False", "RolledBack"))
    # The daemon begins anew, and leaves the version alone; another one is tried.
    world.kill()
    world.start()
    world.deploy(world.service(2, CANARY))
    world.deploy(world.service(3, CANARY))
    world.until(lambda: world.settled("3"))
    assert world.reasons().count("RolloutStarted") == 2
    assert any(f'pod=~"web-{canary}-[a-z0-9]+"' in query and "[2s]" in query for query in prometheus.queries)


@pytest.mark.parametrize("answer", [b"nonsense", b'{"status": "success", "data": 1}', b'{"status": "error"}'])
def test_without_prometheus_nothing_moves(measured: World, prometheus: Prometheus, answer: bytes) -> None:
    world = measured
    prometheus.raw = answer
    world.deploy(world.service(2, CANARY))
    world.until(lambda: world.condition()[1] == "PrometheusUnavailable")
    assert world.ready() == {"1": 3, "2": 1}
    prometheus.raw = None
    world.until(lambda: world.settled("2"))


def test_a_version_without_requests_waits(measured: World, prometheus: Prometheus) -> None:
    world = measured
    prometheus.other = None
    world.deploy(world.service(2, CANARY))
    world.until(lambda: world.condition()[1] == "NoRequests")
    assert world.ready() == {"1": 3, "2": 1}
