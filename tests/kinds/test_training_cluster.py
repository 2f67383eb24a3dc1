"""Training jobs on a real control plane: admitted as `restricted` pods, ended by each other, with the least rights."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.contracts.pod_annotations import RUN_DIGEST
from avactl.kinds import TrainingJob
from avactl.kinds.training import followers, mpi
from tests.kinds.compiling import apply, body, compiled
from tools.controlplane import ApiError, ControlPlane, KubeClient, build_binaries
from tools.waiting import patience

IMAGE = "@sha256:" + "a" * 64
PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images:
    {{avactl: "avactl{IMAGE}", git: "git{IMAGE}", fetch: "rclone{IMAGE}", tensorboard: "t{IMAGE}", kubectl: "k{IMAGE}"}}
  storageClasses: {{checkpoint: nfs, workspace: nfs, classes: [{{name: nfs, provisioner: nfs.csi.k8s.io}}]}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: v100-pcie-8, count: 4}}
---
kind: NodePool
metadata: {{name: h100}}
spec: {{cluster: main, machineType: h100-sxm-8, count: 4, allocation: dra, rdmaResource: rdma/hca}}
---
kind: Team
metadata: {{name: vision}}
spec:
  buckets: [{{name: results, url: "s3://results", secret: results-s3}}]
---
kind: Dataset
metadata: {{name: digits, team: vision}}
spec: {{size: 1Gi, secret: digits-s3, versions: [{{name: v1, url: "s3://digits/v1"}}]}}
---
kind: Workspace
metadata: {{name: notes, team: vision}}
spec: {{user: li.wei, image: registry.example.com/jupyter, sharedHome: true}}
"""


def training(name: str, spec: str) -> str:
    return (
        f"---\nkind: TrainingJob\nmetadata: {{name: {name}, team: vision}}\n"
        f"spec: {{image: registry.example.com/train, command: [python, train.py], {spec}}}\n"
    )


JOBS = {
    "one": "datasets: [{name: digits}], checkpoint: {volume: 1Gi}, preemptible: false, "
    "workers: {gpus: 1, gpu: V100, sharedMemory: 1Gi}, code: {git: {url: 'https://example.com/a.git', ref: main}}",
    "mixed": "framework: mxnet, strategy: parameterServer, workers: {replicas: 2, gpus: 1, gpu: V100}, servers: {}, "
    "workerGroups: [{name: cpu, replicas: 2}], serverGroups: [{name: big, memory: 8Gi}], retries: 0",
    "pair": "framework: custom, strategy: parameterServer, workers: {}, servers: {}, "
    "workerGroups: [{name: cpu, replicas: 2}]",
    "handed": "code: {workspace: {name: notes, path: net, home: /notebook}}",
    "torch": "strategy: allReduce, workers: {replicas: 2, gpus: 8, gpu: H100, link: nvlink, rdma: true}, "
    "tensorboard: {}, checkpoint: {path: 's3://results/torch'}, priority: high",
    "tensor": "framework: tensorflow, strategy: allReduce, workers: {replicas: 2, gpus: 2, gpu: V100}, evaluator: {}",
    "chief": "framework: tensorflow, strategy: parameterServer, workers: {replicas: 3}, servers: {replicas: 2}",
    "kv": "framework: mxnet, strategy: parameterServer, workers: {replicas: 2}, servers: {}, retries: 0",
    "ranks": "strategy: mpi, workers: {replicas: 2, gpus: 1, gpu: V100}, timeout: 1h",
    "lines": "framework: custom, strategy: elastic, workers: {min: 2, max: 4}, checkpoint: {volume: 1Gi}",
    "waves": "strategy: elastic, workers: {min: 1, max: 3}, checkpoint: {path: 's3://results/waves'}, priority: low",
}


@pytest.fixture(scope="module")
def jobs() -> Compilation:
    return compiled(PLATFORM + "".join(training(name, spec) for name, spec in JOBS.items()))


def workloads(jobs: Compilation) -> dict[str, int]:
    """Return the number of pods of each Job."""
    return {m.name: m.body["spec"]["completions"] for m in jobs.manifests if m.kind == "Job"}


def wait_until_active(kube: KubeClient, name: str, count: int) -> None:
    """Wait until the controller has made all pods of a Job."""
    kube.wait_for("batch/v1", "Job", name, "vision", until=lambda job: job.get("status", {}).get("active") == count)


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None, jobs: Compilation) -> Iterator[ControlPlane]:
    """A plane of this module's own: priority classes are cluster-wide."""
    with ControlPlane(controller_manager=True) as started, started.client() as kube:
        applied = apply(kube, [m for m in jobs.manifests if not m.patch])
        # The namespace of the team enforces `restricted`: nothing here would test it if it did not.
        level = body(jobs, "Namespace", "vision")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        assert level == "restricted"
        assert len(applied) > 60
        for name, count in workloads(jobs).items():
            wait_until_active(kube, name, count)
        yield started


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[KubeClient]:
    with plane.client() as kube:
        yield kube


def pods_of(kube: KubeClient, name: str) -> list[dict[str, Any]]:
    return kube.list("v1", "Pod", "vision", label_selector=f"batch.kubernetes.io/job-name={name}")


def test_every_pod_of_every_job_is_admitted(admin: KubeClient, jobs: Compilation) -> None:
    expected = workloads(jobs)
    assert len(expected) == 25
    made = Counter(
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] for name in expected for pod in pods_of(admin, name)
    )
    assert made == expected
    refused = [event["message"] for event in admin.list("v1", "Event", "vision") if event["reason"] == "FailedCreate"]
    assert not refused


def test_applied_again_nothing_changes(admin: KubeClient, jobs: Compilation) -> None:
    kept = set()
    for manifest in jobs.manifests:
        # The API server itself writes a claim once more at its first re-apply.
        if manifest.item.kind == "TrainingJob" and manifest.kind != "PersistentVolumeClaim":
            where = (manifest.body["apiVersion"], manifest.kind, manifest.name, manifest.namespace)
            before = admin.get(*where)["metadata"]
            after = admin.apply(manifest.body, field_manager="avactl").body["metadata"]
            if manifest.kind == "Job":  # its controller writes the status at the same time
                assert after["generation"] == before["generation"], manifest
            else:
                assert after["resourceVersion"] == before["resourceVersion"], manifest
            kept.add(manifest.kind)
    assert kept >= {"ConfigMap", "Job", "PodDisruptionBudget", "Service"}


def test_pods_are_called_as_the_rendezvous_says(admin: KubeClient, jobs: Compilation) -> None:
    hostfile = body(jobs, "ConfigMap", "ranks-rendezvous", "vision")["data"]["hostfile"]
    named = sorted(line.split()[0] for line in hostfile.splitlines())
    specs = [pod["spec"] for pod in pods_of(admin, "ranks-worker")]
    assert sorted(f"{spec['hostname']}.{spec['subdomain']}.vision.svc" for spec in specs) == named
    (master,) = (pod["spec"] for pod in pods_of(admin, "waves-master"))
    worker = body(jobs, "Job", "waves-worker", "vision")["spec"]["template"]["spec"]["containers"][0]
    (address,) = (each["value"] for each in worker["env"] if each["name"] == "AVACTL_MASTER")
    assert address == f"{master['hostname']}.{master['subdomain']}.vision.svc:29600"


def test_a_changed_run_is_refused_in_place(admin: KubeClient) -> None:
    """Pods of two runs never work together: whoever applies must start the Job anew."""
    changed = compiled(PLATFORM + training("torch", JOBS["torch"].replace("replicas: 2", "replicas: 3")))
    with pytest.raises(ApiError, match="field is immutable"):
        admin.apply(body(changed, "Job", "torch-worker", "vision"), field_manager="avactl")
    same = compiled(PLATFORM + training("torch", JOBS["torch"] + ", suspended: true, timeout: 3h"))
    assert admin.apply(body(same, "Job", "torch-worker", "vision"), field_manager="avactl").body["spec"]["suspend"]


Script = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def script(plane: ControlPlane, tmp_path: Path) -> Iterator[Script]:
    """Start a script of a pod with the rights of its service account; its directory is `tmp_path / account`."""
    kubectl = build_binaries(["kubectl"])["kubectl"]
    started: list[subprocess.Popen[str]] = []

    def start(text: str, account: str, **env: str) -> subprocess.Popen[str]:
        config, directory = tmp_path / f"{account}.kubeconfig", tmp_path / account
        plane.write_kubeconfig(config, plane.service_account_token("vision", account))
        directory.mkdir(exist_ok=True)
        settings = {"KUBECONFIG": str(config), "PATH": f"{kubectl.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        subprocess.run(
            [kubectl, "config", "set-context", "--current", "--namespace=vision"],
            env=settings,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        text = text.replace(followers.DIRECTORY, str(directory))
        process = subprocess.Popen(
            ["sh", "-c", text],
            env={**settings, "DIRECTORY": str(directory), **env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=patience())


def follow(script: Script, jobs: Compilation, name: str, leader: str, **more: str) -> subprocess.Popen[str]:
    run = body(jobs, "Job", leader, "vision")["metadata"]["annotations"][RUN_DIGEST.name]
    env = {"LEADERS": leader, "RUN": run, "PERIOD": "1", "GRACE": "0", "COMMANDS": "", "KEY": "", **more}
    env = {"POD": "none", "ROLE": "none", "RETRIES": "3", "LINGER": "0", **env}
    return script(followers.FOLLOW_SCRIPT, f"{name}-follower", **env)


def end(kube: KubeClient, job: str, phase: str) -> None:
    for pod in pods_of(kube, job):
        name = {"name": pod["metadata"]["name"], "namespace": "vision"}
        status = {"apiVersion": "v1", "kind": "Pod", "metadata": name, "status": {"phase": phase}}
        kube.patch(status, subresource="/status")


def test_a_follower_ends_with_the_job_that_it_follows(admin: KubeClient, jobs: Compilation, script: Script) -> None:
    other = follow(script, jobs, "chief", "chief-chief", RUN="another")
    chief = follow(script, jobs, "chief", "chief-chief")
    workers = follow(script, jobs, "kv", "kv-worker")
    with pytest.raises(subprocess.TimeoutExpired):
        chief.wait(3)
    end(admin, "chief-chief", "Succeeded")
    assert chief.wait(patience()) == 0, chief.communicate()
    end(admin, "kv-worker", "Failed")
    assert workers.wait(patience()) == followers.FAILED
    # A Job that an earlier run left behind is none of ours.
    assert other.poll() is None


def test_leading_groups_fail_together(admin: KubeClient, jobs: Compilation, script: Script) -> None:
    servers = follow(script, jobs, "mixed", "mixed-worker", LEADERS="mixed-worker mixed-worker-cpu")
    run = body(jobs, "Job", "mixed-worker", "vision")["metadata"]["annotations"][RUN_DIGEST.name]
    names = {"OWN": "mixed-worker-cpu", "LEADERS": "mixed-worker"}
    partner = script(followers.PARTNER_SCRIPT, "mixed-follower", RUN=run, PERIOD="1", **names)
    end(admin, "mixed-worker", "Failed")
    assert servers.wait(patience()) == followers.FAILED
    admin.wait_for("batch/v1", "Job", "mixed-worker-cpu", "vision", until=stopped)
    assert partner.poll() is None


def test_a_follower_waits_for_all_leading_groups(admin: KubeClient, jobs: Compilation, script: Script) -> None:
    servers = follow(script, jobs, "pair", "pair-worker", LEADERS="pair-worker pair-worker-cpu")
    end(admin, "pair-worker", "Succeeded")
    admin.wait_for("batch/v1", "Job", "pair-worker", "vision", until=lambda job: done(job, "Complete"))
    with pytest.raises(subprocess.TimeoutExpired):
        servers.wait(3)
    end(admin, "pair-worker-cpu", "Succeeded")
    assert servers.wait(patience()) == 0


def done(job: dict[str, Any], condition: str) -> bool:
    return any(each["type"] == condition for each in job.get("status", {}).get("conditions", ()))


def stopped(job: dict[str, Any]) -> bool:
    return done(job, "Failed")


def test_a_follower_whose_sidecar_keeps_failing_stops_the_leader(
    admin: KubeClient, jobs: Compilation, script: Script
) -> None:
    pod = pods_of(admin, "tensor-evaluator")[0]["metadata"]["name"]
    ended = {"exitCode": 1, "startedAt": None, "finishedAt": None}
    state = {"name": "evaluator", "restartCount": 4, "lastState": {"terminated": ended}}
    sidecar = {
        **state,
        "ready": False,
        "image": "x",
        "imageID": "x",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }
    status = {"initContainerStatuses": [sidecar]}
    admin.patch(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": "vision"}, "status": status},
        subresource="/status",
    )
    watcher = follow(script, jobs, "tensor", "tensor-worker", POD=pod, ROLE="evaluator")
    assert watcher.wait(patience()) == followers.GAVE_UP, watcher.communicate()

    admin.wait_for("batch/v1", "Job", "tensor-worker", "vision", until=stopped)


def test_commands_of_mpirun_reach_their_workers(
    admin: KubeClient, jobs: Compilation, script: Script, tmp_path: Path
) -> None:
    commands = mpi.commands_name(jobs.program.get_kind(TrainingJob, "ranks", "vision"))
    stale = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": commands, "namespace": "vision"}}
    admin.apply({**stale, "data": {"w1": "stale"}}, field_manager="avactl-launcher")
    script(mpi.PUBLISH_SCRIPT, "ranks-launcher", COMMANDS=commands)
    admin.wait_for("v1", "ConfigMap", commands, "vision", until=lambda found: not found.get("data"))

    agent = tmp_path / "agent"
    agent.write_text(mpi.AGENT.replace(followers.DIRECTORY, str(tmp_path / "ranks-launcher")))
    command = """( . ./.profile; orted -mca ess "env" -mca x 'a "quoted" $WORD' )"""
    name = "ranks-worker-1.ranks-rendezvous.vision.svc"
    subprocess.run(["sh", str(agent), name, *command.split(" ")], check=True, env={**os.environ, "AVACTL_JOB": "ranks"})
    follow(script, jobs, "ranks", "ranks-launcher", COMMANDS=commands, KEY="w1")
    admin.wait_for("v1", "ConfigMap", commands, "vision", until=lambda found: "w1" in found.get("data", {}))
    arrived = tmp_path / "ranks-follower" / "command"
    for _ in range(100):
        if arrived.exists() and arrived.read_text().strip():
            break
        subprocess.run(["sleep", "0.1"], check=True)
    assert arrived.read_text().strip() == command


@pytest.mark.parametrize("account", ["ranks-launcher", "ranks-follower", "chief-follower", "avactl-run"])
def test_accounts_of_pods_can_do_nothing_else(plane: ControlPlane, account: str) -> None:
    with plane.client(plane.service_account_token("vision", account)) as kube:
        for api, kind, name in (
            ("v1", "Secret", "results-s3"),
            ("v1", "ConfigMap", "torch-rendezvous"),
            ("batch/v1", "Job", "torch-worker"),
        ):
            with pytest.raises(ApiError, match="forbidden"):
                kube.get(api, kind, name, "vision")
        with pytest.raises(ApiError, match="forbidden"):
            kube.list("v1", "Pod", "vision")
