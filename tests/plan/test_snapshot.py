"""Snapshots of a real API server: complete for plans, without secrets, with the rights that the docs name."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from avactl.change.plan.snapshot.capture import take_snapshot
from avactl.change.plan.snapshot.loader import SnapshotError, read
from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client
from tests.cli.running import Run
from tests.kinds.compiling import DIGEST
from tests.plan.arena import SYSTEM, Arena
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("plan")]

DOCS = Path(__file__).parents[2] / "docs" / "plan.md"
SECRET = "hunter2-planted"


def kubeconfig(plane: ControlPlane, user: str, folder: Path) -> Path:
    path = folder / user
    plane.write_kubeconfig(path, plane.token(user))
    return path


def taken(path: Path) -> bytes:
    async def run() -> bytes:
        async with Client(from_kubeconfig(path)) as client:
            return await take_snapshot(client, SYSTEM)

    return asyncio.run(run())


@pytest.fixture
def reader(plane: ControlPlane, arena: Arena, tmp_path: Path) -> Path:
    """A user with the rights that docs/plan.md lists, and no others."""
    found = re.findall(r"```yaml\n(apiVersion: rbac.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(found) == 2
    for role in [role for text in found for role in yaml.safe_load_all(text)]:
        arena.kube.apply(role)
        metadata = {**role["metadata"]}
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": metadata["name"]}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}
        binding = {"apiVersion": role["apiVersion"], "kind": f"{role['kind']}Binding", "metadata": metadata}
        arena.kube.apply({**binding, "roleRef": ref, "subjects": [subject]})
    return kubeconfig(plane, "reader", tmp_path)


def plant(arena: Arena) -> None:
    """The secret wherever a cluster may hold one."""
    notes = {"example.com/token": SECRET, "kubectl.kubernetes.io/last-applied-configuration": f'{{"x":"{SECRET}"}}'}
    kube = arena.kube
    metadata: dict[str, Any] = {"name": "s", "namespace": "default"}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"x": SECRET}})
    data = {"quota.json": "{}", "password": SECRET}
    labels = {"avactl.dev/config": "quota"}
    metadata = {"name": "odd", "namespace": SYSTEM, "labels": labels, "annotations": notes}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "10", "nvidia.com/gpu": "8"}
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n", "annotations": notes},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
    )
    container: dict[str, Any] = {
        "name": "main",
        "image": f"registry.example.com/{SECRET}{DIGEST}",
        "command": ["sh", "-c", SECRET],
        "args": [SECRET],
        "env": [{"name": "TOKEN", "value": SECRET}],
        "workingDir": f"/{SECRET}",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    first = {**container, "name": "first"}
    container["livenessProbe"] = {"exec": {"command": [SECRET]}}
    volumes = [
        {"name": "host", "hostPath": {"path": f"/{SECRET}"}},
        {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
    ]
    pod = {
        "containers": [container],
        "initContainers": [first],
        "volumes": volumes,
        "schedulerName": "avactl",
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": [SECRET]}],
    }
    metadata = {"name": "p", "namespace": "default", "annotations": notes, "labels": {"app": "x"}}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "home", "namespace": "default", "annotations": notes}
    kube.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    csi = {"driver": "x.example.com", "volumeHandle": "v", "volumeAttributes": {"password": SECRET}}
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "v", "annotations": notes},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": csi},
        }
    )
    config = {"opaque": {"driver": "gpu.example.com", "parameters": {"password": SECRET}}}
    devices = {"requests": [{"name": "g", "exactly": {"deviceClassName": "x"}}], "config": [config]}
    metadata = {"name": "c", "namespace": "default", "annotations": notes}
    kube.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": {"devices": devices},
        }
    )


def _timeless(text: bytes) -> bytes:
    return re.sub(rb'"taken":"[^"]*"', b"", text)


def unplant(arena: Arena) -> None:
    arena.kube.delete("v1", "ConfigMap", "odd", SYSTEM)
    arena.kube.delete("v1", "PersistentVolume", "v")
    arena.kube.request("DELETE", "/api/v1/namespaces/default/pods/p", body={"gracePeriodSeconds": 0})


def test_no_secret_is_taken_with_the_rights_of_the_docs(arena: Arena, reader: Path, avactl: Run) -> None:
    plant(arena)
    try:
        arena.until(lambda: arena.kube.find("v1", "Node", "n") is not None)
        first = taken(reader)
        assert SECRET.encode() not in first
        data: dict[str, Any] = orjson.loads(first)
        assert {"n"} == {node["metadata"]["name"] for node in data["objects"]["nodes"]}
        pod = next(pod for pod in data["objects"]["pods"] if pod["metadata"]["name"] == "p")
        assert "annotations" not in pod["metadata"]
        assert data["objects"]["resourceclaims"][0]["spec"]["devices"].keys() == {"requests"}
        # What the controllers still write settles: then the same cluster gives the same bytes, but for the moment.
        arena.until(lambda: _timeless(taken(reader)) == _timeless(taken(reader)))
        state = read(first, "state.json")
        assert state.cluster == "main"
        restored = next(pod for pod in state.objects["pods"] if pod["metadata"]["name"] == "p")
        assert restored["spec"]["volumes"] == [{"name": "home", "persistentVolumeClaim": {"claimName": "home"}}]
        done = avactl("snapshot", "--kubeconfig", str(reader), "-o", str(reader.parent / "state.json"))
        assert (done.returncode, done.stdout) == (0, "")
        assert SECRET not in (reader.parent / "state.json").read_text()
    finally:
        unplant(arena)


def test_no_rights_and_no_cluster_are_said_in_a_line(
    plane: ControlPlane, arena: Arena, reader: Path, avactl: Run, tmp_path: Path
) -> None:
    done = avactl("snapshot", "--kubeconfig", str(kubeconfig(plane, "nobody", tmp_path)))
    assert done.returncode == 3
    assert "this user is not permitted" in done.stderr
    assert "docs/plan.md has the ClusterRole" in done.stderr
    done = avactl("snapshot", "--kubeconfig", str(reader), "--namespace", "default")
    assert done.returncode == 3
    missing = avactl("snapshot", "--kubeconfig", "nowhere")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "nowhere: No such file" in missing.stderr
    gone = tmp_path / "gone"
    gone.write_text(re.sub(r"https://127.0.0.1:\d+", "https://127.0.0.1:9", reader.read_text()))
    done = avactl("snapshot", "--kubeconfig", str(gone))
    assert done.returncode == 3
    assert "no answer from the API server" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "the file is empty"),
        (b"apiVersion: v1", "not a snapshot: not JSON"),
        (b'{"kind": "List"}', "not an avactl snapshot"),
        (b"[]", "not an avactl snapshot"),
        (b'{"format":"avactl-snapshot","version":1}', "version 1; this avactl reads version 2"),
        (b'{"format":"avactl-snapshot","version":2,"cluster":"a"}', "damaged"),
        (b'{"format":"avactl-snapshot","version":2,"cluster":"a","obj', "truncated or damaged"),
    ],
)
def test_what_is_no_snapshot_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(SnapshotError, match=words):
        read(text, "state.json")
