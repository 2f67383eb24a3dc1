"""Canary of services with endpoint pickers: two InferencePools, and the pickers that avactl runs for them.

The pickers are the real ones of the inference extension; Kubernetes' own controllers replace the pods, which kwok
plays. The tests play the gateway: they read the weights of the route and ask the picker of each pool.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.definitions import define_groups, define_pools
from tests.kinds.compiling import DIGEST, compiled
from tests.serving.group_world import MACHINES, add_machines, remove_machines
from tests.serving.world import PLATFORM, World
from tools.controlplane import ApiError, ControlPlane
from tools.endpointpicker import EndpointPicker

pytestmark = pytest.mark.controlplane
API, KIND = "inference.networking.k8s.io/v1", "InferencePool"
POOLS = ("web", "web-alt")
CANARY = "{canary: {steps: [{percent: 25, pause: 2s}, {percent: 50, pause: 2s}]}}"
# They take minutes to build: too long for the first run of `make test`.
WITH_PICKERS = pytest.mark.slow
BLUE_GREEN = "{blueGreen: {keep: 2s}}"


class PickerWorld(World):
    """Services of one team whose requests an endpoint picker divides."""

    platform = (
        PLATFORM.replace("namespace: gateways}", "namespace: gateways, inferencePools: true}", 1).replace(
            "daemons: {serving: true}", "daemons: {serving: true}\n  leaderWorkerSet: {}"
        )
        + MACHINES
    )

    def service(self, version: int, rollout: str, more: str = "replicas: 4") -> str:
        return f"""
---
kind: ServingDeployment
metadata: {{name: web, team: {self.team}}}
spec:
  model: {{name: chat, version: "{version}", path: /opt/chat-{version}}}
  runtime: {{name: vllm, image: "registry.example.com/vllm{DIGEST}"}}
  resources: {{cpu: 1, memory: 1Gi, gpus: 1}}
  llm:
    endpointPicker:
      image: registry.example.com/picker{DIGEST}
      cpu: 100m
      memory: 64Mi
      args: [--secure-serving=false]   # for clients without TLS
  drain: 1s
  balance: gateway
  expose: {{host: {self.team}.ai.example.com}}
  {more}
  rollout: {rollout}
"""

    def sets(self) -> dict[str, dict[str, Any]]:
        return {
            _version(each["spec"]["template"]["spec"]): each
            for each in self.kube.list("apps/v1", "ReplicaSet", self.team)
            if _is_server(each["spec"]["template"]["metadata"])
        }

    def pods(self) -> dict[str, str]:
        """Return the versions of ready pods by their addresses, without those that are terminating."""
        found = {}
        for pod in self.kube.list("v1", "Pod", self.team):
            conditions = (pod.get("status") or {}).get("conditions") or ()
            up = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            if up and _is_server(pod["metadata"]) and not pod["metadata"].get("deletionTimestamp"):
                found[pod["status"]["podIP"]] = _version(pod["spec"])
        return found

    def ready(self) -> dict[str, int]:
        versions = list(self.pods().values())
        return {each: versions.count(each) for each in versions}

    def pools(self) -> dict[str, str]:
        """Return the version that each pool selects; empty: all."""
        hashes = {each["metadata"]["labels"]["pod-template-hash"]: version for version, each in self.sets().items()}
        found = {}
        for name in POOLS:
            pool = self.kube.find(API, KIND, name, self.team)
            if pool is not None:
                hash = pool["spec"]["selector"]["matchLabels"].get("pod-template-hash", "")
                found[name] = hashes.get(hash, hash)
        return found

    def shares(self) -> dict[str, int]:
        """Return the weights of the route by pool."""
        route = self._route("HTTPRoute")
        refs = (route["spec"].get("rules") or [{}])[0].get("backendRefs", ()) if route else ()
        assert all(ref["kind"] == KIND for ref in refs)
        return {ref["name"]: ref["weight"] for ref in refs}

    def weights(self, kind: str = "HTTPRoute") -> dict[str, int]:
        pools = self.pools()
        return {pools[name]: weight for name, weight in self.shares().items()}

    def picker(self, pool: str) -> EndpointPicker:
        """Return the picker of a pool, with the arguments and the account of its compiled pod."""
        deployment = self.kube.get("apps/v1", "Deployment", f"{pool}-picker", self.team)
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        account = (self.team, spec["serviceAccountName"])
        return EndpointPicker(self.plane, account, container["args"], self.folder, pool)


def _read_version(route: dict[str, Any] | None) -> str:
    return str(route["metadata"]["resourceVersion"]) if route else ""


def _is_server(metadata: dict[str, Any]) -> bool:
    return bool(metadata["labels"].get("app.kubernetes.io/component") == "server")


def _version(pod: dict[str, Any]) -> str:
    return str(pod["containers"][0]["args"][0]).removeprefix("/opt/chat-")


@pytest.fixture
def world(serving_plane: ControlPlane, tmp_path: Path) -> Iterator[PickerWorld]:
    with serving_plane.client() as kube:
        define_groups(kube)
        define_pools(kube)
        add_machines(kube)
        world = PickerWorld(serving_plane, kube, f"team-{uuid.uuid4().hex[:8]}", tmp_path)
        world.options = ["--pools"]
        yield world
        world.stop()
        for each in kube.list("apps/v1", "Deployment", world.team):
            kube.delete("apps/v1", "Deployment", each["metadata"]["name"], world.team)
        world.kube.delete("v1", "Namespace", world.team)
        remove_machines(kube)


@pytest.fixture
def running(world: PickerWorld) -> PickerWorld:
    """The daemon, and version 1."""
    world.start()
    world.deploy(world.service(1, CANARY))
    world.until(lambda: world.weights() == {"1": 100})
    world.accept()
    world.until(lambda: world.settled("1") and world.pools() == {"web": "1", "web-alt": "1"})
    return world


@pytest.fixture
def pickers(running: PickerWorld) -> Iterator[dict[str, EndpointPicker]]:
    """The pickers of both pools."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(running.picker(name)) for name in POOLS}
        for each in found.values():
            each.wait()
        yield found


def _follow(world: PickerWorld, pickers: dict[str, EndpointPicker], version: str) -> list[dict[str, int]]:
    """Wait until a version has taken over; return the weights on the way.

    Each pool with requests has a picker that chooses a ready pod of its version.
    """
    seen: list[dict[str, int]] = []

    def done() -> bool:
        route, pools, shares = world._route("HTTPRoute"), world.pools(), world.shares()
        assert route is not None
        picked = {name: pickers[name].ask() for name, weight in shares.items() if weight and pickers}
        pods, ready = world.pods(), world.ready()
        if _read_version(world._route("HTTPRoute")) != _read_version(route):
            return False  # it changed meanwhile: the answers tell nothing about these weights
        weights = {pools[name]: weight for name, weight in shares.items()}
        if weights not in seen:
            seen.append(weights)
        assert all(ready.get(each) for each, weight in weights.items() if weight), (weights, ready)
        for name, answer in picked.items():
            assert answer.endpoint, (name, answer, weights)
            address = answer.endpoint.rpartition(":")[0]
            assert pods.get(address, pools[name]) == pools[name], (name, answer, pools, pods)
        return world.settled(version) and weights == {version: 100} and set(pools.values()) == {version}

    world.until(done)
    return seen


@WITH_PICKERS
def test_the_picker_of_each_version_chooses_its_pods(running: PickerWorld, pickers: dict[str, EndpointPicker]) -> None:
    running.deploy(running.service(2, CANARY))
    seen = _follow(running, pickers, "2")
    path = [{"1": 75, "2": 25}, {"1": 50, "2": 50}, {"2": 100}]
    assert [each for each in seen if each in path] == path
    assert running.shares() == {"web-alt": 100}
    # The next version takes the other pool.
    running.deploy(running.service(3, CANARY))
    assert {"2": 75, "3": 25} in _follow(running, pickers, "3")
    assert running.shares() == {"web": 100}


@WITH_PICKERS
def test_requests_return_before_the_new_version_stops(running: PickerWorld, pickers: dict[str, EndpointPicker]) -> None:
    slow = CANARY.replace("2s", "1h")
    running.deploy(running.service(2, slow))
    running.until(lambda: running.weights() == {"1": 75, "2": 25})
    assert pickers["web-alt"].ask().endpoint.rpartition(":")[0] in {
        ip for ip, each in running.pods().items() if each == "2"
    }
    running.deploy(running.service(1, slow))
    seen = _follow(running, pickers, "1")
    assert {"1": 100, "2": 0} in seen or {"1": 100} in seen
    assert running.shares() == {"web": 100}


def test_each_version_has_a_pool_of_its_own(running: PickerWorld) -> None:
    running.deploy(running.service(2, CANARY))
    path = [{"1": 75, "2": 25}, {"1": 50, "2": 50}, {"2": 100}]
    assert [each for each in _follow(running, {}, "2") if each in path] == path
    assert running.shares() == {"web-alt": 100}


def test_blue_green_moves_all_requests_at_once(running: PickerWorld) -> None:
    running.deploy(running.service(1, BLUE_GREEN))
    running.deploy(running.service(2, BLUE_GREEN))
    seen = _follow(running, {}, "2")
    assert [each for each in seen if each.get("2")] == [{"1": 0, "2": 100}, {"2": 100}]


def test_a_service_that_is_rolling_again_has_one_pool_of_all_pods(running: PickerWorld) -> None:
    running.deploy(running.service(2, CANARY.replace("2s", "1h")))
    running.until(lambda: running.weights() == {"1": 75, "2": 25})
    running.deploy_rolling(2)
    running.until(lambda: running.pools()["web"] == "" and not running.state())
    running.until(lambda: running.ready() == {"2": 4})


def test_a_pool_without_its_service_selects_all_pods(running: PickerWorld) -> None:
    """The replicas are other objects now, for example groups of several machines, which have another label."""
    assert running.pools()["web"] == "1"
    running.kube.delete("apps/v1", "Deployment", "web", running.team)
    running.until(lambda: "pod-template-hash" not in _selected(running))
    foreign = {"apiVersion": API, "kind": KIND, "metadata": {"name": "web", "namespace": running.team}}
    label = {"leaderworkerset.sigs.k8s.io/template-revision-hash": "gone"}
    running.kube.patch({**foreign, "spec": {"selector": {"matchLabels": label}}})
    running.deploy(running.service(1, CANARY))
    running.until(lambda: set(running.pools().values()) == {"1"} and not set(label) & set(_selected(running)))


def _selected(world: PickerWorld) -> dict[str, str]:
    labels: dict[str, str] = world.kube.get(API, KIND, "web", world.team)["spec"]["selector"]["matchLabels"]
    return labels


def test_an_engine_that_applies_again_and_again_does_not_hold_it_up(running: PickerWorld) -> None:
    specs = running.service(2, CANARY)
    found = compiled(running.platform.replace("TEAM", running.team) + specs).manifests
    pools = [each.body for each in found if each.kind == KIND]
    assert len(pools) == 2
    running.deploy(specs)

    def settled() -> bool:
        for each in pools:
            running.kube.apply(each, field_manager="avactl")  # without force: the daemon has a field of its own
        return running.settled("2") and running.weights() == {"2": 100} and set(running.pools().values()) == {"2"}

    running.until(settled)


@WITH_PICKERS
def test_killed_at_a_few_points(running: PickerWorld, pickers: dict[str, EndpointPicker]) -> None:
    running.deploy(running.service(2, CANARY))
    for percent in (0, 25, 50):
        running.until(partial(_has_share, running, percent))
        running.kill()
        running.start()
    _follow(running, pickers, "2")


def _has_share(world: PickerWorld, percent: int) -> bool:
    return world.weights().get("2", -1) >= percent


def test_a_pool_that_does_not_exist(world: PickerWorld) -> None:
    world.start()
    world.deploy(world.service(1, CANARY))
    world.until(lambda: world.weights() == {"1": 100})
    world.accept()
    world.until(lambda: world.settled("1"))
    world.kube.delete(API, KIND, "web-alt", world.team)
    specs = world.service(2, CANARY)
    found = compiled(world.platform.replace("TEAM", world.team) + specs).manifests
    (deployment,) = [each.body for each in found if (each.kind, each.name) == ("Deployment", "web")]
    world.kube.apply(deployment, field_manager="avactl")
    world.until(lambda: world.condition()[1] == "GatewayUnavailable")
    assert world.condition()[2].startswith("InferencePool web-alt does not exist")
    world.deploy(specs)
    world.until(lambda: world.settled("2") and world.weights() == {"2": 100})


def test_the_daemon_writes_only_the_version(world: PickerWorld) -> None:
    world.deploy(world.service(1, CANARY))
    with world.plane.client(world.plane.service_account_token("avactl-system", "avactl-serving", 600)) as daemon:
        pool = {"apiVersion": API, "kind": KIND, "metadata": {"name": "web", "namespace": world.team}}
        daemon.patch({**pool, "spec": {"selector": {"matchLabels": {"pod-template-hash": "abc"}}}})
        for spec in (
            {"selector": {"matchLabels": {"app.kubernetes.io/instance": "other"}}},
            {"targetPorts": [{"number": 22}]},
            {"endpointPickerRef": {"name": "other"}},
        ):
            with pytest.raises(ApiError, match="pools"):
                daemon.patch({**pool, "spec": spec})
        with pytest.raises(ApiError):
            daemon.create({**pool, "metadata": {"name": "own", "namespace": world.team}, "spec": {}})


def test_a_picker_may_not_do_more_than_watch(world: PickerWorld) -> None:
    world.deploy(world.service(1, CANARY))
    with world.plane.client(world.plane.service_account_token(world.team, "web-picker", 600)) as picker:
        assert picker.get(API, KIND, "web", world.team)
        picker.list("v1", "Pod", world.team)
        for attempt in (
            lambda: picker.list("v1", "Secret", world.team),
            lambda: picker.list("v1", "Pod", "kube-system"),
            lambda: picker.patch(
                {"apiVersion": API, "kind": KIND, "metadata": {"name": "web", "namespace": world.team}}
            ),
        ):
            with pytest.raises(ApiError, match="forbidden"):
                attempt()
