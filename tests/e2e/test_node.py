"""Real nodes do what nodes of a cluster do, and leave the machine as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.pods import Cluster, is_ready, sh
from tools.controlplane import KubeClient
from tools.controlplane.build import KUBERNETES_VERSION
from tools.realnode import RealNode
from tools.realnode.keeper import TUNABLES
from tools.realnode.machine import Machine
from tools.waiting import wait_until

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def test_nodes_are_ready(node: RealNode, kube: KubeClient) -> None:
    nodes = {body["metadata"]["name"]: body for body in kube.list("v1", "Node")}
    assert set(nodes) == set(node.names) == {"node-0", "node-1"}
    assert all(is_ready(body) for body in nodes.values())
    information = nodes["node-0"]["status"]["nodeInfo"]
    assert information["kubeletVersion"] == KUBERNETES_VERSION
    assert information["containerRuntimeVersion"].startswith("containerd://")


@pytest.mark.parametrize("on", ["node-0", "node-1"])
def test_a_pod_runs_to_its_end(cluster: Cluster, busybox: str, on: str) -> None:
    env = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    assert cluster.run("hello", busybox, sh("echo hello from $NODE"), on=on, env=env) == f"hello from {on}\n"


def test_a_failure_has_its_exit_code(cluster: Cluster, busybox: str) -> None:
    cluster.create("fails", busybox, sh("exit 7"))
    (container,) = cluster.ended("fails")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 7


def test_the_memory_limit_holds(cluster: Cluster, busybox: str) -> None:
    limits = {"limits": {"memory": "32Mi"}}
    cluster.create("big", busybox, sh("dd if=/dev/zero of=/dev/null bs=64M count=1"), resources=limits)
    (container,) = cluster.ended("big")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"


def test_exec(cluster: Cluster, busybox: str) -> None:
    cluster.create("sleeps", busybox, sh("sleep 1000"))
    cluster.ready("sleeps")
    assert cluster.node.exec(cluster.namespace, "sleeps", "hostname") == "sleeps\n"


@pytest.mark.parametrize("client", ["node-0", "node-1"])
def test_pods_reach_pods_and_services(cluster: Cluster, busybox: str, client: str) -> None:
    script = "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    cluster.create("server", busybox, sh(script), on="node-0", labels={"app": "server"}, readinessProbe=probe)
    spec = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}
    metadata = {"name": "server", "namespace": cluster.namespace}
    service = cluster.kube.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}).body
    pod = cluster.ready("server")
    # kube-proxy learns of the endpoint a moment after the pod is ready.
    address, cluster_ip = pod["status"]["podIP"], service["spec"]["clusterIP"]
    script = f"wget -qO- {address}:8080; until wget -qO- {cluster_ip}; do sleep 0.2; done"
    assert cluster.run("client", busybox, sh(script), on=client) == "server\nserver\n"


def test_pods_reach_an_exposed_port(cluster: Cluster, busybox: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("of the machine")
    command = [sys.executable, "-u", "-m", "http.server", "--bind=127.0.0.1", f"--directory={tmp_path}", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split(" port ")[1].split()[0])
            address = cluster.node.expose(port)
            assert cluster.run("client", busybox, ["wget", "-qO-", f"{address}/file"], on="node-1") == "of the machine"
        finally:
            server.kill()


OWNER = """
import sys, time
from tools import image
from tools.realnode import RealNode
with RealNode() as node, node.client() as kube:
    container = {"name": "main", "image": node.image(image.busybox()), "command": ["sleep", "1000"]}
    metadata = {"name": "left", "namespace": "default"}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
    kube.wait_for("v1", "Pod", "left", until=lambda pod: pod["status"]["phase"] == "Running")
    print(node.log("kubelet").parent, flush=True)
    sys.stdin.readline()
"""


def tunables() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text() for name in TUNABLES}


def traces(name: str) -> list[str]:
    """Processes, mounts and cgroups that have the name of a node's folder."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [str(process)] if name in (process / "mountinfo").read_text() else []
        except OSError:
            continue
    return found


def keepers(folder: Path) -> list[int]:
    """The processes of this machine that keep a node's namespaces."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
            inside = (process / "status").read_text().partition("NSpid:")[2].splitlines()[0].split()
        except (OSError, IndexError):
            continue
        if str(folder) in words and len(inside) == 1:
            found.append(int(process.name))
    return found


@pytest.mark.parametrize("end", ["closed", "killed", "killed with its keeper"])
def test_nothing_is_left(node: RealNode, end: str) -> None:
    before = tunables(), set(Path("/").iterdir()), set(Path("/var/lib").iterdir()), set(Path("/var/log").iterdir())
    pipe = subprocess.PIPE
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert owner.stdout is not None
    with owner:
        folder = Path(owner.stdout.readline().strip())
        assert folder.name.startswith("avactl-node-")
        assert len(traces(folder.name)) > 5
        if end == "closed":
            owner.communicate("\n")
            assert owner.returncode == 0
        elif end == "killed":
            os.kill(owner.pid, signal.SIGKILL)
            # The keeper of the namespaces cleans up by itself.
            wait_until(lambda: not folder.exists())
        else:
            (keeper,) = keepers(folder)
            os.kill(keeper, signal.SIGKILL)
            os.kill(owner.pid, signal.SIGKILL)
            owner.wait()
            wait_until(lambda: not any(trace.startswith("/proc") for trace in traces(folder.name)))
            # The next node cleans up.
            Machine().close()
    assert not folder.exists()
    assert traces(folder.name) == []
    after = tunables(), set(Path("/").iterdir()), set(Path("/var/lib").iterdir()), set(Path("/var/log").iterdir())
    assert after == before
