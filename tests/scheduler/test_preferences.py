"""Preferred affinity: it decides between nodes that are otherwise equal, and never keeps a pod from running."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.gang import Gang, GangRole, place_gang
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint_set import ConstraintSet
from avactl.scheduler.cycle.placer import Placer
from benchmarks.clusters import running
from tests.kinds.on_base import objects
from tests.scheduler import offline
from tools.controlplane import ControlPlane, KubeClient

POLICY = PlacementPolicy(cluster="main", system_namespace="avactl-system", levels=(), gpu_driver="gpu.example.com")
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def node(name: str, cpu: str = "16", gpus: int = 0, **labels: str) -> dict[str, Any]:
    made = offline.node(name, gpus, pool="big" if gpus else "")
    made["metadata"]["labels"] |= {"kubernetes.io/hostname": name, **labels}
    made["status"]["allocatable"]["cpu"] = cpu
    return made


def prefers(*terms: tuple[int, str, str]) -> dict[str, Any]:
    """Preferred node affinity: weights, label keys and values."""
    return {
        "nodeAffinity": {
            PREFERRED: [
                {
                    "weight": weight,
                    "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
                }
                for weight, key, value in terms
            ]
        }
    }


def near(kind: str, app: str, topology: str = "kubernetes.io/hostname", weight: int = 1) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology}
    return {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}}


def start(
    cache: ClusterCache,
    name: str,
    affinity: dict[str, Any] | None = None,
    gpus: int = 0,
    spread: list[dict[str, Any]] | None = None,
    **labels: str,
) -> str:
    """Place a pod as the scheduler does, and return its node; empty: it fits nowhere."""
    item = offline.pod(name, gpus)
    item["spec"]["topologySpreadConstraints"] = spread or []
    item["metadata"]["labels"] = labels
    item["spec"]["affinity"] = affinity or {}
    pod = cache.put_pod(item)
    assert pod is not None
    assert not pod.shape.refused
    request = cache.requests.request(pod.shape)
    choice = Placer(cache, ConstraintSet(cache, POLICY)).best_choice(pod, request, None)
    if choice is None:
        return ""
    cache.take(pod, choice.booking(request))
    return pod.assumed


def test_the_node_with_the_largest_weight_is_chosen() -> None:
    nodes = [node("a"), node("b", disk="ssd"), node("c", disk="ssd", zone="z1"), node("d", zone="z1")]
    cache = offline.cache(nodes, [])
    assert start(cache, "plain") == "a"
    assert start(cache, "disk", prefers((1, "disk", "ssd"))) == "b"
    assert start(cache, "both", prefers((2, "disk", "ssd"), (1, "zone", "z1"))) == "c"
    assert start(cache, "none", prefers((100, "disk", "tape"))) != ""
    # An empty preference matches no node.
    empty = {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": {}}]}}
    assert start(cache, "empty", empty) != ""


def test_a_preference_follows_labels_and_new_nodes() -> None:
    cache = offline.cache([node("a"), node("b")], [])
    wanted = prefers((5, "disk", "ssd"))
    start(cache, "early", wanted)
    cache.put_node(node("b", disk="ssd"))
    assert start(cache, "relabelled", wanted) == "b"
    cache.put_node(node("b"))
    for number in range(100):  # more than there are slots
        cache.put_node(node(f"n{number}", "8"))
    cache.put_node(node("late", disk="ssd"))
    assert start(cache, "new", wanted) == "late"


def test_a_preference_never_blocks() -> None:
    cache = offline.cache([node("a", "1"), node("b", "1", disk="ssd")], [])
    wanted = {**prefers((100, "disk", "ssd")), **near("podAntiAffinity", "web", weight=100)}
    assert [start(cache, f"web-{number}", wanted, app="web") for number in range(3)] == ["b", "a", ""]


def test_pods_are_preferred_by_domain() -> None:
    nodes = [node(f"n{number}", zone=f"z{number // 2}") for number in range(4)]
    cache = offline.cache(nodes, [])
    assert start(cache, "first", prefers((1, "kubernetes.io/hostname", "n2")), app="db") == "n2"
    assert start(cache, "friend", near("podAffinity", "db", "zone")) in ("n2", "n3")
    assert start(cache, "foe", near("podAntiAffinity", "db", "zone")) in ("n0", "n1")
    # Nodes without the label are in no domain.
    assert start(cache, "elsewhere", near("podAffinity", "db", "rack")) != ""


def test_whole_machines_are_worth_more_than_a_preference() -> None:
    cache = offline.cache([node("used", "128", 8), node("whole", "128", 8, disk="ssd")], [])
    wanted = prefers((1, "disk", "ssd"))
    assert start(cache, "one", gpus=1) == "used"
    pod = cache.put_pod(offline.pod("large", 8))
    assert pod is not None
    for _ in range(100):
        cache.tables.scorer.learn(cache.requests.request(pod.shape))
    assert start(cache, "two", wanted, gpus=1) == "used"


def test_a_gang_prefers_nodes_among_equal_ones() -> None:
    cache = offline.cache([node(f"n{number}", disk="ssd" if number > 1 else "hdd") for number in range(4)], [])
    item = offline.pod("x", 0)
    item["spec"] |= {"affinity": prefers((1, "disk", "ssd"))}
    item["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "16"
    pod = cache.put_pod(item)
    assert pod is not None
    gang = Gang((GangRole("worker", cache.requests.request(pod.shape), 2),))
    placed = place_gang(cache.tables.scorer, "gang", gang)
    assert placed is not None
    assert {cache.tables.state.names[member.node] for member in placed} == {"n2", "n3"}


def test_a_malformed_preference_is_refused() -> None:
    cache = offline.cache([node("a")], [])
    item = offline.pod("odd", 0)
    item["spec"]["affinity"] = near("podAffinity", "x")
    term = item["spec"]["affinity"]["podAffinity"][PREFERRED][0]["podAffinityTerm"]
    term["labelSelector"] = {"matchExpressions": [{"key": "app", "operator": "Like"}]}
    pod = cache.put_pod(item)
    assert pod is not None
    assert pod.shape.refused == "unknown operator Like in a label expression"


@pytest.mark.parametrize("weight", [0, 101, 10**30])
@pytest.mark.parametrize("kind", ["nodeAffinity", "podAffinity", "podAntiAffinity"])
def test_weights_are_bounded(kind: str, weight: int) -> None:
    cache = offline.cache([node("a")], [])
    affinity = prefers((weight, "disk", "ssd")) if kind == "nodeAffinity" else near(kind, "x", weight=weight)
    item = offline.pod("heavy", 0)
    item["spec"]["affinity"] = affinity
    pod = cache.put_pod(item)
    assert pod is not None
    assert pod.shape.refused == f"{kind}: a weight is not one of 1 to 100"


SERVICES = """apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {name: NAME, team: vision}
spec:
  model: {name: resnet50, version: "3", url: "s3://vision/models/resnet50/3", secret: models-s3, size: 2Gi}
  runtime: {name: tensorflowServing, image: "tensorflow/serving:2.19.1"}
  resources: {cpu: 4, memory: 8Gi}
  resourceClass: NAME
"""


def test_services_of_one_class_are_spread_and_those_of_others_join_them() -> None:
    cache = offline.cache([node(f"n{number}") for number in range(4)], [])
    cache.tables.put_namespace("vision", {})
    found = {}
    for kind in ("cpu", "io"):
        template = objects(SERVICES.replace("NAME", kind))["Deployment", kind]["spec"]["template"]
        for number in range(2):
            found[f"{kind}-{number}"] = start(
                cache, f"{kind}-{number}", template["spec"]["affinity"], **template["metadata"]["labels"]
            )
    assert found["cpu-0"] != found["cpu-1"]
    assert {found["io-0"], found["io-1"]} == {found["cpu-0"], found["cpu-1"]}


def start_services(cache: ClusterCache, replicas: list[int], gpus: int = 1) -> list[list[str]]:
    """Place the pods of services with one GPU each, and return the nodes of each service."""
    cache.tables.put_namespace("vision", {})
    text = SERVICES.replace("cpu: 4, memory: 8Gi", f"cpu: 4, memory: 8Gi, gpus: {gpus}").replace(
        "Class: NAME", "Class: gpu"
    )
    found = []
    for number, count in enumerate(replicas):
        name = f"svc-{number}"
        template = objects(text.replace("NAME", name))["Deployment", name]["spec"]["template"]
        pod, labels = template["spec"], template["metadata"]["labels"]
        spread = pod["topologySpreadConstraints"]
        found.append([start(cache, f"{name}-{each}", pod["affinity"], gpus, spread, **labels) for each in range(count)])
    return found


@pytest.mark.parametrize("replicas", [[11], [3, 3, 3, 2], [1] * 11, [5, 2, 4]])
def test_services_of_one_class_leave_whole_machines_for_a_model_on_two_of_them(replicas: list[int]) -> None:
    cache = offline.cache([node(f"n{number}", "128", 8) for number in range(10)], [])
    found = start_services(cache, replicas)
    # A service outlives the loss of a machine, and its class takes no more machines than that needs.
    assert all(len(set(nodes)) == 2 for nodes in found if len(nodes) > 1)
    taken = Counter(each for nodes in found for each in nodes)
    assert "" not in taken
    assert len(taken) == 2
    # On the machines that it has anyway, the class is spread.
    assert max(taken.values()) - min(taken.values()) <= 1 or max(replicas) == 1
    pod = cache.put_pod(offline.pod("model", 8))
    assert pod is not None
    placed = place_gang(cache.tables.scorer, "model", Gang((GangRole("worker", cache.requests.request(pod.shape), 2),)))
    assert placed is not None


def test_classes_are_spread_over_machines_of_which_none_is_whole() -> None:
    cache = offline.cache([node(f"n{number}", "128", 8) for number in range(4)], [])
    for number in range(4):
        start(cache, f"job-{number}", prefers((1, "kubernetes.io/hostname", f"n{number}")), gpus=1)
    (found,) = start_services(cache, [4])
    assert set(found) == {"n0", "n1", "n2", "n3"}


CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "one label": (prefers((1, "kubernetes.io/hostname", "n2")), {"n2"}),
    "weights add up": (prefers((3, "zone", "z0"), (2, "zone", "z1"), (2, "kubernetes.io/hostname", "n3")), {"n3"}),
    "near a pod": (near("podAffinity", "db", "zone"), {"n2", "n3"}),
    "away from a pod": (near("podAntiAffinity", "db", "zone"), {"n0", "n1"}),
    "more pods weigh more": (near("podAffinity", "db") | near("podAntiAffinity", "web", "zone", 50), {"n0", "n1"}),
    "node and pod": (near("podAffinity", "db", "zone") | prefers((1, "kubernetes.io/hostname", "n3")), {"n3"}),
}


def _node(kube: KubeClient, pod: str) -> str:
    """Return the node of a pod once it is bound."""
    bound = kube.wait_for("v1", "Pod", pod, "x", until=lambda found: found["spec"].get("nodeName"))
    return str(bound["spec"]["nodeName"])


@pytest.mark.controlplane
@pytest.mark.xdist_group("scheduler")
def test_kube_scheduler_prefers_the_same_nodes(new_plane: Callable[..., ControlPlane]) -> None:
    plane = new_plane()
    kube = plane.client()
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}})
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "x"}})
    for number in range(4):
        made = node(f"n{number}", "64", zone=f"z{number // 2}")
        kube.create({"apiVersion": "v1", "kind": "Node", **made})
        path = f"/api/v1/nodes/n{number}"
        kube.request("PATCH", path, body={"spec": {"taints": []}}, content_type="application/merge-patch+json")
    schedulers = {"avactl": "avactl", "kube-scheduler": "default-scheduler"}

    def create(name: str, spec: dict[str, Any], app: str = "") -> None:
        containers = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "10m"}}}]
        metadata = {"name": name, "namespace": "x", "labels": {"app": app}}
        spec = {"containers": containers, **spec}
        kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    create("db", {"nodeName": "n2"}, "db")
    for number in range(2):
        create(f"web-{number}", {"nodeName": "n2"}, "web")
    with running(plane, "kube-scheduler"), running(plane, "avactl"):
        for number, (affinity, wanted) in enumerate(CASES.values()):
            for name, scheduler in schedulers.items():
                create(f"{name}-{number}", {"schedulerName": scheduler, "affinity": affinity})
            found = {_node(kube, f"{name}-{number}") for name in schedulers}
            assert found <= wanted, affinity
