"""Volumes on a real API server: how many a machine takes, for how many pods, and where there is room for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
DRIVER = "disk.example.com"
STORAGE = "storage.k8s.io/v1"


@pytest.fixture
def storage(world: World) -> Iterator[World]:
    for name in ("n0", "n1"):
        world.node(name, gpus=0)
    world.ready()
    world.start()
    yield world
    for path in ("csinodes", "csidrivers", "storageclasses", "volumeattachments"):
        world.kube.request("DELETE", f"/apis/storage.k8s.io/v1/{path}")
    world.kube.request("DELETE", "/api/v1/persistentvolumes")


def storage_class(world: World, name: str, provisioner: str = DRIVER) -> None:
    body = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    world.kube.create({"apiVersion": STORAGE, "kind": "StorageClass", "metadata": {"name": name}, **body})


def csi_node(world: World, name: str, count: int) -> None:
    driver = {"name": DRIVER, "nodeID": name, "topologyKeys": None, "allocatable": {"count": count}}
    body = {"metadata": {"name": name}, "spec": {"drivers": [driver]}}
    world.kube.create({"apiVersion": STORAGE, "kind": "CSINode", **body})


def volume(world: World, name: str, node: str = "", **spec: Any) -> str:
    body: dict[str, Any] = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **spec}
    if node:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        body["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    full = f"{name}-{world.namespace}"
    world.kube.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": full}, "spec": body})
    return full


def claim(world: World, name: str, size: str = "1Gi", mode: str = "ReadWriteOnce", **spec: Any) -> None:
    body = {"accessModes": [mode], "resources": {"requests": {"storage": size}}, **spec}
    metadata = {"name": name, "namespace": world.namespace}
    world.kube.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": body})


def using(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]


def test_a_machine_takes_so_many_volumes_of_a_driver(storage: World) -> None:
    csi_node(storage, "n0", 2)
    csi_node(storage, "n1", 0)
    for number in range(3):
        csi = {"driver": DRIVER, "volumeHandle": f"disk-{number}-{storage.namespace}"}
        named = volume(storage, f"disk-{number}", csi=csi)
        claim(storage, f"data-{number}", storageClassName="", volumeName=named)
    storage.wait(
        lambda: all(
            item["status"]["phase"] == "Bound"
            for item in storage.kube.list("v1", "PersistentVolumeClaim", storage.namespace)
        )
    )
    storage.pod("two", volumes=using("data-0", "data-1"))
    assert storage.bound("two")["two"] == "n0"
    storage.pod("third", volumes=using("data-2"))
    assert "2 out of reach of its volumes, or full of such" in storage.waiting("third")
    # What is there already is no more.
    storage.pod("again", volumes=using("data-1"))
    assert storage.bound("again")["again"] == "n0"
    # Neither is there room where a volume is still attached.
    source = {"persistentVolumeName": f"disk-0-{storage.namespace}"}
    attachment = {"attacher": DRIVER, "nodeName": "n0", "source": source}
    storage.kube.create(
        {"apiVersion": STORAGE, "kind": "VolumeAttachment", "metadata": {"name": "kept"}, "spec": attachment}
    )
    storage.kube.delete("v1", "Pod", "two", storage.namespace)
    storage.pod("later", cpu="2")
    storage.bound("later")
    assert not storage.nodes_of()["third"]
    storage.kube.delete(STORAGE, "VolumeAttachment", "kept")
    assert storage.bound("third")["third"] == "n0"


def test_a_claim_for_one_pod_has_one(storage: World) -> None:
    named = volume(storage, "one", accessModes=["ReadWriteOncePod"], csi={"driver": DRIVER, "volumeHandle": "one"})
    claim(storage, "one", mode="ReadWriteOncePod", storageClassName="", volumeName=named)
    storage.pod("first", volumes=using("one"))
    storage.bound("first")
    storage.pod("second", volumes=using("one"))
    assert storage.waiting("second") == "the PersistentVolumeClaim one is ReadWriteOncePod, and another pod uses it"
    storage.kube.delete("v1", "Pod", "first", storage.namespace)
    storage.bound("second")


def test_new_volumes_are_made_where_there_is_room(storage: World) -> None:
    storage_class(storage, "measured")
    body = {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True, "attachRequired": False}}
    storage.kube.create({"apiVersion": STORAGE, "kind": "CSIDriver", **body})
    for node, size in (("n0", "10Gi"), ("n1", "100Gi")):
        capacity = {
            "apiVersion": STORAGE, "kind": "CSIStorageCapacity",
            "metadata": {"name": node, "namespace": storage.namespace}, "storageClassName": "measured",
            "capacity": size, "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}},
        }  # fmt: skip
        storage.kube.create(capacity)
    claim(storage, "large", "50Gi", storageClassName="measured")
    claim(storage, "huge", "500Gi", storageClassName="measured")
    storage.pod("large", volumes=using("large"))
    storage.pod("huge", volumes=using("huge"))

    def selected() -> str:
        item = storage.kube.get("v1", "PersistentVolumeClaim", "large", storage.namespace)
        return str((item["metadata"].get("annotations") or {}).get("volume.kubernetes.io/selected-node"))

    storage.wait(lambda: selected() == "n1")
    assert "2 out of reach of its volumes" in storage.waiting("huge")


def test_volumes_that_are_there_are_bound_by_the_scheduler(storage: World) -> None:
    storage_class(storage, "local", "kubernetes.io/no-provisioner")
    small = volume(storage, "small", "n1", storageClassName="local", local={"path": "/small"})
    large = volume(
        storage, "large", "n1", storageClassName="local", local={"path": "/large"}, capacity={"storage": "9Gi"}
    )
    volume(storage, "alone", "n0", storageClassName="local", local={"path": "/alone"})
    for name in ("one", "two", "three", "four"):
        claim(storage, name, storageClassName="local")
    storage.pod("both", volumes=using("one", "two"))
    assert storage.bound("both")["both"] == "n1"
    volumes = {
        item["metadata"]["name"]: item["spec"].get("volumeName")
        for item in storage.kube.list("v1", "PersistentVolumeClaim", storage.namespace)
    }
    assert {volumes["one"], volumes["two"]} == {small, large}
    storage.pod("third", volumes=using("three"))
    assert storage.bound("third")["third"] == "n0"
    storage.pod("fourth", volumes=using("four"))
    assert "2 out of reach of its volumes" in storage.waiting("fourth")
