"""Volumes on a real API server: how many a machine takes, for how many pods, and where there is room for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def volume(world: World, name: str, labels: dict[str, str] | None = None, node: str = "", **spec: Any) -> str:
    body: dict[str, Any] = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **spec}
    if node:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        body["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    full = f"{name}-{world.namespace}"
    metadata = {"name": full, "labels": labels or {}}
    world.kube.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": body})
    return full


def claim(
    world: World,
    name: str,
    size: str = "1Gi",
    mode: str = "ReadWriteOnce",
    notes: dict[str, str] | None = None,
    finalizers: Sequence[str] = (),
    **spec: Any,
) -> None:
    body = {"accessModes": [mode], "resources": {"requests": {"storage": size}}, **spec}
    metadata = {"name": name, "namespace": world.namespace, "annotations": notes or {}, "finalizers": list(finalizers)}
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
    assert "2 without access to its volumes, or at the volume limit" in storage.waiting("third")
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
    assert storage.waiting("second") == "PersistentVolumeClaim one is ReadWriteOncePod and in use by another pod"
    storage.kube.delete("v1", "Pod", "first", storage.namespace)
    storage.bound("second")


def test_new_volumes_are_made_where_there_is_room(storage: World) -> None:
    storage_class(storage, "measured")
    body = {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True, "attachRequired": False}}
    storage.kube.create({"apiVersion": STORAGE, "kind": "CSIDriver", **body})
    for node, size in (("n0", "10Gi"), ("n1", "100Gi")):
        capacity = {
            "apiVersion": STORAGE,
            "kind": "CSIStorageCapacity",
            "metadata": {"name": node, "namespace": storage.namespace},
            "storageClassName": "measured",
            "capacity": size,
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}},
        }
        storage.kube.create(capacity)
    claim(storage, "large", "50Gi", storageClassName="measured")
    claim(storage, "huge", "500Gi", storageClassName="measured")
    storage.pod("large", volumes=using("large"))
    storage.pod("huge", volumes=using("huge"))

    def selected() -> str:
        item = storage.kube.get("v1", "PersistentVolumeClaim", "large", storage.namespace)
        return str((item["metadata"].get("annotations") or {}).get("volume.kubernetes.io/selected-node"))

    storage.wait(lambda: selected() == "n1")
    assert "2 without access to its volumes" in storage.waiting("huge")


def test_volumes_that_are_there_are_bound_by_the_scheduler(storage: World) -> None:
    storage_class(storage, "local", "kubernetes.io/no-provisioner")
    small = volume(storage, "small", node="n1", storageClassName="local", local={"path": "/small"})
    large = volume(
        storage, "large", node="n1", storageClassName="local", local={"path": "/large"}, capacity={"storage": "9Gi"}
    )
    volume(storage, "alone", node="n0", storageClassName="local", local={"path": "/alone"})
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
    assert "2 without access to its volumes" in storage.waiting("fourth")


def test_volumes_are_reached_from_their_zones_only(world: World) -> None:
    zone = "topology.kubernetes.io/zone"
    for name, labels in (("a", {zone: "a"}), ("b", {zone: "b"}), ("c", {zone: "c"})):
        world.node(name, gpus=0, pool="", labels=labels)
    world.ready()
    world.start()
    labels = {"failure-domain.beta.kubernetes.io/zone": "b__d"}
    csi = {"driver": DRIVER, "volumeHandle": f"zonal-{world.namespace}"}
    named = volume(world, "zonal", labels, csi=csi)
    claim(world, "data", storageClassName="", volumeName=named)
    for number in range(3):
        world.pod(f"p{number}", volumes=using("data"))
    assert set(world.bound().values()) == {"b"}
    world.pod("elsewhere", volumes=using("data"), nodeSelector={zone: "a"})
    assert "2 without access to its volumes" in world.waiting("elsewhere")
    world.kube.delete("v1", "PersistentVolume", named)


def test_what_a_claim_says_of_itself_counts(storage: World) -> None:
    storage_class(storage, "local", "kubernetes.io/no-provisioner")
    storage_class(storage, "made")
    # A volume of another attributes class is none for it.
    csi = {"driver": DRIVER, "volumeHandle": "gold"}
    volume(storage, "gold", storageClassName="local", csi=csi, volumeAttributesClassName="gold")
    claim(storage, "plain", storageClassName="local")
    storage.pod("plain", volumes=using("plain"))
    assert "2 without access to its volumes" in storage.waiting("plain")
    # The annotation that came before the field, and the node for which it is being made.
    notes = {"volume.beta.kubernetes.io/storage-class": "made", "volume.kubernetes.io/selected-node": "n1"}
    claim(storage, "selected", notes=notes)
    storage.pod("there", volumes=using("selected"), nodeSelector={"kubernetes.io/hostname": "n0"})
    assert "1 without access to its volumes" in storage.waiting("there")
    # The claim of an ephemeral volume is the pod's own.
    claim(storage, "stray-scratch", storageClassName="made")
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    storage.pod("stray", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}])
    assert "stray-scratch for its ephemeral volume exists but is not owned by the pod" in storage.waiting("stray")
    # One that is being deleted is no place for data.
    claim(storage, "going", finalizers=["example.com/keep"], storageClassName="made")
    storage.kube.delete("v1", "PersistentVolumeClaim", "going", storage.namespace)
    storage.pod("late", volumes=using("going"))
    assert "going is being deleted" in storage.waiting("late")
    path = f"/api/v1/namespaces/{storage.namespace}/persistentvolumeclaims/going"
    body = {"metadata": {"finalizers": None}}
    storage.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")


def test_disks_are_mounted_by_one_pod_of_a_machine(storage: World) -> None:
    def disk(read_only: bool, *monitors: str) -> list[dict[str, Any]]:
        return [{"name": "disk", "rbd": {"monitors": list(monitors), "image": "x", "readOnly": read_only}}]

    here: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "n0"}}
    for name in ("reader", "other"):
        storage.pod(name, volumes=disk(True, "m1", "m2"), **here)
    storage.bound("reader", "other")
    storage.pod("writer", volumes=disk(False, "m2", "m3"), **here)
    assert "1 disks in use" in storage.waiting("writer")
    storage.pod("apart", volumes=disk(False, "m4"), **here)
    storage.bound("apart")
    for name in ("reader", "other"):
        storage.kube.delete("v1", "Pod", name, storage.namespace)
    storage.bound("writer")
