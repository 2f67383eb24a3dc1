"""Services whose replicas are groups of pods, and their rollouts; kwok plays the machines."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.kinds.compiling import DIGEST
from tests.serving.test_validation import end, job
from tests.serving.world import PLATFORM, ROUTES, World
from tools.controlplane import KubeClient

API, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
HOLD = 2**31 - 1
CANARY = "{canary: {steps: [{percent: 25, pause: 1s}, {percent: 50, pause: 1s}]}}"
MEASURED = "{canary: {steps: [{percent: 25, pause: 1s}], analysis: {job: {image: registry.example.com/check:1}}}}"
MACHINES = """
---
kind: MachineType
metadata: {name: gpu}
spec: {gpus: {model: A10, count: 8, memory: 24Gi}, cpu: 64, memory: 512Gi}
---
kind: NodePool
metadata: {name: gpu}
spec: {cluster: main, machineType: gpu, count: 4}
"""


class GroupWorld(World):
    """Services of one team whose replicas have two machines."""

    platform = (
        PLATFORM.replace("daemons: {serving: true}", "daemons: {serving: true}\n  leaderWorkerSet: {}") + MACHINES
    )

    @property
    def llm(self) -> str:
        """Keys of the spec that say what a replica is."""
        return "llm: {machines: 2}"

    def service(self, version: int, rollout: str, more: str = "replicas: 3") -> str:
        return f"""
---
kind: ServingDeployment
metadata: {{name: web, team: {self.team}}}
spec:
  model: {{name: chat, version: "{version}", path: /opt/chat-{version}}}
  runtime: {{name: vllm, image: "registry.example.com/vllm{DIGEST}"}}
  resources: {{cpu: 1, memory: 1Gi, gpus: 1}}
  {self.llm}
  drain: 0s
  expose: {{host: {self.team}.ai.example.com}}
  {more}
  rollout: {rollout}
"""

    def deployment(self) -> dict[str, Any]:
        return self.kube.get(API, KIND, "web", self.team)

    def partition(self) -> int:
        rolling = self.deployment()["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        return int(rolling["partition"])

    def leaders(self) -> dict[str, tuple[str, str, bool]]:
        """Return version, revision and readiness of the leaders by name, without those that are terminating."""
        found = {}
        for pod in self.kube.list("v1", "Pod", self.team):
            labels = pod["metadata"]["labels"]
            if labels.get("app.kubernetes.io/component") == "server" and not pod["metadata"].get("deletionTimestamp"):
                conditions = (pod.get("status") or {}).get("conditions") or ()
                up = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
                version = pod["spec"]["containers"][0]["args"][0].removeprefix("/opt/chat-")
                revision = labels["leaderworkerset.sigs.k8s.io/template-revision-hash"]
                found[pod["metadata"]["name"]] = version, revision, up
        return found

    def ready(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for version, _, up in self.leaders().values():
            if up:
                found[version] = found.get(version, 0) + 1
        return found

    def _weights_of(self, route: dict[str, Any] | None) -> dict[str, int]:
        names = {f"web-{revision}": version for version, revision, _ in self.leaders().values()}
        refs = (route["spec"].get("rules") or [{}])[0].get("backendRefs", ()) if route else ()
        return {names.get(ref["name"], ref["name"]): ref["weight"] for ref in refs}

    def route_version(self) -> str:
        route = self._route("HTTPRoute")
        assert route is not None
        return str(route["metadata"]["resourceVersion"])

    def weights_since(self, route_version: str, version: str) -> list[int]:
        """Return the weights that a version has had on the HTTPRoute since then, one for each change of the route."""
        (service,) = {f"web-{revision}" for each, revision, _ in self.leaders().values() if each == version}
        path = f"/apis/{ROUTES}/namespaces/{self.team}/httproutes"
        query = {"resourceVersion": route_version, "timeoutSeconds": "1"}
        found = []
        for event in self.kube.watch(path, query):
            assert event["type"] != "ERROR", event
            rules = event["object"]["spec"].get("rules") or [{}]
            weights = {ref["name"]: ref["weight"] for ref in rules[0].get("backendRefs") or ()}
            found.append(weights.get(service, 0))
        return found

    def settled(self, version: str, pods: int = 3) -> bool:
        return (
            self.ready() == {version: pods}
            and self.state().get("phase", "steady") == "steady"
            and self.weights() == {version: 100}
            and self.partition() == HOLD
        )

    def version_services(self) -> list[str]:
        return [
            each["metadata"]["name"]
            for each in self.kube.list("v1", "Service", self.team)
            if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "revision"
        ]


POOL_API, POOL_KIND = "inference.networking.k8s.io/v1", "InferencePool"
_VERSION = "avactl.dev/version"


class RolesWorld(GroupWorld):
    """Services of one team with prefill and decode pods, of one machine each."""

    prefill = 2
    platform = GroupWorld.platform.replace("namespace: gateways}", "namespace: gateways, inferencePools: true}", 1)

    @property
    def llm(self) -> str:
        return f"""balance: gateway
  llm:
    endpointPicker: {{image: "registry.example.com/picker{DIGEST}", cpu: 100m, memory: 64Mi}}
    prefill:
      replicas: {self.prefill}
      sidecar: {{image: "registry.example.com/sidecar{DIGEST}", cpu: 100m, memory: 64Mi}}"""

    def groups(self) -> dict[tuple[str, str], int]:
        """Return ready groups by LeaderWorkerSet and version of the model."""
        found: dict[tuple[str, str], int] = {}
        for name, (version, _, up) in self.leaders().items():
            if up:
                key = name.rpartition("-")[0], version
                found[key] = found.get(key, 0) + 1
        return found

    def ready(self) -> dict[str, int]:
        """Return ready groups by version, of the role that has fewest."""
        groups = self.groups()
        found = {version: min(groups.get((name, version), 0) for name in _ROLES) for _, version in groups}
        return {version: count for version, count in found.items() if count}

    def pools(self) -> dict[str, str]:
        """Return the version that each pool selects; empty: all."""
        hashes = {}
        for pod in self.kube.list("v1", "Pod", self.team):
            if _VERSION in pod["metadata"]["labels"]:
                version = pod["spec"]["containers"][0]["args"][0].removeprefix("/opt/chat-")
                hashes[pod["metadata"]["labels"][_VERSION]] = version
        found = {}
        for pool in self.kube.list(POOL_API, POOL_KIND, self.team):
            hash = pool["spec"]["selector"]["matchLabels"].get(_VERSION, "")
            found[pool["metadata"]["name"]] = hashes.get(hash, hash)
        return found

    def _weights_of(self, route: dict[str, Any] | None) -> dict[str, int]:
        pools = self.pools()
        refs = (route["spec"].get("rules") or [{}])[0].get("backendRefs", ()) if route else ()
        return {pools[ref["name"]]: ref["weight"] for ref in refs}

    def settled(self, version: str, pods: int = 0) -> bool:
        wanted = {(name, version): self.kube.get(API, KIND, name, self.team)["spec"]["replicas"] for name in _ROLES}
        rolling = [self.kube.get(API, KIND, name, self.team)["spec"]["rolloutStrategy"] for name in _ROLES]
        return (
            self.groups() == wanted
            and self.state().get("phase", "steady") == "steady"
            and self.weights() == {version: 100}
            and all(each["rollingUpdateConfiguration"].get("partition") == HOLD for each in rolling)
        )

    def written(self) -> str:
        """Return what the daemon has written."""
        state = {key: value for key, value in self.state().items() if key != "message"}
        rolling = [self.kube.get(API, KIND, name, self.team)["spec"]["rolloutStrategy"] for name in _ROLES]
        return f"{state} {rolling} {self.weights()} {self.pools()}"

    def scale_role(self, name: str, groups: int) -> None:
        """Set what `kubectl scale` or an autoscaler of a role sets."""
        metadata = {"name": name, "namespace": self.team}
        body = {"apiVersion": API, "kind": KIND, "metadata": metadata, "spec": {"replicas": groups}}
        self.kube.patch(body)


_ROLES = ("web", "web-prefill")
_MACHINES = tuple(f"gpu-{number}" for number in range(4))


def remove_machines(kube: KubeClient) -> None:
    """Remove what `add_machines` creates."""
    for name in _MACHINES:
        kube.delete("v1", "Node", name)


def add_machines(kube: KubeClient) -> None:
    """Create four machines with GPUs, which kwok plays."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    for name in _MACHINES:
        labels = {"kubernetes.io/hostname": name, "avactl.dev/pool": "gpu", "avactl.dev/gpu": "A10"}
        status = {"capacity": amounts, "allocatable": amounts}
        metadata = {"name": name, "labels": labels}
        kube.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})


def begin(world: GroupWorld, rollout: str = CANARY) -> None:
    """Start the daemon, and the first version."""
    world.start()
    world.deploy(world.service(1, rollout))
    world.until(lambda: world._route("HTTPRoute"))
    world.accept()
    world.until(lambda: world.settled("1"))


def fail_job(world: GroupWorld) -> None:
    """Roll out a version whose validation fails: its group starts again with the stable one."""
    begin(world, MEASURED)
    world.deploy(world.service(2, MEASURED))
    found = job(world)
    env = {each["name"]: each["value"] for each in found["spec"]["template"]["spec"]["containers"][0]["env"]}
    new = next(revision for version, revision, _ in world.leaders().values() if version == "2")
    assert env["AVACTL_NEW_URL"] == f"http://web-{new}.{world.team}:8000"
    end(world, found, "Failed", 1)
    # The group that was added for the rollout stays until the spec has the stable version again.
    world.until(lambda: world.ready() == {"1": 4} and world.state().get("outcome") == "rolledBack")
    world.until(lambda: world.condition()[:2] == ("False", "RolledBack"))
    assert world.weights() == {"1": 100}
    world.deploy(world.service(1, MEASURED))
    world.until(lambda: world.settled("1"))
    world.until(lambda: world.condition()[:2] == ("True", "Stable"))
    world.until(lambda: len(world.version_services()) == 1)


def killed(world: GroupWorld, kills: int, seed: int) -> None:
    """Roll out and back while the daemon is killed; requests never go where no group is ready."""
    order = random.Random(seed)
    begin(world)
    latest, done = 1, 0
    while done < kills:
        latest += 1
        world.deploy(world.service(latest, CANARY))
        goal = str(latest)

        def ended(goal: str = goal) -> bool:
            return world.settled(goal)

        while not ended():
            world.kill()
            done += 1
            world.start()
            ends = time.monotonic() + order.uniform(0.8, 3.0)
            while time.monotonic() < ends:
                weights, ready = world.weights_and_ready("HTTPRoute")
                served = {each for found in weights for each, weight in found.items() if weight}
                assert all(ready.get(each) for each in served), (weights, ready)
                assert sum(ready.values()) >= 3
                time.sleep(0.05)
        assert len(world.leaders()) == 3
