"""Volumes for random sets (`random_sets`): bindings of claims, their node affinity, and volume limits."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

DRIVER, CLASS = "disk.example.com", "waits"
"""A CSI driver, and a StorageClass without a provisioner that waits for the first consumer."""
ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
KEPT = "example.com/kept"
"""The finalizer of claims that are being deleted."""

Object = dict[str, Any]


class Storage:
    """Claims of one set in its namespaces, with their volumes, and the volume limits of nodes."""

    def __init__(self, rng: Random, number: int, namespaces: Sequence[str], nodes: Sequence[str], host: str) -> None:
        self._rng, self._number, self._nodes, self._host = rng, number, nodes, host
        self._claims: dict[str, list[str]] = {namespace: [] for namespace in namespaces}
        self.objects = [self._csi_node(name) for name in nodes if rng.random() < 0.5]
        for index in range(rng.randint(0, 5)):
            self._claim(index, rng.choice(namespaces))

    def volumes(self, namespace: str, chance: float) -> list[Object]:
        """Return the volumes that a pod of a namespace mounts."""
        rng = self._rng
        claims = [name for name in self._claims[namespace] if rng.random() < chance]
        found: list[Object] = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        if rng.random() < chance / 2:
            found.append({"name": "disk", **self._disk()})
        return found

    def _disk(self) -> Object:
        rng, read_only = self._rng, self._rng.random() < 0.5
        if rng.random() < 0.5:
            monitors = rng.sample([f"m{self._number}-{index}" for index in range(3)], rng.randint(1, 2))
            return {"rbd": {"monitors": monitors, "image": rng.choice("ij"), "readOnly": read_only}}
        target = {"targetPortal": "10.0.0.1:3260", "iqn": f"iqn.2001-04.com.example:{self._number}", "lun": 0}
        return {"iscsi": {**target, "readOnly": read_only}}

    def _csi_node(self, name: str) -> Object:
        driver: Object = {"name": DRIVER, "nodeID": name, "topologyKeys": None}
        if self._rng.random() < 0.8:
            driver["allocatable"] = {"count": self._rng.choice((0, 1, 2, 3, 4))}
        metadata = {"name": name}
        return {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": metadata,
            "spec": {"drivers": [driver]},
        }

    def _claim(self, index: int, namespace: str) -> None:
        rng, name = self._rng, f"v{self._number}-{index}"
        mode = "ReadWriteOncePod" if rng.random() < 0.15 else "ReadWriteMany"
        spec: Object = {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
        }
        metadata: Object = {"name": name, "namespace": namespace}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
        self._claims[namespace].append(name)
        fate = rng.random()
        if fate < 0.02:
            return  # the claim does not exist
        if fate < 0.04:
            spec["storageClassName"] = CLASS
        elif fate > 0.06:
            spec["volumeName"] = name
            claim["status"] = {"phase": "Bound"}
            metadata["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
            if fate > 0.08:
                owner = {"namespace": namespace, "name": name}
                self.objects.append(self._volume(name, {"accessModes": [mode], "claimRef": owner}))
        if rng.random() < 0.04:
            metadata["finalizers"] = [KEPT]
        self.objects.append(claim)

    def _volume(self, name: str, spec: Object) -> Object:
        rng = self._rng
        spec |= {"capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain"}
        if rng.random() < 0.7:
            # Sometimes two claims share a volume.
            spec["csi"] = {"driver": DRIVER, "volumeHandle": f"{self._number}-{rng.choice((name, 'same'))}"}
        else:
            spec["hostPath"] = {"path": "/x"}
        if rng.random() < 0.3:
            values = rng.sample(self._nodes, rng.randint(1, len(self._nodes)))
            expression = {"key": self._host, "operator": rng.choice(("In", "In", "NotIn")), "values": values}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
        labels = {rng.choice(ZONES): rng.choice(("u", "v", "u__w", "u____v"))} if rng.random() < 0.5 else {}
        metadata = {"name": name, "labels": labels}
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}
