"""Which GPUs a container sees on a real kubelet, for each way in which a device plugin hands them over.

The plugin is a fake whose GPUs are files, and prefers other GPUs than the scheduler. The container runtime adds files
as NVIDIA's does; for `cdi-cri`, containerd does it itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from avactl.contracts.pod_annotations import DEVICES
from tests import forked
from tests.cluster_fixtures import building
from tests.e2e.device_plugin import CDI_KIND, RESOURCE, FakePlugin
from tests.e2e.pods import TIMEOUT
from tests.kinds.compiling import DIGEST, body, compiled
from tools import image
from tools.controlplane import KubeClient, build_binaries
from tools.controlplane.build import NODE_BINARIES
from tools.realnode import RealNode, check

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("real-nodes")]
GPUS = 4
SCRIPT = Path(__file__).parent / "scripts" / "visible_devices.py"
SYSTEM, NAMESPACE = "avactl-system", "default"
SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/a{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: NodePool
metadata: {{name: t4}}
spec: {{cluster: main, machineType: t4-4, nodes: [node-0], devicesChosenBy: CHOSEN}}
---
kind: Team
metadata: {{name: vision}}
---
kind: TrainingJob
metadata: {{name: net, team: vision}}
spec: {{image: "train:1", command: [train], workers: {{gpus: 2}}}}
"""


class Lab(NamedTuple):
    """A node with GPUs of a fake plugin, and avactl's scheduler."""

    node: RealNode
    kube: KubeClient
    plugin: FakePlugin
    busybox: str

    def use(self, chosen_by: str) -> list[dict[str, Any]]:
        """Let the scheduler read a pool, and return the variables of the pods that it compiles to."""
        result = compiled(SPECS.replace("CHOSEN", chosen_by))
        self.kube.apply(body(result, "ConfigMap", "avactl-pool-t4", SYSTEM), force=True)
        self.kube.patch(body(result, "Node", "node-0"))
        (container,) = body(result, "Job", "net-worker", "vision")["spec"]["template"]["spec"]["containers"]
        return [each for each in container.get("env") or () if each["name"] == "NVIDIA_VISIBLE_DEVICES"]

    def run(self, name: str, gpus: int, env: list[dict[str, Any]]) -> tuple[set[int], set[int] | None]:
        """Run a pod to its end; return the GPUs that it saw, and those that the scheduler named, None if it did not."""
        container = {
            "name": "main",
            "image": self.busybox,
            "command": ["sh", "-c", "ls /dev"],
            "env": env,
            "resources": {"limits": {RESOURCE: str(gpus)}},
        }
        spec = {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [container]}
        metadata = {"name": name, "namespace": NAMESPACE}
        self.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        pod = self.await_pod(name, lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"))
        assert pod["status"]["phase"] == "Succeeded", pod["status"]
        files = self.node.logs(NAMESPACE, name).split()
        seen = {int(file.removeprefix("fakegpu")) for file in files if file.startswith("fakegpu")}
        named = pod["metadata"].get("annotations", {}).get(DEVICES.name)
        self.kube.delete("v1", "Pod", name, NAMESPACE)
        self.kube.wait_gone("v1", "Pod", name, NAMESPACE, timeout=TIMEOUT)
        return seen, None if named is None else set(map(int, named.split(",")))

    def await_pod(self, name: str, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = self.kube.wait_for("v1", "Pod", name, NAMESPACE, until=until, timeout=TIMEOUT)
        return found

    def await_gpus(self, allocatable: int) -> None:
        """Wait until the kubelet has so many GPUs to hand out."""

        def reported(node: dict[str, Any]) -> bool:
            return bool(node["status"].get("allocatable", {}).get(RESOURCE) == str(allocatable))

        self.kube.wait_for("v1", "Node", "node-0", until=reported, timeout=TIMEOUT)


def start(tmp: Path, request: pytest.FixtureRequest, *, devices: bool, runtime: Path | None) -> Iterator[Lab]:
    """Start a node, the plugin and the scheduler."""
    with building(request):
        check()
        build_binaries()
        build_binaries(NODE_BINARIES)
        picture = image.busybox()
    with RealNode(devices=devices, runtime=runtime) as node, node.client() as kube:
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        policy = tmp / "policy.json"
        result = compiled(SPECS.replace("CHOSEN", "scheduler"))
        policy.write_text(body(result, "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"])
        for kind in ("PriorityClass",):
            for manifest in result.manifests:
                if manifest.kind == kind:
                    kube.apply(manifest.body, force=True)
        with FakePlugin(node.kubelet_directory(), GPUS) as plugin, (tmp / "scheduler.log").open("wb") as log:
            lab = Lab(node, kube, plugin, node.image(picture))
            lab.await_gpus(GPUS)
            lab.use("scheduler")
            words = ["scheduler", "--config", str(policy), "--kubeconfig", str(node.kubeconfig)]
            daemon = forked.start([*words, "--listen", "127.0.0.1:0"], log=log)
            try:
                yield lab
            finally:
                daemon.kill()
                daemon.wait()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A node whose container runtime is like NVIDIA's."""
    tmp = tmp_path_factory.mktemp("lab")
    runtime = tmp / "runtime"
    runtime.write_text(f"#!{sys.executable} -IS\n{SCRIPT.read_text()}")
    runtime.chmod(0o755)
    yield from start(tmp, request, devices=False, runtime=runtime)


@pytest.fixture(scope="module")
def cdi_lab(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A node whose containerd injects devices by CDI."""
    yield from start(tmp_path_factory.mktemp("cdi"), request, devices=True, runtime=None)


@pytest.mark.parametrize(
    ("strategy", "specs", "seen"),
    [
        ("envvar", False, {0, 1}),
        # The kubelet's device files, too: a pod has GPUs that the scheduler gives to others.
        ("envvar", True, {0, 1, 2, 3}),
        ("volume-mounts", False, {2, 3}),
        ("cdi-annotations", False, {2, 3}),
    ],
)
def test_what_a_container_sees(lab: Lab, strategy: str, specs: bool, seen: set[int]) -> None:
    """The scheduler's choice holds with `envvar` alone: the other ways are not `devicesChosenBy: scheduler`."""
    lab.plugin.strategy, lab.plugin.pass_device_specs = strategy, specs
    assert lab.run("chosen", 2, lab.use("scheduler")) == (seen, {0, 1})
    # With `devicesChosenBy: kubelet` nothing else is said, and the container has the plugin's GPUs, no more.
    assert lab.run("kubelets", 2, lab.use("kubelet")) == ({2, 3}, None)


def test_cdi_of_the_container_runtime(cdi_lab: Lab) -> None:
    """The default of NVIDIA's GPU Operator since 25.10."""
    devices = [
        {
            "name": f"GPU-{number}",
            "containerEdits": {"deviceNodes": [{"path": f"/dev/fakegpu{number}", "hostPath": "/dev/null"}]},
        }
        for number in range(GPUS)
    ]
    edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    spec = {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices, "containerEdits": edits}
    cdi_lab.node.run("mkdir", "-p", "/var/run/cdi")
    cdi_lab.node.run("sh", "-c", 'printf %s "$1" > /var/run/cdi/fake.json', "sh", json.dumps(spec))
    for strategy in ("cdi-cri", "cdi-annotations"):
        cdi_lab.plugin.strategy = strategy
        assert cdi_lab.run("chosen", 2, cdi_lab.use("scheduler")) == ({2, 3}, {0, 1})
        assert cdi_lab.run("kubelets", 2, cdi_lab.use("kubelet")) == ({2, 3}, None)


def test_a_withdrawn_gpu_is_not_handed_out(lab: Lab) -> None:
    lab.plugin.strategy, lab.plugin.pass_device_specs = "envvar", False
    env = lab.use("kubelet")
    lab.plugin.set_healthy(3, False)
    try:
        lab.await_gpus(GPUS - 1)
        assert lab.run("healthy", 2, env) == ({1, 2}, None)
        env = lab.use("scheduler")
        container = {"name": "main", "image": lab.busybox, "env": env, "resources": {"limits": {RESOURCE: "1"}}}
        metadata = {"name": "waits", "namespace": NAMESPACE}
        spec = {"schedulerName": "avactl", "containers": [container]}
        lab.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

        def told(pod: dict[str, Any]) -> bool:
            conditions = pod["status"].get("conditions") or ()
            return any("the device plugin withdrew" in each.get("message", "") for each in conditions)

        lab.await_pod("waits", told)
    finally:
        lab.plugin.set_healthy(3, True)
        lab.await_gpus(GPUS)
    lab.await_pod("waits", lambda pod: bool(pod["spec"].get("nodeName")))
