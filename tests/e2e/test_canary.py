"""Versions of a real model under load, everything as pods: a good one is promoted, and a bad one rolled back.

The figures at 200 requests a second are those of `benchmarks.canary`, whose pods are processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.canary import load
from benchmarks.canary.load import Answer
from benchmarks.canary.scenario import ERRORS, Outcome, outcome
from benchmarks.canary.stage import Moment
from tests.cluster_fixtures import building
from tests.e2e.platform import Repository
from tests.e2e.pods import Cluster, is_ready
from tests.e2e.traffic import GATEWAY, HOST, NAMESPACE, PROMETHEUS, Traffic, traffic
from tools import image, prometheus, traefik
from tools.controlplane import KubeClient
from tools.definitions import GATEWAY_API, definitions
from tools.frameworks.build import DIGITS, build_digits
from tools.realnode import RealNode
from tools.traefik.gateway import KINDS
from tools.waiting import wait_until

pytestmark = pytest.mark.e2e
TEAM, SERVICE, PODS = "vision", "digits", 3
RATE = 40.0
"""Requests a second: two cores run everything."""
STEPS = (10, 25, 50)
PAUSE, INTERVAL, DRAIN = 15, 10, 5  # seconds
SHARE = 3.0  # percentage points
PATIENCE = 300.0  # seconds
TRAINER = Path(load.__file__).with_name("train.py")
EXPOSURE = f"""\
  monitoring: {{prometheusOperator: false, prometheus: "{PROMETHEUS}", interval: 1s}}
  exposure:
    gateway: {{name: {GATEWAY}, namespace: {NAMESPACE}}}
    proxies: [{{namespace: {NAMESPACE}}}]
    domains: [{{name: ai.example.com}}]
"""
_WHERE = 'namespace="{{namespace}}",pod=~"{{pods}}"'
_ALL = f"sum(rate(digits_requests_total{{{_WHERE}}}[{{{{interval}}}}]))"
_FAILED = f'sum(rate(digits_requests_total{{code="500",{_WHERE}}}[{{{{interval}}}}]))'
SPECS = f"""\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: {SERVICE}, team: {TEAM}}}
spec:
  model: {{name: digits, version: "VERSION"}}
  runtime:
    name: custom
    image: "IMAGE"
    port: 8080
    command: [python, /server.py, /models, 0.0.0.0, "8080"]
  probes:
    startup: {{path: /health, timeout: 2s, period: 2s, failures: 60}}
    readiness: {{path: /health}}
  env: {{OMP_NUM_THREADS: "1", OPENBLAS_NUM_THREADS: "1"}}
  resources: {{cpu: 100m, memory: 512Mi}}
  replicas: {PODS}
  drain: {DRAIN}s
  expose: {{host: {HOST}}}
  rollout:
    canary:
      steps: [{", ".join(f"{{percent: {each}, pause: {PAUSE}s}}" for each in STEPS)}]
      analysis:
        interval: {INTERVAL}s
        query: [{{name: errors, max: 0.01, promql: '({_FAILED} or vector(0)) / ({_ALL} > 0)'}}]
"""


class Service(NamedTuple):
    """The service, whose versions are those of train.py."""

    repository: Repository
    cluster: Cluster
    traffic: Traffic
    image: str

    def specs(self, version: int) -> str:
        return SPECS.replace("VERSION", str(version)).replace("IMAGE", self.image)

    def state(self) -> dict[str, Any]:
        """Return the state that the daemon has written; {} before."""
        found = self.cluster.kube.get("apps/v1", "Deployment", SERVICE, TEAM)
        state: dict[str, Any] = json.loads(found["metadata"]["annotations"].get("avactl.dev/rollout-state", "{}"))
        return state

    def moment(self) -> Moment:
        state = self.state()
        phase, step, reached = state.get("phase", "steady"), int(state.get("step", 0)), float(state.get("reached", 0))
        return Moment(time.time(), phase, step, reached, state.get("reason", ""))

    def pods(self) -> dict[str, str]:
        """Return the version of each pod by UID; of one that is not ready or was restarted, why it is none."""
        found = self.cluster.kube.list("v1", "Pod", TEAM, label_selector=f"app.kubernetes.io/instance={SERVICE}")
        return {pod["metadata"]["uid"]: _version(pod) for pod in found}

    def settled(self, version: int) -> bool:
        """Return True if all pods have this version, and no rollout is under way."""
        state = self.state()
        steady = "stable" in state and state.get("phase", "steady") == "steady"
        return steady and list(self.pods().values()) == [str(version)] * PODS

    def until(self, true: Callable[[], bool]) -> None:
        wait_until(true, timeout=PATIENCE, details=lambda: (self.state(), self.pods()))

    def serves(self, version: int) -> bool:
        """Return True if the gateway answers with this version, and with no other."""
        with self.traffic.clients(self.cluster, RATE) as answers:
            time.sleep(1.0)
        return all((each.status, each.version) == (200, str(version)) for each in answers)

    def roll(self, old: int, new: int) -> Rollout:
        """Roll out a version under load, until one is left."""
        left = old if new == ERRORS else new
        live, moments, untouched = self.pods(), list[Moment](), True
        with self.traffic.clients(self.cluster, RATE) as answers:
            time.sleep(2.0)
            before = self.state().get("ended", 0.0)
            self.repository.change("digits.yaml", self.specs(new))

            def ended() -> bool:
                nonlocal untouched
                moments.append(self.moment())
                pods = self.pods()
                untouched = untouched and live.items() <= pods.items()
                return self.state().get("ended", 0.0) != before and self.settled(left)

            self.until(ended)
            time.sleep(2.0)
        seen = outcome(f"{old} to {new}", STEPS, str(new), left == new, answers, moments, self.state())
        return Rollout(seen, answers, moments, untouched)


class Rollout(NamedTuple):
    """What was seen of a rollout."""

    seen: Outcome
    answers: list[Answer]
    moments: list[Moment]
    untouched: bool
    """The pods of the version before were ready at all times."""

    def show(self) -> None:
        seen = self.seen
        print(f"{seen.name}: {seen.ended}: {seen.reason}")
        print(
            f"  {seen.requests} requests, {sum(seen.failed.values())} failed, {seen.own} of {seen.bad} by its own error"
        )
        print(f"  shares: {', '.join(f'{step}%: {share:.2f}%' for step, share in seen.shares.items())}")
        aborting = [each.time for each in self.moments if each.phase == "aborting"]
        if aborting:
            sent = [each.sent for each in self.answers if each.version == str(ERRORS)]
            print(f"  first request to the abort: {(aborting[0] - sent[0]) / INTERVAL:.2f} intervals")
            print(f"  first to last request: {seen.exposed / INTERVAL:.2f} intervals")


def _version(pod: dict[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp") or not is_ready(pod):
        return "not ready"
    if any(each["restartCount"] for each in pod["status"]["containerStatuses"]):
        return "restarted"
    env = pod["spec"]["containers"][0]["env"]
    return str(next(each["value"] for each in env if each["name"] == "AVACTL_MODEL_VERSION"))


@pytest.fixture(scope="module")
def gateway(
    node: RealNode, kube: KubeClient, repository: Repository, avactl_image: str, request: pytest.FixtureRequest
) -> Iterator[Traffic]:
    """Gateway, Prometheus and clients, and a Cluster that knows of them."""
    with building(request):
        definitions(GATEWAY_API, *KINDS)
        traefik.build_binary()
        prometheus.build_binary()
        samples = build_digits(TRAINER)[1] / "samples.json"
    before = (repository.path / "platform.yaml").read_text()
    with traffic(node, kube, avactl_image, samples) as made:
        repository.write("platform.yaml", before.replace("  daemons:", f"{EXPOSURE}  daemons:", 1))
        yield made
        repository.write("platform.yaml", before)


@pytest.fixture(scope="module")
def server_image(node: RealNode, request: pytest.FixtureRequest) -> str:
    """Reference of an image with the model server and the models of `benchmarks.canary`."""
    with building(request):
        models = build_digits(TRAINER)[1]
        return node.image(image.model_server(TRAINER.with_name("server.py"), models, DIGITS))


@pytest.fixture
def service(repository: Repository, cluster: Cluster, gateway: Traffic, server_image: str) -> Iterator[Service]:
    """The service with version 1, which answers through the gateway."""
    made = Service(repository, cluster, gateway, server_image)
    repository.write("digits.yaml", made.specs(1))
    try:
        made.until(lambda: made.settled(1))
        made.until(lambda: made.serves(1))
        yield made
    finally:
        # Without the gateway, all specs of the tests that follow would be refused.
        repository.remove("digits.yaml")


def test_a_new_version_and_a_bad_one(service: Service) -> None:
    good = service.roll(1, 2)
    good.show()
    assert (good.seen.ended, good.seen.failed, good.seen.own) == ("promoted", {}, 0)
    assert list(good.seen.shares) == [*STEPS]
    assert good.seen.deviation <= SHARE

    bad = service.roll(2, ERRORS)
    bad.show()
    assert (bad.seen.ended, bad.seen.failed) == ("rolledBack", {})
    assert "errors 1: above 0.01" in bad.seen.reason
    # The first measurement decided, and the live version did not notice.
    assert list(bad.seen.shares) == [STEPS[0]]
    assert 0 < bad.seen.own == bad.seen.bad
    assert bad.untouched
