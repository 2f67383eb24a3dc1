"""Ordinary constraints, as kube-scheduler understands them, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def zones(world: World) -> None:
    for number in range(4):
        world.node(f"n{number}", gpus=0, pool="", labels={"zone": f"z{number // 2}"})
    world.ready()
    world.start()


def near(kind: str, app: str, topology: str = "zone") -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology}
    return {"affinity": {kind: {REQUIRED: [term]}}}


def test_selector_affinity_taints_and_cordons(world: World) -> None:
    world.node("tainted", gpus=0, pool="", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    world.node("cordoned", gpus=0, pool="", unschedulable=True)
    world.node("plain", gpus=0, pool="", labels={"disk": "ssd"})
    world.ready()
    world.start()
    world.pod("any")
    world.pod(
        "tolerant",
        tolerations=[{"key": "team", "operator": "Exists"}],
        nodeSelector={"kubernetes.io/hostname": "tainted"},
    )
    expression = {"key": "disk", "operator": "NotIn", "values": ["ssd"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    world.pod("nowhere", affinity={"nodeAffinity": {REQUIRED: terms}})
    found = world.bound("any", "tolerant")
    assert (found["any"], found["tolerant"]) == ("plain", "tainted")
    assert world.waiting("nowhere") == (
        "fits on none of 3 nodes: 3 are excluded (1 cordoned, 1 node selector or affinity mismatch, 1 taint team=x)"
    )


def test_pod_affinity_and_anti_affinity(world: World) -> None:
    zones(world)
    world.pod("first", labels={"app": "a"}, **near("podAffinity", "a"))
    home = int(world.bound("first")["first"][1:]) // 2
    world.pod("friend", labels={"app": "b"}, **near("podAffinity", "a"))
    world.pod("foe", labels={"app": "c"}, **near("podAntiAffinity", "a"))
    found = world.bound("first", "friend", "foe")
    assert int(found["friend"][1:]) // 2 == home
    assert int(found["foe"][1:]) // 2 != home
    # The foe keeps others of its kind away too.
    world.pod("late", labels={"app": "a"}, nodeSelector={"zone": f"z{1 - home}"})
    assert "anti-affinity of another pod" in world.waiting("late")
    world.pod("lonely", **near("podAffinity", "nobody"))
    assert "no pod matching its affinity" in world.waiting("lonely")
    world.pod("company", labels={"app": "nobody"}, nodeSelector={"kubernetes.io/hostname": "n3"})
    assert int(world.bound("lonely")["lonely"][1:]) // 2 == 1


def test_topology_spread(world: World) -> None:
    zones(world)
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
    for number in range(6):
        world.pod(f"web-{number}", labels={"app": "web"}, topologySpreadConstraints=spread)
    found = world.bound()
    assert sorted(int(node[1:]) // 2 for node in found.values()) == [0, 0, 0, 1, 1, 1]


def test_host_ports(world: World) -> None:
    zones(world)
    ports = {"ports": [{"containerPort": 80, "hostPort": 8080}]}
    for number in range(5):
        world.pod(f"p{number}", container=ports)
    world.wait(lambda: len([node for node in world.nodes_of().values() if node]) == 4)
    found = world.nodes_of()
    assert len({node for node in found.values() if node}) == 4
    waiting = next(name for name, node in found.items() if not node)
    assert "4 host ports in use" in world.waiting(waiting)


def claim(world: World, name: str, **spec: Any) -> None:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    metadata = {"name": name, "namespace": world.namespace}
    world.kube.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": wanted})


def test_volumes(world: World) -> None:
    zones(world)
    world.kube.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "later"},
            "provisioner": "example.com/disk",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    affinity = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}]}
    metadata = {"name": f"pv-{world.namespace}"}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "x", "volumeHandle": "x"},
        "nodeAffinity": {"required": affinity},
        "storageClassName": "",
    }
    world.kube.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume})
    claim(world, "bound", storageClassName="", volumeName=metadata["name"])
    claim(world, "later", storageClassName="later")

    def using(name: str) -> list[dict[str, Any]]:
        return [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]

    world.pod("there", volumes=using("bound"))
    assert world.bound("there")["there"] in ("n2", "n3")
    world.pod("missing", volumes=using("nobody"))
    assert "PersistentVolumeClaim nobody, which does not exist" in world.waiting("missing")
    world.pod("fresh", volumes=using("later"), nodeSelector={"kubernetes.io/hostname": "n1"})
    selected = "volume.kubernetes.io/selected-node"
    world.kube.wait_for(
        "v1",
        "PersistentVolumeClaim",
        "later",
        world.namespace,
        until=lambda found: (found["metadata"].get("annotations") or {}).get(selected) == "n1",
    )
    assert not world.nodes_of()["fresh"]
    # The driver does its part.
    made = {**volume, "storageClassName": "later", "claimRef": {"namespace": world.namespace, "name": "later"}}
    metadata = {"name": f"made-{world.namespace}"}
    world.kube.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": made})
    assert world.bound("fresh")["fresh"] == "n1"
    for name in ("pv", "made"):
        world.kube.delete("v1", "PersistentVolume", f"{name}-{world.namespace}")
