"""`avactl topo watch` on a real API server: with the account, the rights and the admission policy that are compiled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.hardware.smi_logs import health
from tests.hardware.topo_matrices import library_machine, render, rows
from tests.kinds.compiling import DIGEST, apply, body, compiled
from tests.scheduler import offline
from tests.scheduler.world import SYSTEM, World
from tools.controlplane import ApiError, KubeClient
from tools.waiting import patience

SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{topology: true}}
---
kind: NodePool
metadata: {{name: dgx}}
spec: {{cluster: main, machineType: dgx1-v100, count: 2, taints: [{{key: gpus, effect: NoSchedule}}]}}
"""
CONDITION, GPUS = "avactl.dev/TopologyMatches", "avactl.dev/GPUsHealthy"
WATCH = ["topo", "watch"]


def pool_file(folder: Path) -> Path:
    file = folder / "pool.json"
    file.write_text(body(compiled(SPECS), "ConfigMap", "avactl-pool-dgx", SYSTEM)["data"]["pool.json"])
    return file


def matrix(*changes: tuple[int, int, str]) -> str:
    table = rows(library_machine("dgx1-v100"))
    for i, j, word in changes:
        table[i + 1][j + 1] = table[j + 1][i + 1] = word
    return render(table)


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (matrix(), 0, "True: the machine is a dgx1-v100"),
        (matrix((0, 1, "SYS")), 1, "False: not a dgx1-v100: GPU0 to GPU1: no NVLink (SYS), the type has 1 NVLink"),
        ("No devices were found\n", 1, "Unknown: `nvidia-smi topo -m`: no matrix in: No devices were found\n"),
        (matrix()[:300], 1, "Unknown: `nvidia-smi topo -m`: column"),
    ],
)
def test_what_a_machine_says(tmp_path: Path, output: str, code: int, said: str) -> None:
    done = watch_once(tmp_path, output, health())
    assert (done.returncode, done.stderr) == (code, "")
    first, second = done.stdout.splitlines()
    assert f"{first}\n".startswith(f"TopologyMatches {said}")
    assert second == "GPUsHealthy True: the driver reports no fault of its 8 GPUs"


def watch_once(folder: Path, topology: str, gpus: str, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "matrix").write_text(topology)
    (folder / "health").write_text(gpus)
    pool = ["--pool", str(pool_file(folder)), "--command", f"cat {folder}/matrix"]
    return forked.run([*WATCH, "--once", "--node", "n", *pool, "--health-command", f"cat {folder}/health", *more])


def test_what_the_driver_says(tmp_path: Path) -> None:
    done = watch_once(tmp_path, matrix(), health({3: "<gpu_recovery_action>Reset</gpu_recovery_action>"}))
    assert done.returncode == 1
    assert done.stdout.splitlines()[1] == "GPUsHealthy False: GPU 3 NoExecute: needs a reset"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("nowhere-to-be-found topo -m", "`nowhere-to-be-found topo -m`: no such file or directory"),
        ("sh -c 'echo NVML: driver/library version mismatch >&2; exit 9'", "ended with 9: NVML: driver/library"),
    ],
)
def test_a_command_that_fails_is_not_a_difference(tmp_path: Path, command: str, said: str) -> None:
    for option, number in (("--command", 0), ("--health-command", 1)):
        done = watch_once(tmp_path, matrix(), health(), option, command)
        line = done.stdout.splitlines()[number]
        assert " Unknown: " in line
        assert said in line


def test_on_links_of_a_machine_that_differs_nobody_counts() -> None:
    odd = offline.node("odd")
    odd["status"]["conditions"] = [{"type": CONDITION, "status": "False"}]
    made = offline.cache([odd], [])
    for policy, fits in (("preferred", True), ("required", False)):
        pod = made.put_pod(offline.pod(policy, 2, link="pcieSwitch", link_policy=policy))
        assert pod is not None
        request = made.requests.request(pod.shape)
        assert (made.tables.scorer.choose(request) is not None) == fits
        # The condition comes and goes while the fleet is kept up to date.
        made.put_node(offline.node("odd"))
        assert made.tables.scorer.choose(request) is not None
        made.put_node(odd)


@pytest.fixture
def machine(world: World) -> Iterator[World]:
    """A machine `a` of the pool, and another one; the compiled objects are there."""
    result = compiled(SPECS)
    mine = [each for each in result.manifests if "avactl-topology" in each.name or each.name == "avactl-pool-dgx"]
    apply(world.kube, mine)
    for name in ("a", "b"):
        world.node(name, pool="dgx")
    yield world
    for manifest in mine:
        world.kube.delete(manifest.body["apiVersion"], manifest.kind, manifest.name, manifest.namespace or None)
    world.kube.request("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods", body={"gracePeriodSeconds": 0})


def daemon_pod(world: World, node: str) -> dict[str, Any]:
    """The daemon's pod on a machine, bound as kube-scheduler would."""

    def mine() -> list[dict[str, Any]]:
        found = [pod for pod in world.kube.list("v1", "Pod", SYSTEM) if "avactl-topology" in pod["metadata"]["name"]]
        return [pod for pod in found if f"'values': ['{node}']" in str(pod["spec"].get("affinity"))]

    world.wait(mine)
    pod = mine()[0]
    name = pod["metadata"]["name"]
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    world.kube.request("POST", f"/api/v1/namespaces/{SYSTEM}/pods/{name}/binding", body=binding)
    return pod


def token_of(world: World, pod: dict[str, Any]) -> str:
    """A token as the kubelet asks for it: bound to the pod, and so to its machine."""
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/avactl-topology/token"
    reference = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    spec = {"expirationSeconds": 3600, "boundObjectRef": reference}
    return str(world.kube.request("POST", path, body={**request, "spec": spec}).body["status"]["token"])


def condition(world: World, node: str, kind: str = CONDITION) -> dict[str, Any]:
    conditions = world.kube.get("v1", "Node", node)["status"].get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


def patch(kube: KubeClient, node: str, change: dict[str, Any]) -> int:
    """The API server's answer to a patch of a node's status."""
    path, kind = f"/api/v1/nodes/{node}/status", "application/strategic-merge-patch+json"
    try:
        kube.request("PATCH", path, body=change, content_type=kind)
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_the_condition_follows_the_machine(machine: World, tmp_path: Path) -> None:
    pod = daemon_pod(machine, "a")
    token = token_of(machine, pod)
    kubeconfig, output = tmp_path / "kubeconfig", tmp_path / "matrix"
    machine.plane.write_kubeconfig(kubeconfig, token)
    output.write_text(matrix())
    more = ["--node", "a", "--pool", str(pool_file(tmp_path)), "--command", f"cat {output}", "--interval", "1"]
    with (tmp_path / "log").open("wb") as log:
        process = forked.start([*WATCH, *more, "--kubeconfig", str(kubeconfig)], log=log)
    machine.running.append(process)
    machine.wait(lambda: condition(machine, "a").get("status") == "True")
    output.write_text(matrix((0, 1, "SYS")))
    machine.wait(lambda: condition(machine, "a")["status"] == "False")
    now = condition(machine, "a")
    assert now["reason"] == "TopologyDiffers"
    assert "GPU0 to GPU1: no NVLink (SYS), the type has 1 NVLink" in now["message"]

    def mine() -> list[str]:
        told = [event for event in machine.kube.list("events.k8s.io/v1", "Event", "default") if event.get("note")]
        mine = [event for event in told if event["reason"] == "TopologyDiffers" and event["regarding"]["name"] == "a"]
        return [event["type"] for event in mine]

    # The event comes after the condition.
    machine.wait(mine)
    assert mine() == ["Warning"]
    # The scheduler counts on none of its links.
    machine.start()
    machine.ready()
    links = {"avactl.dev/link": "nvlink", "avactl.dev/link-policy": "required"}
    machine.pod("linked", 2, notes=links)
    assert set(machine.bound("linked").values()) == {"b"}
    process.terminate()
    assert process.wait(patience()) == 0
    # Nothing but its own condition of its own node.
    with machine.plane.client(token) as kube:
        mine_only = {"status": {"conditions": [{"type": CONDITION, "status": "True"}]}}
        assert patch(kube, "a", mine_only) == 200
        assert patch(kube, "a", {"status": {"conditions": [{"type": GPUS, "status": "True"}]}}) == 200
        assert patch(kube, "b", mine_only) == 403
        assert patch(kube, "a", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}) == 403
        assert patch(kube, "a", {"status": {"capacity": {"nvidia.com/gpu": "99"}}}) == 403
        assert patch(kube, "a", {"metadata": {"labels": {"avactl.dev/pool": "other"}}}) == 403
        with pytest.raises(ApiError):
            kube.get("v1", "Node", "a")
    unbound = machine.plane.service_account_token(SYSTEM, "avactl-topology")
    with machine.plane.client(unbound) as kube:
        assert patch(kube, "a", mine_only) == 403
    # Others are not held to it.
    assert patch(machine.kube, "b", {"metadata": {"labels": {"note": "x"}}}) == 200


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_a_fault_ends_only_after_a_probation(machine: World, tmp_path: Path) -> None:
    """Neither a daemon that is killed nor a check that fails ends it, and nothing is told twice."""
    token = token_of(machine, daemon_pod(machine, "a"))
    kubeconfig, topology, gpus = tmp_path / "kubeconfig", tmp_path / "matrix", tmp_path / "health"
    machine.plane.write_kubeconfig(kubeconfig, token)
    topology.write_text(matrix())
    gpus.write_text(health())
    more = ["--node", "a", "--pool", str(pool_file(tmp_path)), "--command", f"cat {topology}", "--interval", "1"]
    more += ["--health-command", f"cat {gpus}", "--health-interval", "1", "--kubeconfig", str(kubeconfig)]

    def start(probation: str) -> forked.Process:
        with (tmp_path / "log").open("ab") as log:
            process = forked.start([*WATCH, *more, "--probation", probation], log=log)
        machine.running.append(process)
        return process

    def now() -> tuple[str, str]:
        found = condition(machine, "a", GPUS)
        return found.get("status", ""), found.get("message", "")

    def told() -> list[str]:
        events = machine.kube.list("events.k8s.io/v1", "Event", "default")
        mine = [each for each in events if each["regarding"]["name"] == "a" and each["reason"].startswith("GPUs")]
        return sorted(each["reason"] for each in mine)

    process = start("3600")
    machine.wait(lambda: now()[0] == "True")
    gpus.write_text(health({3: "<gpu_recovery_action>Reset</gpu_recovery_action>"}))
    machine.wait(lambda: now() == ("False", "GPU 3 NoExecute: needs a reset"))
    machine.wait(lambda: told() == ["GPUsFaulty"])
    # The scheduler gives the GPU to nobody: the machine of 8 has 7.
    machine.start()
    machine.ready()
    machine.pod("all", 8, nodeSelector={"kubernetes.io/hostname": "a"})
    machine.pod("seven", 7, nodeSelector={"kubernetes.io/hostname": "a"})
    machine.bound("seven")
    used = machine.kube.get("v1", "Pod", "seven", machine.namespace)["metadata"]["annotations"]["avactl.dev/devices"]
    assert "3" not in used.split(",")
    # Another daemon's first check is no recovery.
    machine.kill(process)
    gpus.write_text(health())
    process = start("3600")
    machine.wait(lambda: "on probation" in now()[1] or "repaired" in now()[1])
    assert now() == ("False", "GPU 3 NoSchedule: repaired, used again after 3600 s without a fault")
    assert condition(machine, "a", GPUS)["reason"] == "GPUsOnProbation"
    machine.kill(process)
    topology.write_text(matrix((0, 1, "SYS")))
    process = start("0")
    machine.wait(lambda: "not used again: not a dgx1-v100" in now()[1])
    topology.write_text(matrix())
    machine.wait(lambda: now()[0] == "True")
    machine.wait(lambda: told() == ["GPUsFaulty", "GPUsRecovered"])
    process.terminate()
    assert process.wait(patience()) == 0
