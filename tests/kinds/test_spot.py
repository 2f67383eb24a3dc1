"""Spot machines: who runs there, who never does, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.contracts.names import CAPACITY
from avactl.contracts.pod_annotations import SPOT_FROM
from avactl.workbench.graph import draw
from tests.kinds import specs
from tests.kinds.compiling import apply, body, codes, compiled, names, unchecked
from tests.kinds.specs import JOB, SCHEDULED, TEAM, joined
from tools.controlplane import ApiError, KubeClient
from tools.waiting import wait_until

PLATFORM = joined(
    SCHEDULED,
    """
kind: NodePool
metadata: {name: firm}
spec: {cluster: main, machineType: v100-pcie-8, count: 2}
""",
    """
kind: NodePool
metadata: {name: cheap}
spec: {cluster: main, machineType: v100-pcie-8, count: 4, capacity: spot, reclaimNotice: 2m}
""",
    TEAM,
)
CHECKPOINT = "  checkpoint: {path: s3://vision/ckpt}\n"
ELASTIC = JOB + CHECKPOINT + "  strategy: elastic\n"
GANG = JOB.replace("python", "torchrun") + CHECKPOINT + "  strategy: allReduce\n  workers: {replicas: 2, gpus: 8}\n"
SERVICE = specs.SERVICE + "  resources: {gpus: 1}\n  replicas: 2\n"
WORKSPACE = specs.WORKSPACE + "  gpus: 1\n"
TOLERATION = {"key": CAPACITY, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}


def of_job(result: Compilation, role: str = "worker") -> dict[str, Any]:
    template: dict[str, Any] = body(result, "Job", f"train-{role}", "vision")["spec"]["template"]
    return template


def on_spot(template: dict[str, Any]) -> bool:
    return TOLERATION in template["spec"].get("tolerations", ())


def test_nodes_of_a_spot_pool_are_labelled_and_tainted() -> None:
    named = compiled(PLATFORM.replace("count: 4", "nodes: [a, b]"))
    for name in ("a", "b"):
        node = body(named, "Node", name)
        assert node["metadata"]["labels"][CAPACITY] == "spot"
        assert node["spec"]["taints"] == [{"key": CAPACITY, "value": "spot", "effect": "NoSchedule"}]
    pool = body(named, "ConfigMap", "avactl-pool-cheap", "avactl-system")["data"]["pool.json"]
    assert '"avactl.dev/capacity": "spot"' in pool


@pytest.mark.parametrize(
    ("use", "tolerates", "only"), [("never", False, False), ("allow", True, False), ("require", True, True)]
)
def test_workers_of_a_gang(use: str, tolerates: bool, only: bool) -> None:
    result = compiled(joined(PLATFORM, f"{GANG}  spot: {use}\n"))
    template = of_job(result)
    assert on_spot(template) is tolerates
    assert (template["spec"]["nodeSelector"].get(CAPACITY) == "spot") is only
    # A budget would keep a termination handler from telling the pods.
    assert ("vision/train" in names(result, "PodDisruptionBudget")) is not tolerates


def test_the_graph_keeps_the_fewest_workers_off_spot_machines() -> None:
    job = ELASTIC + "  workers: {min: 2, max: 6, gpus: 4}\n  spot: allow\n"
    picture = draw(compiled(joined(PLATFORM, job)))
    assert "requested at full size: 8 of 16 (50%)" in picture
    assert "requested at full size: 16 of 32 (50%)" in picture


RAW = """
kind: KubernetesObjects
metadata: {name: raw, team: vision}
spec:
  objects:
  - apiVersion: v1
    kind: Pod
    metadata: {name: raw}
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      tolerations: [{key: KEY, operator: Exists}]
      containers:
      - {name: main, image: "a:1", securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}
"""
PATCH = """patches:
- target: {kind: Job}
  merge: {spec: {template: {spec: {tolerations: [{key: KEY, operator: Exists}]}}}}
"""


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (RAW, "manifest-not-allowed"),
        (JOB + PATCH, "patch-not-allowed"),
        (JOB + "  pod: {tolerations: [{key: KEY, operator: Exists}]}\n", "missing-reference"),
    ],
)
def test_only_the_key_spot_leads_to_spot_machines(spec: str, code: str) -> None:
    (found,) = unchecked(joined(PLATFORM, spec.replace("KEY", CAPACITY))).diagnostics
    assert (found.code, "spot: allow" in found.hint) == (code, True)
    assert codes(unchecked(joined(PLATFORM, spec.replace("KEY", "node.kubernetes.io/unreachable")))) == []


def test_an_elastic_job_keeps_its_fewest_workers_and_its_master_off_spot_machines() -> None:
    result = compiled(joined(PLATFORM, ELASTIC + "  workers: {min: 2, max: 6, gpus: 4}\n  spot: allow\n"))
    worker = of_job(result)
    assert on_spot(worker)
    assert worker["metadata"]["annotations"][SPOT_FROM.name] == "2"
    (preferred,) = worker["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchExpressions"] == [{"key": CAPACITY, "operator": "In", "values": ["spot"]}]
    assert not on_spot(of_job(result, "master"))
    assert body(result, "PodDisruptionBudget", "train", "vision")["spec"]["minAvailable"] == 3


def test_capacity_of_spot_pools_counts_only_for_pods_that_may_run_there() -> None:
    """Two machines stay and four may go: a gang of three fits only with spot machines, fewest workers without."""
    three = GANG.replace("replicas: 2", "replicas: 3")
    assert codes(unchecked(joined(PLATFORM, three))) == ["gang-never-fits"]
    assert codes(unchecked(joined(PLATFORM, three + "  spot: allow\n"))) == []
    five = GANG.replace("replicas: 2", "replicas: 5")
    assert codes(unchecked(joined(PLATFORM, five + "  spot: require\n"))) == ["gang-never-fits"]
    elastic = ELASTIC + "  workers: {min: 3, max: 4, gpus: 8}\n  spot: allow\n"
    assert codes(unchecked(joined(PLATFORM, elastic))) == ["gang-never-fits"]


def test_services_and_workspaces() -> None:
    result = compiled(
        joined(PLATFORM, f"{SERVICE}  spot: allow\n", f"{WORKSPACE}  spot: require\n  preemptible: true\n")
    )
    assert on_spot(body(result, "Deployment", "detector", "vision")["spec"]["template"])
    session = body(result, "StatefulSet", "lin", "vision")["spec"]["template"]
    assert on_spot(session)
    assert session["spec"]["nodeSelector"][CAPACITY] == "spot"
    plain = compiled(joined(PLATFORM, SERVICE, WORKSPACE))
    assert not on_spot(body(plain, "Deployment", "detector", "vision")["spec"]["template"])
    assert not on_spot(body(plain, "StatefulSet", "lin", "vision")["spec"]["template"])


@pytest.mark.parametrize(
    "spec", [GANG + "  spot: allow\n", ELASTIC + "  workers: {min: 1, max: 3, gpus: 2}\n  spot: allow\n"]
)
def test_the_api_server_takes_every_object(spec: str, kube: KubeClient) -> None:
    renamed = spec.replace("name: train,", f"name: train-{'elastic' if 'min' in spec else 'gang'},")
    manifests = compiled(joined(PLATFORM, renamed)).manifests

    def applied() -> bool:
        try:
            return bool(apply(kube, manifests))
        except ApiError as error:
            # The policy of another test's cluster, until the API server has read the present one.
            if error.status != 403:
                raise
            return False

    wait_until(applied)
