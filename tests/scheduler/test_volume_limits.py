"""Volumes by node, counted as objects change, are those of a count from the beginning."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from avactl.scheduler.cache.volume_binding import VolumeBinding
from tests.scheduler.memory import Memory

DRIVERS, NODES, NAMES = ("a.csi", "b.csi"), 4, 6
Given = dict[str, Any]


class Storage:
    """Objects by kind and name, and the tables that are told of each change."""

    def __init__(self, random: Random) -> None:
        self.random, self.world = random, Memory(NODES)
        self.objects: dict[tuple[str, str], Given] = {}

    def step(self) -> None:
        """Add, change or remove an object."""
        kind = self.random.choice(("claim", "claim", "volume", "class", "node", "attachment", "pod", "pod"))
        name = f"x{self.random.randrange(NODES if kind == 'node' else NAMES)}"
        if (kind, name) in self.objects and self.random.random() < 0.5:
            self.objects.pop((kind, name))
            self.drop(self.world.cache.volumes, kind, name)
        elif kind not in ("pod", "attachment") or (kind, name) not in self.objects:
            self.objects[kind, name] = self.make(kind, name)
            self.put(self.world.cache.volumes, kind, self.objects[kind, name])

    def make(self, kind: str, name: str) -> Given:
        random, metadata = self.random, {"name": name, "uid": name, "namespace": "a", "resourceVersion": "1"}
        driver, other = random.choice(DRIVERS), f"x{random.randrange(NAMES)}"
        if kind == "claim":
            spec: Given = {"storageClassName": other, "accessModes": ["ReadWriteMany"], "resources": {"requests": {}}}
            bound = random.random() < 0.7
            return {"metadata": metadata, "spec": spec | ({"volumeName": other} if bound else {}), "status": {}}
        if kind == "volume":
            source = {"driver": driver, "volumeHandle": f"h{random.randrange(3)}"}
            return {"metadata": metadata, "spec": {"capacity": {"storage": "1Gi"}, "csi": source}, "status": {}}
        if kind == "class":
            return {"metadata": metadata, "provisioner": driver}
        if kind == "node":
            limits = [{"name": each, "allocatable": {"count": random.randrange(3)}} for each in DRIVERS]
            return {"metadata": {"name": name.replace("x", "n")}, "spec": {"drivers": limits}}
        if kind == "attachment":
            source = {"persistentVolumeName": other}
            return {"metadata": metadata, "spec": {"nodeName": f"n{random.randrange(NODES)}", "source": source}}
        claims = {f"x{random.randrange(NAMES)}" for _ in range(2)}
        volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in sorted(claims)]
        spec = {"nodeName": f"n{random.randrange(NODES)}", "containers": [{"name": "c"}], "volumes": volumes}
        created = metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"}
        return {"metadata": created, "spec": spec, "status": {"phase": "Running"}}

    def put(self, volumes: VolumeBinding, kind: str, item: Given) -> None:
        puts = {
            "claim": volumes.put_claim,
            "volume": volumes.put_volume,
            "class": volumes.put_class,
            "node": volumes.attached.put_node,
            "attachment": volumes.attached.put_attachment,
            "pod": self.world.cache.put_pod,
        }
        puts[kind](item)

    def drop(self, volumes: VolumeBinding, kind: str, name: str) -> None:
        drops: dict[str, Callable[[], object]] = {
            "claim": lambda: volumes.drop_claim(f"a/{name}"),
            "volume": lambda: volumes.drop_volume(name),
            "class": lambda: volumes.drop_class(name),
            "node": lambda: volumes.attached.drop_node(name.replace("x", "n")),
            "attachment": lambda: volumes.attached.drop_attachment(name),
            "pod": lambda: self.world.cache.drop_pod(f"a/{name}"),
        }
        drops[kind]()

    def counted_anew(self) -> VolumeBinding:
        """Return the volumes of a scheduler that starts now."""
        volumes = VolumeBinding(self.world.cache.tables)
        for (kind, _), item in self.objects.items():
            if kind != "pod":
                self.put(volumes, kind, item)
        return volumes


@pytest.mark.parametrize("seed", range(20))
def test_counts_follow_all_changes(seed: int) -> None:
    storage = Storage(Random(seed))
    storage.world.cache.rebuild()
    full = 0
    for number in range(150):
        storage.step()
        if storage.random.random() < 0.3:
            continue
        name = f"p{number}"
        storage.world.pod("a", name, volumes=storage.make("pod", name)["spec"]["volumes"])
        pod = storage.world.cache.tables.pods[f"a/{name}"]
        found = storage.world.cache.volumes.attached.full(pod)
        anew = storage.counted_anew().attached.full(pod)
        assert (found is None) == (anew is None)
        if found is not None and anew is not None:
            full += 1
            assert np.array_equal(found, anew)
    assert full
