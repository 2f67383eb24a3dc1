"""Jobs in the network of their machines, on a real control plane."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.program.lowering import host_network
from avactl.program.program import Item, Program
from tests.kinds.compiling import DIGEST, apply, body, codes, compiled, unchecked
from tests.kinds.tenancy_attempts import container, pod_spec, workload
from tests.kinds.training import field
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

FAST = "vision-fast"
STRICT = container()["securityContext"]
PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: v100-pcie-8, count: 3}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{users: [ann]}}, namespaces: [{{name: vision}}, {{name: {FAST}, hostNetwork: true}}]}}
"""


def job(name: str, spec: str) -> str:
    return (
        f"---\nkind: TrainingJob\nmetadata: {{name: {name}, team: vision, namespace: {FAST}}}\n"
        f"spec: {{image: registry.example.com/train, command: [python, train.py], {spec}}}\n"
    )


REDUCE = job("net", "strategy: allReduce, hostNetwork: {}, workers: {replicas: 2, gpus: 1, cpu: 1}")
SERVERS = job("kv", "framework: mxnet, strategy: parameterServer, hostNetwork: {port: 21000}, workers: {}, servers: {}")


@pytest.fixture(scope="module")
def jobs() -> Compilation:
    return compiled(PLATFORM + REDUCE + SERVERS)


def test_a_job_master_listens_on_no_other_port() -> None:
    servers = "framework: custom, strategy: parameterServer, consistency: ssp, staleness: 3"
    made = compiled(PLATFORM + job("net", f"{servers}, hostNetwork: {{}}, workers: {{replicas: 2}}, servers: {{}}"))
    pod = body(made, "Job", "net-master", FAST)["spec"]["template"]["spec"]
    (master,) = [each for each in pod["initContainers"] if each["name"] == "master"]
    assert "--http" not in master["args"]
    assert not [key for key in master if key.endswith("Probe")]


def test_addresses_have_the_allocated_port(jobs: Compilation) -> None:
    spec = body(jobs, "Job", "net-worker", FAST)["spec"]["template"]["spec"]
    (port,) = spec["containers"][0]["ports"]
    assert port["hostPort"] == port["containerPort"] == 23216
    env = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == "23216"
    service = body(jobs, "Service", "net-rendezvous", FAST)["spec"]
    assert [each["port"] for each in service["ports"]] == [23216]
    # Only ps-lite's scheduler listens on a known port: workers and servers can share machines.
    ports = {
        role: body(jobs, "Job", f"kv-{role}", FAST)["spec"]["template"]["spec"]["containers"][0].get("ports")
        for role in ("worker", "server", "scheduler")
    }
    assert {role for role, found in ports.items() if found} == {"scheduler"}


def test_the_health_check_uses_the_port_that_its_pods_declare() -> None:
    checked = job("net", "strategy: allReduce, hostNetwork: {port: 21000}, healthCheck: {}, workers: {replicas: 2}")
    spec = body(compiled(PLATFORM + checked), "Job", "net-worker", FAST)["spec"]["template"]["spec"]
    assert f"net-worker-0.net-rendezvous.{FAST}.svc:21000" in spec["initContainers"][1]["args"]
    assert [each["hostPort"] for each in spec["containers"][0]["ports"]] == [21000]


def test_the_job_master_listens_on_the_port_that_its_pod_declares() -> None:
    text = "framework: custom, strategy: parameterServer, consistency: ssp, staleness: 3, servers: {}"
    found = compiled(PLATFORM + job("stale", f"{text}, hostNetwork: {{port: 21000}}"))
    pod = body(found, "Job", "stale-master", FAST)["spec"]["template"]["spec"]
    (master,) = (each for each in pod["initContainers"] if each["name"] == "master")
    assert [each["hostPort"] for each in pod["containers"][0]["ports"]] == [21000]
    assert master["args"][:2] == ["--listen", "$(POD_IP):21000"]
    (worker,) = body(found, "Job", "stale-worker", FAST)["spec"]["template"]["spec"]["containers"]
    address = next(entry["value"] for entry in worker["env"] if entry["name"] == "AVACTL_MASTER")
    assert address == "stale-master-0.stale-rendezvous.vision-fast.svc:21000"
    service = body(found, "Service", "stale-rendezvous", FAST)["spec"]
    assert [each["port"] for each in service["ports"]] == [21000]


def test_two_jobs_on_one_port() -> None:
    other = job("other", "strategy: allReduce, hostNetwork: {port: 21000}, workers: {replicas: 2, gpus: 1}")
    assert codes(unchecked(PLATFORM + SERVERS + other)) == ["host-port-conflict"]
    assert codes(unchecked(PLATFORM + SERVERS + other.replace("21000", "21001"))) == []


def test_many_jobs_on_all_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch of a fork may declare more jobs than there are ports: each job is looked at a few times only."""
    monkeypatch.setattr(host_network, "FIRST", 21000)
    monkeypatch.setattr(host_network, "LAST", 21009)
    reads, derive = 0, Program.derive

    def counted(self: Program, item: Item, make: Any) -> Any:
        nonlocal reads
        reads += make is host_network._listening_port
        return derive(self, item, make)

    monkeypatch.setattr(Program, "derive", counted)
    fields = "strategy: allReduce, hostNetwork: {port: %s}, workers: {replicas: 2, gpus: 1}"
    many = "".join(job(f"net-{number}", fields % (21000 + number % 10)) for number in range(30))
    assert codes(unchecked(PLATFORM + many)).count("host-port-conflict") == 20
    assert 30 <= reads <= 90


@pytest.fixture(scope="module")
def plane(
    control_plane_binaries: None, jobs: Compilation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("scheduler")
    with ControlPlane(controller_manager=True, kwok=True, users={"ann": []}) as started, started.client() as kube:
        apply(kube, [manifest for manifest in jobs.manifests if not manifest.patch])
        kube.create(node("machine-0"))
        _wait_for_policy(kube)
        (folder / "policy").write_text(body(jobs, "ConfigMap", "avactl-policy", "avactl-system")["data"]["policy.json"])
        started.write_kubeconfig(folder / "config", started.service_account_token("avactl-system", "avactl-scheduler"))
        words = ["--config", str(folder / "policy"), "--kubeconfig", str(folder / "config")]
        scheduler = subprocess.Popen(
            [sys.executable, "-m", "avactl.cli.main", "scheduler", *words], stderr=subprocess.DEVNULL
        )
        try:
            yield started
        finally:
            scheduler.kill()
            scheduler.wait()


def _wait_for_policy(kube: KubeClient) -> None:
    """Wait until the API server applies the admission policy, which takes it a moment."""
    wait_until(lambda: kube.refusal(workload("Pod", {**pod_spec(), "hostPID": True}, namespace=FAST)))


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": name, "avactl.dev/pool": "v100", "avactl.dev/gpu": "V100"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def test_two_pods_of_a_job_never_share_a_machine(plane: ControlPlane) -> None:
    """One machine has room for both by its GPUs, but not by the port."""

    def pods(kube: KubeClient, job: str = "net-worker") -> list[dict[str, Any]]:
        return kube.list("v1", "Pod", FAST, label_selector=f"batch.kubernetes.io/job-name={job}")

    def wait(kube: KubeClient, until: Callable[[], object]) -> None:
        wait_until(until, details=lambda: [pod.get("status") for pod in kube.list("v1", "Pod", FAST)])

    with plane.client() as kube:
        wait(kube, lambda: len(pods(kube)) == 2)
        wait(kube, lambda: all(field(pod, "status.conditions") for pod in pods(kube)))
        assert not any("nodeName" in pod["spec"] for pod in pods(kube))
        kube.create(node("machine-1"))
        wait(kube, lambda: {pod["spec"].get("nodeName") for pod in pods(kube)} == {"machine-0", "machine-1"})
        assert all(pod["spec"]["hostNetwork"] for pod in pods(kube))
        # Pods of another job, with another port, run beside them.
        wait(kube, lambda: all("nodeName" in pod["spec"] for pod in pods(kube, "kv-scheduler")))


def test_members_create_no_pods_where_the_host_network_is_allowed(plane: ControlPlane) -> None:
    with plane.client(plane.token("ann")) as ann:
        for made in ("Pod", "Job", "Deployment"):
            harmless = workload(made, pod_spec(), namespace=FAST)
            with pytest.raises(ApiError, match="host-network: pods of this namespace may use the host's network"):
                ann.create(harmless, dry_run=True)
        own = workload("Pod", pod_spec(), namespace="vision")
        ann.create(own, dry_run=True)


@pytest.mark.parametrize(
    "more",
    [
        {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
        {"hostPID": True},
        {"hostIPC": True},
        {"containers": [{"name": "main", "image": "x", "securityContext": {"privileged": True}}]},
        {"containers": [{"name": "main", "image": "x"}]},
        {"volumes": [{"name": "server", "nfs": {"server": "192.0.2.1", "path": "/"}}]},
        {"securityContext": {"runAsNonRoot": True, "runAsUser": 1000}},
        {"containers": [container(securityContext={**STRICT, "seccompProfile": {"type": "Unconfined"}})]},
        {"containers": [container(securityContext={**STRICT, "appArmorProfile": {"type": "Unconfined"}})]},
        {"containers": [container(securityContext={**STRICT, "seLinuxOptions": {"type": "spc_t"}})]},
    ],
    ids=["path", "processes", "memory", "privileged", "root", "nfs", "calls", "all-calls", "profile", "type"],
)
def test_controllers_make_only_restricted_pods_there(plane: ControlPlane, more: dict[str, Any]) -> None:
    """A Job may be older than the namespace's permission, and its controller is trusted with templates."""
    with plane.client() as admin:
        admin.create(workload("Pod", pod_spec(), namespace=FAST), dry_run=True)
        with pytest.raises(ApiError, match="host-network-pods: but for the network, pods of this namespace satisfy"):
            admin.create(workload("Pod", {**pod_spec(), **more}, namespace=FAST), dry_run=True)
