"""Jobs of each strategy and framework on the real API server: placed as gangs, with addresses that DNS resolves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.kinds.training.spec import Framework, Strategy
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.compiling import apply, body
from tests.kinds.training import resolved
from tests.test_layout import ROOT
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import wait_until

EXAMPLE = ROOT / "examples" / "training"
TEAM, SYSTEM, SCHEDULER = "research", "avactl-system", "avactl-scheduler"
Body = dict[str, Any]
HOST = re.compile(r"(?<![\w.-])([a-z][a-z0-9-]*-\d+(?:\.[a-z0-9.-]+)?)(?![\w-])(?::(\d+))?")
"""Host name of a pod in a value, possibly with a port."""


def pair(strategy: str, framework: str) -> str:
    """A job of a strategy and a framework, with all roles that it can have."""
    workers, more = "{replicas: 2, cpu: 100m, memory: 64Mi}", ""
    match strategy:
        case "single":
            workers = "{cpu: 100m, memory: 64Mi}"
        case "elastic":
            workers = "{min: 2, max: 3, cpu: 100m, memory: 64Mi}"
        case "parameterServer":
            more = ", servers: {replicas: 2, cpu: 100m, memory: 64Mi}"
    if framework == "tensorflow" and strategy in ("allReduce", "parameterServer"):
        more += ", evaluator: {cpu: 100m, memory: 64Mi}"
    return (
        "---\napiVersion: avactl.dev/v1\nkind: TrainingJob\n"
        f"metadata: {{name: {strategy.lower()}-{framework}, team: {TEAM}}}\n"
        f"spec: {{strategy: {strategy}, framework: {framework}, image: registry.example.com/train:1, "
        f"command: [python, train.py], preemptible: false, workers: {workers}{more}}}\n"
    )


def pairs(platform: bytes) -> list[str]:
    """All pairs of strategies and frameworks that compile."""
    found = []
    for strategy in get_args(Strategy):
        for framework in get_args(Framework):
            text = pair(strategy, framework)
            result = compile_tree(MemoryTree({"platform.yaml": platform, "job.yaml": text.encode()}))
            if not result.diagnostics:
                found.append(text)
            else:
                assert [each.code for each in result.diagnostics] == ["unsupported-strategy"], (strategy, framework)
    return found


GROUPED = f"""---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{{{name: grouped-{{framework}}, team: {TEAM}}}}}
spec:
  strategy: allReduce
  framework: {{framework}}
  image: registry.example.com/train:1
  command: [python, train.py]
  preemptible: false
  workers: {{{{replicas: 2, cpu: 100m, memory: 64Mi}}}}
  workerGroups: [{{{{name: big, replicas: 2, cpu: 200m, memory: 128Mi}}}}]
"""


@pytest.fixture(scope="module")
def jobs() -> Compilation:
    """The example, and a job of each pair."""
    return compile_jobs()


def compile_jobs() -> Compilation:
    """Compile the example, and a job of each pair."""
    tree = {str(path.relative_to(EXAMPLE)): path.read_bytes() for path in EXAMPLE.rglob("*.yaml")}
    more = pairs(tree["platform.yaml"])
    assert len(more) == 20
    more += [GROUPED.format(framework=framework) for framework in ("pytorch", "tensorflow", "custom")]
    result = compile_tree(MemoryTree({**tree, "jobs/pairs.yaml": "".join(more).encode()}))
    assert result.diagnostics == ()
    return result


class Jobs(NamedTuple):
    """Completions by Job, as applied."""

    kube: KubeClient
    completions: dict[str, int]

    def pods(self) -> list[Body]:
        return self.kube.list("v1", "Pod", TEAM)

    def named(self) -> dict[str, Body]:
        """Pods by host name."""
        return {pod["spec"]["hostname"]: pod for pod in self.pods()}

    def make_room(self) -> None:
        """Add the machines on which all pods run, unless they are there."""
        there = {each["metadata"]["name"] for each in self.kube.list("v1", "Node")}
        for name in {f"a10-{number}" for number in range(1, 8)} - there:
            self.kube.create(node(name))
        for name in {"cpu-0", "cpu-1"} - there:
            self.kube.create(cpu_node(name))
        self.wait(lambda: all(pod.get("status", {}).get("phase") == "Running" for pod in self.pods()))

    def wait(self, until: Callable[[], object]) -> None:
        wait_until(
            until,
            details=lambda: [
                (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod.get("status")) for pod in self.pods()
            ],
        )


@pytest.fixture(scope="module")
def placed(control_plane_binaries: None, jobs: Compilation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """All jobs on a plane with avactl's scheduler: first with a machine that is too small for all, then with eight."""
    with place(jobs, tmp_path_factory.mktemp("scheduler")) as found:
        yield found


@contextmanager
def place(jobs: Compilation, folder: Path, *gates: str) -> Iterator[Jobs]:
    """Apply all jobs on a plane with these feature gates and avactl's scheduler, and a machine too small for all."""
    arguments = dict.fromkeys(("kube-apiserver", "kube-controller-manager"), gates)
    with ControlPlane(controller_manager=True, kwok=True, arguments=arguments) as plane, plane.client() as kube:
        apply(kube, [manifest for manifest in jobs.manifests if not manifest.patch])
        for claim in (manifest.body for manifest in jobs.manifests if manifest.kind == "PersistentVolumeClaim"):
            kube.create(volume(claim))
        policy = folder / "policy.json"
        policy.write_text(body(jobs, "ConfigMap", "avactl-policy", SYSTEM, "lab")["data"]["policy.json"])
        config = folder / "kubeconfig"
        plane.write_kubeconfig(config, plane.service_account_token(SYSTEM, SCHEDULER))
        completions = {m.name: m.body["spec"]["completions"] for m in jobs.manifests if m.kind == "Job"}
        found = Jobs(kube, completions)
        kube.create(node("a10-0", "6"))
        found.wait(lambda: len(found.pods()) == sum(completions.values()))
        words = ["scheduler", "--config", str(policy), "--kubeconfig", str(config), "--lease", SCHEDULER]
        with (folder / "log").open("wb") as log:
            scheduler = subprocess.Popen([sys.executable, "-m", "avactl.cli.main", *words], stderr=log)
        try:
            yield found
        finally:
            scheduler.kill()
            scheduler.wait()


def node(name: str, cpu: str = "64") -> Body:
    amounts = {"cpu": cpu, "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "1"}
    labels = {"kubernetes.io/hostname": name, "avactl.dev/pool": "a10", "avactl.dev/gpu": "A10"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def cpu_node(name: str) -> Body:
    amounts = {"cpu": "32", "memory": "116Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    labels = {"kubernetes.io/hostname": name, "avactl.dev/pool": "cpu"}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def volume(claim: Body) -> Body:
    """The volume that a provisioner would make for a claim."""
    name, spec = claim["metadata"]["name"], claim["spec"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": TEAM}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": spec["resources"]["requests"],
            "accessModes": spec["accessModes"],
            "claimRef": reference,
            "storageClassName": spec["storageClassName"],
            "nfs": {"server": "nfs.example.com", "path": f"/{name}"},
        },
    }


def told(pod: Body) -> bool:
    """True if the scheduler has decided on a pod: it is bound, or the reason why it waits is known."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "PodScheduled" and (each["status"] == "True" or each["message"]) for each in conditions)


def test_gangs_are_placed_whole_or_not_at_all(placed: Jobs) -> None:
    placed.wait(lambda: all(told(pod) for pod in placed.pods()))
    bound: dict[str, list[bool]] = {}
    least = {}
    for pod in placed.pods():
        assert pod["spec"]["schedulerName"] == "avactl"
        notes, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
        gang = labels.get("avactl.dev/gang", pod["spec"]["hostname"])
        bound.setdefault(gang, []).append("nodeName" in pod["spec"])
        least[gang] = int(notes.get("avactl.dev/gang-size", "1"))
    some = [gang for gang, pods in bound.items() if any(pods)]
    assert some
    assert len(some) < len(bound)
    assert [gang for gang in some if sum(bound[gang]) < least[gang]] == []

    placed.make_room()
    made: dict[str, int] = {}
    for pod in placed.pods():
        job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        made[job] = made.get(job, 0) + 1
    assert made == placed.completions


class Names(NamedTuple):
    """DNS of headless Services, from their EndpointSlices."""

    pods: dict[str, list[str]]
    """Names of pods by DNS name."""
    ports: dict[str, set[int]]
    """Ports by DNS name."""


def names_of(kube: KubeClient) -> Names:
    """Names as the cluster's DNS makes them, without its domain.

    Source: https://github.com/kubernetes/dns/blob/master/docs/specification.md, 2.4 for headless Services; a Service's
    own name alone resolves by the search path of pods of its namespace.
    """
    found = Names({}, {})
    headless = {each["metadata"]["name"] for each in kube.list("v1", "Service", TEAM)}
    for group in kube.list("discovery.k8s.io/v1", "EndpointSlice", TEAM):
        service = group["metadata"]["labels"]["kubernetes.io/service-name"]
        assert service in headless
        for endpoint in group["endpoints"] or ():
            own = [f"{endpoint['hostname']}.{service}.{TEAM}.svc"] if "hostname" in endpoint else []
            for name in (service, f"{service}.{TEAM}.svc", *own):
                found.pods.setdefault(name, []).append(endpoint["targetRef"]["name"])
                found.ports.setdefault(name, set()).update(port["port"] for port in group["ports"] or ())
    return found


@pytest.fixture
def dns(placed: Jobs) -> Names:
    """The names, once every pod of a job with a Service has one."""
    placed.make_room()
    expected = sum("subdomain" in pod["spec"] for pod in placed.pods())
    placed.wait(lambda: len([name for name in names_of(placed.kube).pods if name.count(".") == 3]) == expected)
    return names_of(placed.kube)


def variables(placed: Jobs, pod: Body) -> dict[str, str]:
    """What the user's program sees in a pod, from the pod and the ConfigMaps on the API server."""
    role = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    containers = (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
    (container,) = [each for each in containers if each["name"] == role]

    def text(name: str, key: str) -> str:
        return str(placed.kube.get("v1", "ConfigMap", name, TEAM)["data"][key])

    return resolved(container["env"], pod, text)


def test_every_address_in_the_environment_is_a_name_of_one_pod(placed: Jobs, dns: Names) -> None:
    pods = placed.named()
    seen: dict[str, set[str]] = {}
    for name, pod in pods.items():
        for value in variables(placed, pod).values():
            for host, port in HOST.findall(value):
                if host.split(".")[0] not in pods:
                    continue
                meant = pods[host.split(".")[0]]["metadata"]["name"]
                assert dns.pods[host] == [meant], (name, value)
                assert not port or int(port) in dns.ports[host], (name, value)
                seen.setdefault(name, set()).add(host)
    # All pods of distributed jobs are told addresses, except job masters, and mpirun's, which have a file.
    jobs = {name: job_of(pod) for name, pod in pods.items()}
    without = {jobs[name] for name in pods if name not in seen and not name.endswith("-master-0")}
    single = {"linear", "linear-resume"} | {job for job in jobs.values() if job.startswith("single-")}
    assert without == single | {job for job in jobs.values() if "mpi" in job}
    assert {job for job in jobs.values() if job.startswith("grouped-")} <= {jobs[name] for name in seen}


def job_of(pod: Body) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/instance"])


def grouped(placed: Jobs, dns: Names, name: str, own: dict[str, str]) -> None:
    """Positions go on from one group to the next."""
    pods, job = placed.named(), name.split("-worker")[0]
    order = [f"{job}-worker-0", f"{job}-worker-1", f"{job}-worker-big-0", f"{job}-worker-big-1"]
    wanted = [[pods[each]["metadata"]["name"]] for each in order]
    if "AVACTL_WORKER_HOSTS" in own:
        assert [dns.pods[host] for host in own["AVACTL_WORKER_HOSTS"].split(",")] == wanted
    elif "AVACTL_CLUSTER" in own:
        hosts = json.loads(own["AVACTL_CLUSTER"])["worker"]
        assert [dns.pods[host.rpartition(":")[0]] for host in hosts] == wanted
    else:
        assert dns.pods[own["MASTER_ADDR"]] == wanted[0]
        assert own["WORLD_SIZE"] == "4"
    # The shell adds it to the index of the pod.
    assert own.get("AVACTL_FIRST_INDEX", "0") == ("2" if "-big-" in name else "0")


def test_positions_are_those_of_the_pods(placed: Jobs, dns: Names) -> None:
    """Hosts of a list are in the order of the indexes, and each pod finds itself in its own place."""
    pods = placed.named()
    checked: dict[str, int] = {}

    def same(variable: str, host: str, wanted: str) -> None:
        assert dns.pods[host.rpartition(":")[0] or host] == [pods[wanted]["metadata"]["name"]], variable
        checked[variable] = checked.get(variable, 0) + 1

    for name, pod in pods.items():
        own = variables(placed, pod)
        job = job_of(pod)
        if job.startswith("grouped-"):
            grouped(placed, dns, name, own)
            continue
        assert name == f"{job}-{own['AVACTL_ROLE']}-{own['AVACTL_INDEX']}" if "AVACTL_ROLE" in own else True
        for key, role in (("AVACTL_WORKER_HOSTS", "worker"), ("AVACTL_SERVER_HOSTS", "server")):
            for index, host in enumerate(own.get(key, "").split(",") if key in own else ()):
                same(key, host, f"{job}-{role}-{index}")
        for key, first in (
            ("MASTER_ADDR", "worker-0"),
            ("PET_MASTER_ADDR", "worker-0"),
            ("AVACTL_MASTER", "master-0"),
            ("DMLC_PS_ROOT_URI", "scheduler-0"),
        ):
            if key in own:
                same(key, own[key], f"{job}-{first}")
        if "TF_CONFIG" in own:
            config = json.loads(own["TF_CONFIG"])
            task = config["task"]
            if task["type"] != "evaluator":
                same("TF_CONFIG", config["cluster"][task["type"]][task["index"]], name)
        if "DMLC_NODE_HOST" in own:
            assert own["DMLC_NODE_HOST"] == pod["status"]["podIP"]
    for job in ("linear-mpi", "mpi-pytorch", "mpi-caffe"):
        lines = placed.kube.get("v1", "ConfigMap", f"{job}-rendezvous", TEAM)["data"]["hostfile"].splitlines()
        for index, line in enumerate(lines):
            same("hostfile", line.split()[0], f"{job}-worker-{index}")
    assert len(checked) == 8, checked
