"""Which GPUs a container sees on a real kubelet, for each way in which a device plugin hands them over.

The plugin is a fake whose GPUs are files, and prefers other GPUs than the scheduler. The container runtime adds files
as NVIDIA's does; for `cdi-cri`, containerd does it itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from avactl.apply.doctor.device_plugins import find_plugins
from avactl.contracts.pod_annotations import DEVICES, GPU_SHARE
from tests import forked
from tests.cluster_fixtures import building
from tests.e2e.device_plugin import CDI_KIND, RESOURCE, FakePlugin
from tests.e2e.dra_driver import CDI_KIND as CDI_KIND_OF_CLAIMS
from tests.e2e.dra_driver import DRIVER, FakeDriver
from tests.e2e.pods import TIMEOUT
from tests.kinds.compiling import DIGEST, body, compiled
from tools import image
from tools.controlplane import KubeClient, build_binaries
from tools.controlplane.build import NODE_BINARIES
from tools.realnode import RealNode, check
from tools.waiting import wait_until

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
        self.create(name, {"env": env, "resources": {"limits": {RESOURCE: str(gpus)}}})
        pod = self.await_pod(name, lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"))
        assert pod["status"]["phase"] == "Succeeded", pod["status"]
        seen = self.seen(name)
        named = pod["metadata"].get("annotations", {}).get(DEVICES.name)
        self.delete(name)
        return seen, None if named is None else set(map(int, named.split(",")))

    def create(
        self, name: str, container: dict[str, Any], more: str = "", notes: dict[str, str] | None = None, **spec: Any
    ) -> None:
        """Create a pod that lists its devices, and then runs more."""
        main = {"name": "main", "image": self.busybox, "command": ["sh", "-c", f"ls /dev{more}"], **container}
        spec = {"schedulerName": "avactl", "restartPolicy": "Never", "containers": [main], **spec}
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": notes or {}}
        self.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def delete(self, name: str) -> None:
        self.kube.delete("v1", "Pod", name, NAMESPACE)
        self.kube.wait_gone("v1", "Pod", name, NAMESPACE, timeout=TIMEOUT)

    def seen(self, name: str, container: str = "main") -> set[int]:
        """Return the GPUs that a container has listed."""
        files = self.node.logs(NAMESPACE, name, f"--container={container}").split()
        return {int(file.removeprefix("fakegpu")) for file in files if file.startswith("fakegpu")}

    def write_cdi(self, kind: str, prefix: str) -> None:
        """Describe the GPUs to the container runtime, as NVIDIA's plugin and driver do."""
        devices = [
            {
                "name": f"{prefix}{number}",
                "containerEdits": {"deviceNodes": [{"path": f"/dev/fakegpu{number}", "hostPath": "/dev/null"}]},
            }
            for number in range(GPUS)
        ]
        edits = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
        text = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices, "containerEdits": edits})
        self.node.run("mkdir", "-p", "/var/run/cdi")
        file = f"/var/run/cdi/{kind.replace('/', '-')}.json"
        self.node.run("sh", "-c", 'printf %s "$1" > "$2"', "sh", text, file)

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
    # `avactl doctor` fails a pool that says otherwise.
    assert who_chooses(strategy, specs) == ("scheduler" if seen == {0, 1} else "kubelet")
    # With `devicesChosenBy: kubelet` nothing else is said, and the container has the plugin's GPUs, no more.
    assert lab.run("kubelets", 2, lab.use("kubelet")) == ({2, 3}, None)


def test_cdi_of_the_container_runtime(cdi_lab: Lab) -> None:
    """The default of NVIDIA's GPU Operator since 25.10."""
    cdi_lab.write_cdi(CDI_KIND, "GPU-")
    for strategy in ("cdi-cri", "cdi-annotations"):
        cdi_lab.plugin.strategy = strategy
        assert cdi_lab.run("chosen", 2, cdi_lab.use("scheduler")) == ({2, 3}, {0, 1})
        assert cdi_lab.run("kubelets", 2, cdi_lab.use("kubelet")) == ({2, 3}, None)
        assert who_chooses(strategy, False) == "kubelet"


@pytest.fixture(scope="module")
def claims_lab(cdi_lab: Lab) -> Iterator[Lab]:
    """That node with a DRA driver, which has tainted one of the GPUs, and a pool with `allocation: dra`."""
    kube, api = cdi_lab.kube, "resource.k8s.io/v1"
    result = compiled(SPECS.replace("devicesChosenBy: CHOSEN", "allocation: dra"))
    kube.apply(body(result, "ConfigMap", "avactl-pool-t4", SYSTEM), force=True)
    devices = body(result, "DeviceClass", "gpu-t4")
    kube.apply({**devices, "spec": {**devices["spec"], "extendedResourceName": "example.com/t4"}})
    template = body(result, "ResourceClaimTemplate", "net-worker-gpus", "vision")
    kube.apply({**template, "metadata": {"name": "two-gpus", "namespace": NAMESPACE}})
    cdi_lab.write_cdi(CDI_KIND_OF_CLAIMS, "gpu-")
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "Tesla T4"}}
    gpus: list[dict[str, Any]] = [{"name": f"gpu-{number}", "attributes": attributes} for number in range(GPUS)]
    gpus[0]["taints"] = [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}]
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": "node-0", "driver": DRIVER, "pool": pool, "devices": gpus}
    with FakeDriver(kube, cdi_lab.node.kubelet_directory()):
        kube.create({"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": "gpus"}, "spec": spec})
        try:
            yield cdi_lab
        finally:
            kube.delete(api, "ResourceSlice", "gpus")


def allocated(lab: Lab, claim: str) -> dict[str, set[int]]:
    """Return the GPUs that the scheduler has allocated to a claim, by request."""
    found: dict[str, set[int]] = {}
    allocation = lab.kube.get("resource.k8s.io/v1", "ResourceClaim", claim, NAMESPACE)["status"]["allocation"]
    for each in allocation["devices"]["results"]:
        found.setdefault(each["request"], set()).add(int(each["device"][-1]))
    return found


def running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def test_claims_have_the_devices_of_the_scheduler(claims_lab: Lab) -> None:
    """With `allocation: dra`: the kubelet asks the driver for what the scheduler has allocated."""
    claims = [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}]
    for name in ("one", "two"):
        resources = {"claims": [{"name": "gpus"}]}
        claims_lab.create(name, {"resources": resources}, "; sleep 1000", resourceClaims=claims)
        if name == "two":  # one healthy GPU is left
            claims_lab.await_pod(name, waits)
            claims_lab.delete("one")
        pod = claims_lab.await_pod(name, running)
        (given,) = allocated(claims_lab, pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]).values()
        wait_until(partial(claims_lab.seen, name), timeout=TIMEOUT)
        assert claims_lab.seen(name) == given
        assert 0 not in given
    claims_lab.delete("two")


@pytest.mark.parametrize("resource", ["example.com/t4", "deviceclass.resource.kubernetes.io/gpu-t4"])
def test_extended_resources_have_the_devices_of_the_scheduler(claims_lab: Lab, resource: str) -> None:
    """Of a DeviceClass, by the name that it states and by its own: each container sees the GPUs of its request."""
    sleeper = {"image": claims_lab.busybox, "command": ["sh", "-c", "ls /dev; sleep 1000"]}
    containers = [
        {"name": name, **sleeper, "resources": {"limits": {resource: str(gpus)}}}
        for name, gpus in (("first", 1), ("second", 2))
    ]
    claims_lab.create("both", {}, containers=containers)
    pod = claims_lab.await_pod("both", running)
    told = pod["status"]["extendedResourceClaimStatus"]
    given = allocated(claims_lab, told["resourceClaimName"])
    assert sorted(gpu for gpus in given.values() for gpu in gpus) == [1, 2, 3]
    mappings = {each["containerName"]: each["requestName"] for each in told["requestMappings"]}
    for name, gpus in (("first", 1), ("second", 2)):
        wait_until(partial(claims_lab.seen, "both", name), timeout=TIMEOUT)
        assert claims_lab.seen("both", name) == given[mappings[name]]
        assert len(given[mappings[name]]) == gpus
    # No healthy GPU is left; the claim goes with its pod.
    claims_lab.create("late", {"resources": {"limits": {resource: "1"}}}, "; sleep 1000")
    claims_lab.await_pod("late", waits)
    claims_lab.delete("both")
    late = claims_lab.await_pod("late", running)
    (given_late,) = allocated(claims_lab, late["status"]["extendedResourceClaimStatus"]["resourceClaimName"]).values()
    wait_until(partial(claims_lab.seen, "late"), timeout=TIMEOUT)
    assert claims_lab.seen("late") == given_late
    assert 0 not in given_late
    claims_lab.delete("late")


def waits(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def who_chooses(strategy: str, specs: bool) -> str:
    """Return what `avactl doctor` reads in a DaemonSet with these settings."""
    env = [
        {"name": "DEVICE_LIST_STRATEGY", "value": strategy},
        {"name": "PASS_DEVICE_SPECS", "value": str(specs).lower()},
    ]
    template = {"spec": {"containers": [{"name": "nvidia-device-plugin-ctr", "env": env}]}}
    (found,) = find_plugins([{"metadata": {"name": "plugin"}, "spec": {"template": template}}])
    return found.chosen_by


def test_shares_of_a_gpu(lab: Lab) -> None:
    """Two halves are of one GPU, which pods with whole ones do not get; the device plugin knows nothing of them."""
    lab.plugin.strategy, lab.plugin.pass_device_specs = "envvar", False
    env = lab.use("scheduler")
    names = ("half", "other-half")
    for name in names:
        lab.create(name, {"env": env}, "; sleep 1000", {GPU_SHARE.name: "0.5"})
    for name in names:
        lab.await_pod(name, lambda pod: bool(pod["status"].get("phase") == "Running"))
        wait_until(partial(lab.seen, name), timeout=TIMEOUT)
    assert lab.seen("half") == lab.seen("other-half")
    (shared,) = lab.seen("half")
    whole, named = lab.run("whole", GPUS - 1, env)
    assert whole == named == set(range(GPUS)) - {shared}
    for name in names:
        lab.delete(name)


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
