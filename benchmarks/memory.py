"""Memory of the scheduler in a large cluster, and the time of a restart.

    python -m benchmarks.memory [--nodes 5000] [--pods 50000]

Nodes have 8 GPUs and the labels, annotations, conditions and images of real ones; pods the environment, volumes, mounts
and managed fields. All exist before the scheduler starts. The clock runs from the start of its process to 200 from
/readyz, and to the binding of a pending pod. Then 1,000 more pods are bound. Memory is the peak of the process over all
of that (VmHWM).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import MERGE, Client
from benchmarks.clusters import NAMESPACE, POLICY, pod, run_concurrently
from benchmarks.measure import Bar, bar, cpu_seconds, peak_memory
from tools.controlplane import ControlPlane
from tools.waiting import wait_until

NAMESPACES = 50
BURST = 1000
PATIENCE = 120.0
RACK = 32
WRITERS = 48


class Start(NamedTuple):
    """One start of the scheduler, in seconds and bytes."""

    ready: float
    deciding: float
    peak_ready: int
    peak: int
    used: float
    """CPU seconds until its first decision."""


# -- realistic objects -----------------------------------------------------------------------------------------------


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def node(number: int) -> dict[str, Any]:
    """Return a node as registered by a cloud's or kubeadm's kubelet, with the additions of the usual daemons."""
    name = f"gpu-{number:05}.example.internal"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": "gpu.8xlarge",
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": f"region-1{'abc'[number % 3]}",
        "avactl.dev/gpu": "H100",
        "topology.kubernetes.io/rack": f"rack-{number // RACK}",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/cuda.driver.major": "550",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/mig.capable": "true",
        **{f"feature.node.kubernetes.io/cpu-cpuid.{each}": "true" for each in ("AVX2", "AVX512F", "AMXBF16", "VMX")},
        "feature.node.kubernetes.io/kernel-version.full": "5.15.0-112-generic",
        "feature.node.kubernetes.io/rdma.capable": "true",
    }
    notes = {
        "csi.volume.kubernetes.io/nodeid": orjson.dumps({"csi.example.com": _hash("csi", number)}).decode(),
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        "projectcalico.org/IPv4Address": f"10.{number // 250}.{number % 250}.1/16",
        "nfd.node.kubernetes.io/feature-labels": ",".join(sorted(labels)),
    }
    amounts = {
        "cpu": "192",
        "memory": "2113410068Ki",
        "pods": "110",
        "ephemeral-storage": "3519352832Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "nvidia.com/gpu": "8",
        "rdma/hca": "8",
    }
    now = "2026-01-01T00:00:00Z"
    kinds = ("NetworkUnavailable", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = [
        {
            "type": kind,
            "status": str(kind == "Ready"),
            "reason": f"Kubelet{kind}",
            "message": f"kubelet: {kind}",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind in kinds
    ]
    images = [
        {
            "names": [
                f"registry.example.com/team-{index % 7}/image-{index}@sha256:{_hash('image', index)}",
                f"registry.example.com/team-{index % 7}/image-{index}:v1.{index}",
            ],
            "sizeBytes": 1_000_000 * (index + 1) + number,
        }
        for index in range(50)
    ]
    status = {
        "capacity": amounts,
        "allocatable": {**amounts, "cpu": "190", "memory": "2078210068Ki"},
        "conditions": conditions,
        "images": images,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "addresses": [{"type": "InternalIP", "address": f"10.{number // 250}.{number % 250}.1"}],
    }
    metadata = {"name": name, "labels": labels, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


def running_pod(number: int, nodes: int) -> dict[str, Any]:
    """Return a running pod: 4 of 10 train on one GPU each, the others are services and daemons."""
    rng = Random(number)
    on, turn = number % nodes, number // nodes
    trains = turn % 10 < 4
    app = f"app-{rng.randrange(400)}"
    requests = {"cpu": rng.choice(("250m", "1", "2", "8")), "memory": rng.choice(("256Mi", "2Gi", "16Gi"))}
    limits = {"memory": requests["memory"]}
    if trains:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = "1"
    env: list[dict[str, Any]] = [
        {"name": f"SETTING_{index}", "value": _hash(app, index)[: rng.randrange(8, 40)]} for index in range(24)
    ]
    env.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    names = [f"volume-{index}" for index in range(6)]
    main = {
        "name": "main",
        "image": f"registry.example.com/team/{app}@sha256:{_hash(app)}",
        "env": env,
        "command": ["/bin/app", "--config", "/etc/app/config.yaml", "--run", _hash("run", app)[:24]],
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": [{"name": name, "mountPath": f"/mnt/{name}"} for name in names],
        "ports": [{"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 9090}],
        "livenessProbe": {"httpGet": {"path": "/livez", "port": 8080}, "periodSeconds": 10},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 10},
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }
    helper = {
        "name": "metrics",
        "image": f"registry.example.com/metrics@sha256:{_hash('metrics')}",
        "env": env[:6],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    notes = {"checksum/config": _hash("config", app), "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    if trains:
        notes["avactl.dev/devices"] = str(turn % 10)
    metadata = {
        "name": f"{app}-{_hash(number)[:10]}-{number}",
        "namespace": f"team-{number % NAMESPACES}",
        "labels": {
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/instance": f"{app}-prod",
            "pod-template-hash": _hash("template", app)[:10],
            "avactl.dev/team": f"team-{number % NAMESPACES}",
        },
        "annotations": notes,
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": f"{app}-{_hash('template', app)[:10]}",
                "uid": "11111111-2222-3333-4444-555555555555",
                "controller": True,
            }
        ],
    }
    volumes: list[dict[str, Any]] = [{"name": name, "configMap": {"name": f"{app}-{name}"}} for name in names[:4]]
    volumes += [{"name": name, "emptyDir": {}} for name in names[4:]]
    spec = {
        "nodeName": f"gpu-{on:05}.example.internal",
        "schedulerName": "avactl" if trains else "default-scheduler",
        "containers": [main, helper],
        "volumes": volumes,
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


# -- the cluster -----------------------------------------------------------------------------------------------------


async def fill(plane: ControlPlane, nodes: int, pods: int) -> int:
    """Create everything; return the mean size of a pod in bytes."""
    async with Client(from_kubeconfig(plane.kubeconfig), "benchmark") as client:

        async def post(path: str, item: dict[str, Any]) -> None:
            # On a busy machine the API server may be slow.
            await client.request("POST", path, item, timeout=PATIENCE)

        async def machine(number: int) -> None:
            item = node(number)
            await post("/api/v1/nodes", item)
            # New nodes have a taint until a controller removes it: there is none here.
            path = f"/api/v1/nodes/{item['metadata']['name']}"
            await client.send("PATCH", path, {"spec": {"taints": None}}, content_type=MERGE)

        for name in (NAMESPACE, *(f"team-{number}" for number in range(NAMESPACES))):
            await post("/api/v1/namespaces", {"metadata": {"name": name}})
            account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
            await post(f"/api/v1/namespaces/{name}/serviceaccounts", account)
        await run_concurrently((machine(number) for number in range(nodes)), WRITERS)
        made = (running_pod(number, nodes) for number in range(pods))
        await run_concurrently(
            (post(f"/api/v1/namespaces/{item['metadata']['namespace']}/pods", item) for item in made), WRITERS
        )
        page = await client.request("GET", "/api/v1/pods", query={"limit": "100"})
        return len(orjson.dumps(page["items"])) // max(1, len(page["items"]))


# -- the scheduler ---------------------------------------------------------------------------------------------------


def start(plane: ControlPlane, turn: int) -> Start:
    """Start the scheduler with one pending pod, let it bind more, and stop it."""
    address = f"127.0.0.1:{18_480 + turn}"
    with plane.client() as kube, tempfile.TemporaryDirectory() as folder:
        policy, log = Path(folder, "policy.json"), Path(folder, "log")
        policy.write_bytes(orjson.dumps(POLICY))
        kube.create(pod(turn * 10_000, "avactl", 1), validation="Ignore")
        command = [sys.executable, "-m", "avactl.cli.main", "scheduler", "--config", str(policy)]
        command += ["--kubeconfig", str(plane.kubeconfig), "--listen", address]
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(command, stderr=output)
        try:
            _wait(lambda: _is_ready(address), log)
            ready, peak_ready = time.monotonic() - began, peak_memory(process.pid)
            _wait(lambda: _bound(kube, [turn * 10_000]) == 1, log)
            deciding, used = time.monotonic() - began, cpu_seconds(process.pid)
            more = range(turn * 10_000 + 1, turn * 10_000 + 1 + BURST)
            for number in more:
                kube.create(pod(number, "avactl", 1), validation="Ignore")
            _wait(lambda: _bound(kube, more) == BURST, log)
            return Start(ready, deciding, peak_ready, peak_memory(process.pid), used)
        finally:
            process.terminate()
            process.wait()


def _wait(until: Callable[[], bool], log: Path) -> None:
    wait_until(until, timeout=PATIENCE, poll=0.02, details=lambda: log.read_text()[-2000:])


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _bound(kube: Any, numbers: Iterable[int]) -> int:
    items = kube.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods", query={"resourceVersion": "0"}).body["items"]
    found = {item["metadata"]["name"] for item in items if item["spec"].get("nodeName")}
    return sum(f"pod-{number}" in found for number in numbers)


def main() -> None:
    """Measure a start and a restart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000, help="machines with 8 GPUs")
    parser.add_argument("--pods", type=int, default=50_000, help="pods that run")
    options = parser.parse_args()
    with ControlPlane() as plane:
        began = time.monotonic()
        size = asyncio.run(fill(plane, options.nodes, options.pods))
        machine = len(orjson.dumps(node(0)))
        print(
            f"{options.nodes} nodes of {machine / 1000:.1f} kB and {options.pods} pods of {size / 1000:.1f} kB, ",
            end="",
        )
        print(f"made in {time.monotonic() - began:.0f} s", flush=True)
        starts = [start(plane, turn) for turn in range(2)]
    print(f"{'':10}{'ready, s':>10}{'deciding, s':>13}{'CPU, s':>8}{'peak, MB':>10}{'with more pods, MB':>20}")
    for name, each in zip(("start", "restart"), starts, strict=True):
        peaks = f"{each.peak_ready / 1e6:10.0f}{each.peak / 1e6:20.0f}"
        print(f"{name:10}{each.ready:10.2f}{each.deciding:13.2f}{each.used:8.2f}{peaks}")
    bar(Bar("memory", max(each.peak for each in starts) / 1e6, 400.0, " MB", 0))
    bar(Bar("restart", starts[-1].deciding, 10.0, " s", 1))


if __name__ == "__main__":
    main()
