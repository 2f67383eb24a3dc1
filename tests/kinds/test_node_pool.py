"""The NodePool kind: what the scheduler reads, and what becomes of nodes that exist without us."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.contracts.document import load
from avactl.contracts.scheduling import PoolFacts
from avactl.hardware.machine import Machine
from avactl.hardware.topology import topology_of
from avactl.program import registry
from tests.kinds.compiling import DIGEST, body, codes, compiled, names, unchecked
from tools.controlplane import KubeClient

CLUSTER = """
kind: Cluster
metadata: {name: main}
spec: {systemNamespace: platform, placement: {levels: [rack, zone]}%s}
"""
NAMED = """
---
kind: NodePool
metadata: {name: dgx, labels: {owner: infra}}
spec:
  cluster: main
  machineType: dgx1-v100
  nodes: [%s]
  labels: {rack: r12}
  taints: [{key: example.com/gpu, value: v100}, {key: example.com/burn-in, effect: NoExecute}]
  rdmaResource: rdma/hca
"""


def pool_json(result: Compilation, pool: str) -> dict[str, Any]:
    config = body(result, "ConfigMap", f"avactl-pool-{pool}", "platform")
    assert config["metadata"]["labels"]["avactl.dev/config"] == "topology"
    data: dict[str, Any] = json.loads(config["data"]["pool.json"])
    return data


def test_named_nodes_get_labels_and_taints_and_nothing_else() -> None:
    result = compiled(CLUSTER % "" + NAMED % "b, a")
    assert names(result, "Node") == ["a", "b"]
    assert body(result, "Node", "a") == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "a",
            "labels": {"avactl.dev/pool": "dgx", "avactl.dev/gpu": "V100", "rack": "r12", "owner": "infra"},
        },
        "spec": {
            "taints": [
                {"key": "example.com/gpu", "value": "v100", "effect": "NoSchedule"},
                {"key": "example.com/burn-in", "effect": "NoExecute"},
            ]
        },
    }
    assert [manifest.patch for manifest in result.manifests if manifest.kind == "Node"] == [True, True]


def test_the_config_map_is_what_placement_reads() -> None:
    data = pool_json(compiled(CLUSTER % "" + NAMED % "b, a"), "dgx")
    machine = Machine.from_facts(load(PoolFacts, json.dumps(data)).machine)
    del data["machine"]
    assert topology_of(machine).reachable_level(8) == "nvlink"
    assert topology_of(machine).bandwidth(0, 3) == 50.0
    assert topology_of(machine).switch(7).nics == ("mlx5_3",)
    assert data == {
        "version": 1,
        "pool": "dgx",
        "machineType": "dgx1-v100",
        "size": {"count": 2, "nodes": ["a", "b"]},
        "allocation": {"method": "devicePlugin", "resource": "nvidia.com/gpu", "rdmaResource": "rdma/hca"},
        "levels": ["rack", "zone"],
        "nodeLabels": {"avactl.dev/pool": "dgx", "avactl.dev/gpu": "V100", "rack": "r12"},
        "nodeTaints": [
            {"key": "example.com/gpu", "value": "v100", "effect": "NoSchedule"},
            {"key": "example.com/burn-in", "effect": "NoExecute"},
        ],
    }


def test_a_pool_without_names_touches_no_node_and_says_what_they_need() -> None:
    pool = "---\nkind: NodePool\nmetadata: {name: h100}\nspec: {cluster: main, machineType: h100-sxm-8, %s}"
    result = compiled(CLUSTER % "" + pool % "autoscaling: {min: 1, max: 9}, allocation: dra")
    assert names(result, "Node") == []
    data = pool_json(result, "h100")
    assert data["size"] == {"min": 1, "max": 9}
    assert data["allocation"] == {"method": "dra", "deviceClass": "gpu-h100", "driver": "gpu.nvidia.com"}
    assert data["nodeLabels"] == {"avactl.dev/pool": "h100", "avactl.dev/gpu": "H100"}
    item = result.program.get("NodePool", "h100")
    facts = registry.get_kind("NodePool").facts(item, result.program)
    assert (facts["machines"], facts["GPUs"]) == ("1 to 9", "8 to 72 H100")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("flux", {"kustomize.toolkit.fluxcd.io/prune": "disabled", "kustomize.toolkit.fluxcd.io/ssa": "Merge"}),
        ("argocd", {"argocd.argoproj.io/sync-options": "Prune=false,Delete=false,ServerSideApply=true"}),
    ],
)
def test_engines_that_prune_never_delete_a_node(mode: str, expected: dict[str, str]) -> None:
    result = compiled(CLUSTER % f", reconcile: {{mode: {mode}}}" + NAMED % "a")
    assert body(result, "Node", "a")["metadata"]["annotations"] == expected


def test_pods_of_a_pool_select_and_tolerate_what_its_nodes_have() -> None:
    """Labels and taints of the pool, and what its pods carry, come from the same places."""
    job = """
---
kind: Team
metadata: {name: vision}
---
kind: TrainingJob
metadata: {name: train, team: vision}
spec: {image: "registry.example.com/train:1", workers: {gpus: 1, pool: dgx}}
"""
    result = compiled(CLUSTER % "" + NAMED % "a" + job)
    node = body(result, "Node", "a")
    (pod,) = [m.body["spec"]["template"]["spec"] for m in result.manifests if m.kind == "Job"]
    assert pod["nodeSelector"]
    assert pod["nodeSelector"].items() <= node["metadata"]["labels"].items()
    assert len(node["spec"]["taints"]) == 2
    tolerated = {(entry["key"], entry.get("value", ""), entry["effect"]) for entry in pod["tolerations"]}
    assert {(t["key"], t.get("value", ""), t["effect"]) for t in node["spec"]["taints"]} <= tolerated


def test_a_pool_without_a_size_is_one_problem() -> None:
    quota = "---\nkind: Team\nmetadata: {name: vision}\n"
    quota += "---\nkind: Quota\nmetadata: {name: q, team: vision}\nspec: {gpus: [{gpu: V100, guaranteed: 8}]}"
    pool = "---\nkind: NodePool\nmetadata: {name: dgx}\nspec: {cluster: main, machineType: dgx1-v100}\n"
    assert codes(unchecked(CLUSTER % "" + pool + quota)) == ["missing-key"]


@pytest.fixture
def nodes(kube: KubeClient) -> Iterator[list[str]]:
    """Two nodes as their kubelets registered them."""
    found = [f"gpu-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in found:
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}
        kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    yield found
    for name in found:
        kube.delete("v1", "Node", name)


def test_the_api_server_takes_the_patches_and_keeps_what_others_set(kube: KubeClient, nodes: list[str]) -> None:
    first, second = sorted(nodes)
    result = compiled(CLUSTER % "" + NAMED % f"{first}, {second}")
    for name in nodes:
        reply = kube.apply(body(result, "Node", name), field_manager="avactl", force=True)
        assert reply.warnings == []
        # The node controller writes to a new node too, so that one of a few pairs must be undisturbed.
        pairs = (
            [kube.apply(body(result, "Node", name), field_manager="avactl", force=True) for _ in "ab"] for _ in range(9)
        )
        assert any(a.body["metadata"]["resourceVersion"] == b.body["metadata"]["resourceVersion"] for a, b in pairs)
    live = kube.get("v1", "Node", first)
    assert live["metadata"]["labels"]["avactl.dev/gpu"] == "V100"
    assert live["metadata"]["labels"]["nvidia.com/gpu.product"] == "Tesla-V100-SXM2-32GB"
    assert {taint["key"] for taint in live["spec"]["taints"]} >= {"example.com/gpu", "example.com/burn-in"}


def test_the_api_server_takes_the_topology(kube: KubeClient, namespace: str) -> None:
    text = (CLUSTER % "").replace("platform", namespace) + NAMED % "a"
    config = body(compiled(text), "ConfigMap", "avactl-pool-dgx", namespace)
    assert kube.apply(config).warnings == []


def test_faults_are_for_the_scheduler() -> None:
    pool = "---\nkind: NodePool\nmetadata: {name: p}\nspec: {cluster: main, machineType: dgx1-v100, count: 2%s}\n"
    image = "registry.example.com/avactl@sha256:" + "a" * 64
    cluster = CLUSTER % f", daemons: {{scheduler: true}}, images: {{avactl: '{image}'}}"
    plain = pool_json(compiled(cluster + pool % ""), "p")
    assert "onFault" not in plain, "an upgrade changes no ConfigMap"
    given = pool_json(compiled(cluster + pool % ", onFault: drain, faultConditions: [BurnInFailed]"), "p")
    assert (given["onFault"], given["faultConditions"]) == ("drain", ["BurnInFailed"])
    assert load(PoolFacts, json.dumps(plain)).on_fault == "avoid"


def test_preemptions_wait_for_machines_on_their_way() -> None:
    """The scheduler may read what autoscalers have ordered only where it waits for it."""

    def parts(scaling: str) -> tuple[dict[str, Any], bool, list[dict[str, Any]]]:
        daemon = f", daemons: {{scheduler: true}}, images: {{avactl: registry.example.com/a{DIGEST}}}"
        pool = "---\nkind: NodePool\nmetadata: {name: h100}\nspec: {cluster: main, machineType: h100-sxm-8, %s}"
        result = compiled(CLUSTER % daemon + pool % scaling)
        policy = json.loads(body(result, "ConfigMap", "avactl-policy", "platform")["data"]["policy.json"])
        role = next(m.body for m in result.manifests if m.kind == "ClusterRole" and m.name == "avactl-scheduler")
        added = [
            rule
            for rule in role["rules"]
            if rule["resources"] == ["nodeclaims"] or rule.get("resourceNames") == ["cluster-autoscaler-status"]
        ]
        return pool_json(result, "h100"), policy.get("autoscalers", False), added

    data, reads, rules = parts("autoscaling: {max: 4}")
    assert (data.get("preemptAfter"), reads, rules) == (None, False, [])
    data, reads, rules = parts("autoscaling: {max: 4, preemptAfter: 90s, nodeGroups: [asg-a]}")
    assert (data["preemptAfter"], data["nodeGroups"], reads) == (90, ["asg-a"], True)
    assert [rule["verbs"] for rule in rules] == [["get", "list", "watch"]] * 2
