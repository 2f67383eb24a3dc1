"""A GPU that breaks under a training job, with real processes: the node daemon finds it, the job saves and goes on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.hardware.smi_logs import health
from tests.hardware.topo_matrices import library_machine, render, rows
from tests.kinds.compiling import DIGEST, apply, body, compiled
from tests.scheduler.process_nodes import ProcessNodes
from tests.scheduler.test_topology import daemon_pod, token_of
from tests.scheduler.world import SYSTEM, World
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("fault-recovery")]

SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{scheduler: true, topology: true}}
  placement: {{levels: [example.com/rack, example.com/block]}}
---
kind: NodePool
metadata: {{name: dgx}}
spec:
  cluster: main
  machineType: dgx1-v100
  count: 3
  devicesChosenBy: scheduler
  onFault: evict
---
kind: Team
metadata: {{name: vision}}
spec: {{buckets: [{{name: results, url: "s3://results", secret: results-s3}}]}}
---
kind: TrainingJob
metadata: {{name: net, team: vision}}
spec:
  framework: custom
  strategy: allReduce
  image: registry.example.com/train
  command: [python, train.py]
  workers: {{replicas: 2, gpus: 8, gpu: V100}}
  checkpoint: {{path: "s3://results/net", every: 1s}}
  retries: 0
"""
NODES = ("a", "b", "c")
SCRIPT = """
import os, pathlib, sys, time
from avactl_worker.checkpoint import Checkpoints

folder = pathlib.Path(sys.argv[1])
state = {"sum": 0}
with Checkpoints(state=state) as checkpoints:
    step = checkpoints.restore()
    assert state["sum"] == step, "torn"
    print("restored", step, flush=True)
    while not (folder / "finish").exists():
        state["sum"] += 1
        step += 1
        time.sleep(0.02)
        print("step", step, flush=True)
        checkpoints.step(step)
"""


@pytest.fixture(scope="module")
def world(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ControlPlane(controller_manager=True) as plane, plane.client() as kube:
        made = World(plane, kube, tmp_path_factory.mktemp("faults"))
        yield made
        for process in made.running:
            process.kill()
            process.wait()


def steps(log: Path, word: str) -> list[int]:
    return [int(number) for number in re.findall(rf"^{word} (\d+)$", log.read_text() if log.exists() else "", re.M)]


def test_a_job_outlives_a_broken_gpu(world: World, tmp_path: Path) -> None:
    kube, result = world.kube, compiled(SPECS)
    world.policy.write_text(body(result, "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"])
    apply(kube, [each for each in result.manifests if each.body["metadata"].get("namespace") != "vision"])
    for name in NODES:
        world.node(name, pool="dgx")
        ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
        kube.patch(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": ready}},
            subresource="/status",
        )
    world.ready()
    pool, matrix = tmp_path / "pool.json", tmp_path / "matrix"
    pool.write_text(body(result, "ConfigMap", "avactl-pool-dgx", SYSTEM)["data"]["pool.json"])
    matrix.write_text(render(rows(library_machine("dgx1-v100"))))
    for name in NODES:
        (tmp_path / f"health-{name}").write_text(health())
        start_node_daemon(world, name, tmp_path)
    scheduler = world.start()
    script, folder = tmp_path / "train.py", tmp_path / "job"
    script.write_text(SCRIPT)
    folder.mkdir()
    with ProcessNodes(world.plane, NODES, script, folder) as nodes:
        apply(kube, [each for each in result.manifests if each.body["metadata"].get("namespace") == "vision"])

        def workers() -> dict[str, dict[str, Any]]:
            """The current worker of each index."""
            assert not nodes.error, nodes.error
            found = kube.list("v1", "Pod", "vision")
            return {
                pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod
                for pod in found
                if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
            }

        world.wait(lambda: len(workers()) == 2)
        first = workers()
        logs = {index: folder / f"{pod['metadata']['name']}.log" for index, pod in first.items()}
        world.wait(lambda: all(steps(log, "step") for log in logs.values()))
        broken = first["1"]["spec"]["nodeName"]
        (tmp_path / f"health-{broken}").write_text(health({3: "<gpu_recovery_action>Reset</gpu_recovery_action>"}))

        def marked() -> bool:
            pods = kube.list("v1", "Pod", "vision")
            return any("NodeFault" in str(pod["status"].get("conditions")) for pod in pods) or len(workers()) < 2

        world.wait(marked)
        # Another replica does the rest.
        world.kill(scheduler)
        world.free_lease()
        world.start()

        def moved() -> bool:
            now = workers()
            uids = {pod["metadata"]["uid"] for pod in first.values()}
            return len(now) == 2 and not any(pod["metadata"]["uid"] in uids for pod in now.values())

        world.wait(moved)
        second = workers()
        assert broken not in {pod["spec"]["nodeName"] for pod in second.values()}
        done = max(steps(logs["0"], "step"))
        again = folder / f"{second['0']['metadata']['name']}.log"
        world.wait(lambda: steps(again, "step"))
        (restored,) = steps(again, "restored")
        assert done - restored <= 1, "what was done when SIGTERM came is saved"
        (folder / "finish").touch()

        def conditions() -> dict[str, str]:
            job = kube.get("batch/v1", "Job", "net-worker", "vision")
            return {each["type"]: each["status"] for each in job["status"].get("conditions") or ()}

        world.wait(lambda: conditions().get("Complete") == "True")
        job = kube.get("batch/v1", "Job", "net-worker", "vision")
        counted = job["status"].get("failed", 0), job["status"].get("failedIndexes", "")
        assert counted == (0, ""), "no retry was used, and the job has none"
    events = kube.list("events.k8s.io/v1", "Event", "vision")
    stopped = Counter(each["regarding"]["uid"] for each in events if each["reason"] == "NodeFault")
    assert stopped.keys() <= {pod["metadata"]["uid"] for pod in first.values()}
    assert set(stopped.values()) <= {1}
    told = [each for each in kube.list("events.k8s.io/v1", "Event", "default") if each["reason"] == "GPUsFaulty"]
    assert [each["regarding"]["name"] for each in told] == [broken]
    assert not world.defects()


def start_node_daemon(world: World, node: str, folder: Path) -> None:
    """Run `avactl topo watch` with a token as its pod has it, on a machine that is described by files."""
    kubeconfig = folder / f"kubeconfig-{node}"
    world.plane.write_kubeconfig(kubeconfig, token_of(world, daemon_pod(world, node)))
    words = ["topo", "watch", "--node", node, "--pool", str(folder / "pool.json"), "--kubeconfig", str(kubeconfig)]
    words += ["--command", f"cat {folder}/matrix", "--interval", "600"]
    words += ["--health-command", f"cat {folder}/health-{node}", "--health-interval", "1"]
    with (folder / f"daemon-{node}.log").open("wb") as log:
        world.running.append(forked.start(words, log=log))
