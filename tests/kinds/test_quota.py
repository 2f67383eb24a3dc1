"""The Quota kind: limits that the API server enforces, and the errors for what they can never admit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.compiler.incremental.compile import compile_cached
from avactl.contracts.document import load
from avactl.contracts.scheduling import QUOTA_KEY, TeamLeaf
from avactl.hardware.placement.quota import QuotaLimit
from avactl.program import registry
from avactl.scheduler.objects.config import TeamQuota
from avactl.spec.repository.tree import DirTree, MemoryTree
from tests.kinds.compiling import DIGEST, body, codes, compiled, names, unchecked
from tests.test_invalid import BASE
from tools.controlplane import ApiError, KubeClient

PLATFORM = """
kind: Cluster
metadata: {name: main}
---
kind: NodePool
metadata: {name: v100}
spec: {cluster: main, machineType: v100-pcie-8, count: 8}
---
kind: NodePool
metadata: {name: k80}
spec: {cluster: main, machineType: k80-2x, count: 8}
---
kind: NodePool
metadata: {name: h100}
spec: {cluster: main, machineType: h100-sxm-8, count: 8, allocation: dra}
---
kind: Team
metadata: {name: vision}
spec: {namespaces: [{name: vision-train}, {name: vision-dev}]}
"""
SCHEDULER = f"images: {{avactl: registry.example.com/avactl{DIGEST}}}, daemons: {{scheduler: true}}"
QUOTA = """
---
kind: Quota
metadata: {name: gpus, team: vision}
spec:
  gpus:
    - {gpu: V100, guaranteed: 16, borrow: 8, weight: 3}
    - {gpu: K80, guaranteed: 4}
  shapes: [{machines: 2, gpus: 8, gpu: V100}]
  cpu: 400
  memory: 2Ti
  storage: 10Ti
  pods: 200
  podMaxMemory: 512Gi
"""


def test_limits_in_every_namespace_and_the_leaf_once() -> None:
    result = compiled(PLATFORM + QUOTA)
    own = [name for name in names(result, "ResourceQuota") if name.endswith("/gpus")]
    assert own == ["vision-dev/gpus", "vision-train/gpus"]
    assert body(result, "ResourceQuota", "gpus", "vision-dev")["spec"]["hard"] == {
        "requests.cpu": "400",
        "requests.memory": "2Ti",
        "requests.storage": "10Ti",
        "pods": "200",
        # 16 + 8 borrowed + 2 machines of 8, and 4 K80 under the same extended resource.
        "requests.nvidia.com/gpu": "44",
        # Not in the quota: not for this team.
        "gpu-h100.deviceclass.resource.k8s.io/devices": "0",
    }
    queued = PLATFORM.replace("{name: main}", f"{{name: main}}\nspec: {{{SCHEDULER}}}", 1)
    # The scheduler queues for CPU, memory and GPUs; a ResourceQuota would refuse pods that are to wait.
    assert body(compiled(queued + QUOTA), "ResourceQuota", "gpus", "vision-dev")["spec"]["hard"] == {
        "requests.storage": "10Ti",
        "pods": "200",
    }
    nothing = "---\nkind: Quota\nmetadata: {name: gpus, team: vision}\nspec: {gpus: [{gpu: V100, guaranteed: 8}]}"
    assert not [name for name in names(compiled(queued + nothing), "ResourceQuota") if name.endswith("/gpus")]
    assert body(result, "LimitRange", "gpus", "vision-dev")["spec"]["limits"] == [
        {"type": "Container", "defaultRequest": {"cpu": "100m", "memory": "256Mi"}, "max": {"memory": "512Gi"}}
    ]
    leaf = body(result, "ConfigMap", "avactl-quota-vision", "avactl-system")
    assert leaf["metadata"]["labels"]["avactl.dev/config"] == "quota"
    assert json.loads(leaf["data"]["quota.json"]) == {
        "version": 1,
        "team": "vision",
        "namespaces": ["vision-train", "vision-dev"],
        "gpus": [
            {"gpu": "V100", "guaranteed": 16, "borrow": 8, "weight": 3},
            {"gpu": "K80", "guaranteed": 4, "borrow": 0, "weight": 1},
        ],
        "shapes": [{"machines": 2, "gpus": 8, "gpu": "V100"}],
        "cpu": 400.0,
        "memoryBytes": 2 * 2**40,
    }


def test_a_model_of_two_kinds_of_pools_is_counted_in_both() -> None:
    both = "---\nkind: NodePool\nmetadata: {name: v100-dra}\n"
    both += "spec: {cluster: main, machineType: dgx1-v100, count: 1, allocation: dra}\n"
    hard = body(compiled(PLATFORM + both + QUOTA), "ResourceQuota", "gpus", "vision-dev")["spec"]["hard"]
    assert hard["requests.nvidia.com/gpu"] == "44"
    assert hard["gpu-v100.deviceclass.resource.k8s.io/devices"] == "40"


def test_default_requests_stay_below_a_small_maximum() -> None:
    result = compiled(PLATFORM + QUOTA.replace("podMaxMemory: 512Gi", "podMaxMemory: 128Mi"))
    (limits,) = body(result, "LimitRange", "gpus", "vision-dev")["spec"]["limits"]
    assert limits["defaultRequest"] == {"cpu": "100m", "memory": "128Mi"}


def test_facts() -> None:
    result = compiled(PLATFORM + QUOTA)
    facts = registry.get_kind("Quota").facts(result.program.get("Quota", "gpus", "vision"), result.program)
    assert facts["V100"] == "16 + 8 borrowed"
    assert facts["machines of 8 V100"] == 2


# -- what specs request --------------------------------------------------------------------------------------------


def job(name: str, workers: str, more: str = "") -> str:
    return f"""
---
kind: TrainingJob
metadata: {{name: {name}, team: vision}}
spec:
  strategy: allReduce
  image: registry.example.com/train:1
  workers: {{{workers}}}
  {more}
"""


def service(name: str, replicas: str, gpus: int = 1) -> str:
    return f"""
---
kind: ServingDeployment
metadata: {{name: {name}, team: vision}}
spec:
  model: {{name: {name}, version: "1"}}
  runtime: {{name: tensorflowServing, image: "tensorflow/serving:2.19.0-gpu"}}
  resources: {{gpus: {gpus}, gpu: V100, cpu: 4, memory: 16Gi}}
  replicas: {replicas}
"""


def workspace(name: str, gpus: float = 1, more: str = "") -> str:
    return f"""
---
kind: Workspace
metadata: {{name: {name}, team: vision}}
spec: {{user: ada, image: "registry.example.com/jupyter:1", gpus: {gpus}, gpu: K80{more}}}
"""


def quota_problems(text: str, quota: str = QUOTA) -> list[str]:
    result = unchecked(PLATFORM + quota + text)
    return [
        f"{problem.severity} {problem.message} ^ {problem.label}"
        for problem in result.diagnostics
        if problem.code.startswith("quota-")
    ]


def test_jobs_that_only_wait_for_each_other_are_no_problem() -> None:
    text = "".join(job(f"job-{n}", "replicas: 5, gpus: 8, gpu: V100, cpu: 8, memory: 32Gi") for n in range(4))
    assert quota_problems(text) == []


def test_one_job_that_can_never_run() -> None:
    (problem,) = quota_problems(job("big", "replicas: 6, gpus: 8, gpu: V100, cpu: 8, memory: 32Gi"))
    assert problem == (
        "error team vision requests 48 V100; its quota allows 40 (32 guaranteed + 8 borrowed) ^ 6 × 8 = 48"
    )


def test_an_elastic_job_needs_only_its_smallest_size() -> None:
    workers = "replicas: 5, min: 2, max: 5, gpus: 8, gpu: V100, cpu: 8, memory: 32Gi"
    assert quota_problems(job("grows", workers).replace("allReduce", "elastic")) == []


def test_sizes_that_a_quota_never_allows() -> None:
    workers = "min: 2, max: 8, gpus: 8, gpu: V100, cpu: 8, memory: 32Gi"
    (problem,) = quota_problems(job("grows", workers).replace("allReduce", "elastic"))
    assert problem.startswith("warning TrainingJob vision/grows may grow to 8 pods with 64 GPUs; ")
    (problem,) = quota_problems(service("detector", "{min: 8, max: 50}"))
    assert problem.startswith("warning ServingDeployment vision/detector may grow to 50 pods with 50 GPUs; ")


def test_a_suspended_job_asks_for_nothing() -> None:
    assert quota_problems(job("big", "replicas: 6, gpus: 8, gpu: V100, memory: 32Gi", "suspended: true")) == []


def test_a_job_beside_services_that_always_run() -> None:
    text = service("detector", "{min: 8, max: 20}") + job("train", "replicas: 5, gpus: 8, gpu: V100, memory: 32Gi")
    (problem,) = quota_problems(text)
    assert problem.endswith("^ 5 × 8 = 40, with 8 for vision/detector")
    assert quota_problems(text.replace("replicas: 5", "replicas: 4")) == []


def test_services_alone_over_the_quota_are_one_problem() -> None:
    text = service("a", "3", 8) + service("b", "3", 8) + service("c", "1", 8)
    text += job("train", "replicas: 1, gpus: 8, gpu: V100, memory: 32Gi")
    (problem,) = quota_problems(text)
    assert "requests 48 V100" in problem
    assert problem.endswith("3 × 8 = 24, with 24 for vision/a")


def test_cpu_and_memory_count_over_all_roles() -> None:
    servers = "servers: {replicas: 4, cpu: 100, memory: 16Gi}"
    text = job("ctr", "replicas: 2, cpu: 10, memory: 32Gi", servers).replace("allReduce", "parameterServer")
    (problem,) = quota_problems(text)
    assert "requests 420 CPU cores; its quota allows 400 CPU cores" in problem
    assert problem.endswith("^ 4 × 100 = 400, 420 with its other roles")


def test_workspaces_over_the_quota_are_one_warning() -> None:
    text = "".join(workspace(f"desk-{n}") for n in range(6))
    (problem,) = quota_problems(text)
    assert problem.startswith("warning the workspaces of team vision request 6 K80; its quota allows 4, so some wait")
    stopped = "".join(workspace(f"desk-{n}", more=", running: false") for n in range(6))
    assert quota_problems(stopped) == []


def test_shares_of_gpus_add_up_exactly() -> None:
    on = PLATFORM.replace("metadata: {name: main}", "metadata: {name: main}\nspec: {daemons: {scheduler: true}}", 1)
    shares = "".join(workspace(f"desk-{n}", 0.1) for n in range(40))
    assert [c for c in codes(unchecked(on + QUOTA + shares)) if c.startswith("quota-")] == []
    assert "quota-waits" in codes(unchecked(on + QUOTA + shares + workspace("one-more", 0.1)))


def test_a_team_without_a_quota_has_no_limits() -> None:
    text = job("big", "replicas: 8, gpus: 8, gpu: V100, memory: 32Gi")
    assert quota_problems(text, quota="") == []


def test_what_the_cluster_never_holds_is_not_told_again_by_the_quota() -> None:
    text = job("huge", "replicas: 99, gpus: 8, gpu: V100, memory: 32Gi")
    assert quota_problems(text) == []


# -- on the API server ---------------------------------------------------------------------------------------------


def in_namespace(result: Compilation, namespace: str) -> list[dict[str, Any]]:
    return [m.body for m in result.manifests if m.namespace == namespace and m.item.kind == "Quota"]


def pod(namespace: str, name: str, **resources: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "registry.example.com/x:1", "resources": resources}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": containers},
    }


@pytest.fixture
def team(kube: KubeClient, namespace: str) -> str:
    """A namespace with the objects of a quota, applied twice."""
    text = PLATFORM.replace("vision-dev", namespace) + QUOTA.replace("guaranteed: 4", "guaranteed: 0")
    text = text.replace("shapes: [{machines: 2, gpus: 8, gpu: V100}]", "").replace(
        "guaranteed: 16, borrow: 8", "guaranteed: 2"
    )
    found = in_namespace(compiled(text), namespace)
    assert [manifest["kind"] for manifest in found] == ["ResourceQuota", "LimitRange"]
    for manifest in found:
        reply = kube.apply(manifest, field_manager="avactl")
        assert reply.warnings == []
    # The quota controller writes the status meanwhile: what is ours must not change with a second apply.
    kube.wait_for("v1", "ResourceQuota", "gpus", namespace, until=lambda found: "hard" in found.get("status", {}))
    for manifest in found:
        before = kube.get("v1", manifest["kind"], "gpus", namespace)["metadata"]["resourceVersion"]
        assert kube.apply(manifest, field_manager="avactl").body["metadata"]["resourceVersion"] == before
    return namespace


def test_the_api_server_counts_gpus(kube: KubeClient, team: str) -> None:
    two = {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}}
    kube.create(pod(team, "first", **two))
    with pytest.raises(ApiError, match=r"exceeded quota: gpus, requested: requests.nvidia.com/gpu=2"):
        kube.create(pod(team, "second", **two))


def test_the_api_server_lets_pods_without_requests_run(kube: KubeClient, team: str) -> None:
    made = kube.create(pod(team, "bare")).body["spec"]["containers"][0]["resources"]
    assert made["requests"] == {"cpu": "100m", "memory": "256Mi"}


def test_the_api_server_refuses_a_container_over_the_maximum(kube: KubeClient, team: str) -> None:
    with pytest.raises(ApiError, match="maximum memory usage per Container is 512Gi"):
        kube.create(pod(team, "large", requests={"memory": "513Gi"}, limits={"memory": "513Gi"}))


def test_the_api_server_counts_dra_devices(kube: KubeClient, team: str) -> None:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu-h100", "allocationMode": "ExactCount", "count": 1}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": team},
        "spec": {"devices": {"requests": [request]}},
    }
    with pytest.raises(ApiError, match=r"exceeded quota: gpus, .*gpu-h100.deviceclass.resource.k8s.io/devices=1"):
        kube.create(claim)


def test_a_team_without_a_quota_borrows_beside_teams_with_one() -> None:
    text = """
kind: Cluster
metadata: {name: main}
---
kind: NodePool
metadata: {name: a10}
spec: {cluster: main, machineType: a10, count: 3}
---
kind: Team
metadata: {name: vision}
---
kind: Team
metadata: {name: guests}
spec: {namespaces: [{name: guests-a}, {name: guests-b}]}
"""
    assert names(compiled(text), "ConfigMap") == ["avactl-system/avactl-policy", "avactl-system/avactl-pool-a10"]
    quota = """
---
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: A10, guaranteed: 2}]}
"""
    leaf = body(compiled(text + quota), "ConfigMap", "avactl-quota-guests", "avactl-system")
    assert leaf["metadata"]["labels"]["avactl.dev/config"] == "quota"
    parsed = TeamQuota.from_leaf(load(TeamLeaf, leaf["data"][QUOTA_KEY]))
    assert (parsed.team, parsed.namespaces) == ("guests", ("guests-a", "guests-b"))
    assert parsed.quota.limits == {"A10": QuotaLimit(0, 3)}


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: api}
spec:
  replicas: %d
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      serviceAccountName: avactl-run
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      initContainers: [{name: first, image: "a:1", securityContext: &S {allowPrivilegeEscalation: false, capabilities:
        {drop: [ALL]}}, resources: {requests: {cpu: 6, memory: 1Gi}}}]
      containers: [{name: main, image: "a:1", securityContext: *S, resources: {requests: {cpu: 4, memory: 1Gi}}}]
"""
RAW = """
apiVersion: avactl.dev/v1
kind: KubernetesObjects
metadata: {name: api, team: nlp}
spec: {files: [api]}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: nlp}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: share, team: nlp}
spec: {cpu: "20"}
---
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: fold, team: nlp}
spec: {image: "a:1", command: [python], workers: {gpus: 0, cpu: "2", memory: 1Gi}}
patches:
- target: {kind: Job}
  merge: {spec: {template: {spec: {containers: [{name: worker, resources: {requests: {cpu: %s}}}]}}}}
"""


def test_patches_and_manifests_count_in_an_incremental_compile_too(tmp_path: Path) -> None:
    def compiled(replicas: int, cpu: str) -> list[tuple[str, str, int]]:
        files = {**BASE, "raw.yaml": (RAW % cpu).encode(), "api/api.yaml": (MANIFEST % replicas).encode()}
        files["avactl.yaml"] = b"exclude: [api]"
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        whole = compile_tree(MemoryTree(files)).diagnostics
        assert compile_cached(DirTree(tmp_path), lambda m: f"{m.kind}-{m.namespace}-{m.name}").diagnostics == whole
        return [(d.message, d.span.file, d.span.line) for d in whole]

    assert compiled(2, '"6"') == []
    # The init container needs more than the main one: 2 × 6, and 9 of the job.
    both = "team nlp requests 21 CPU cores; its quota allows 20 CPU cores"
    assert compiled(2, '"9"') == [(both, "raw.yaml", 22)]
    assert compiled(2, '"8"') == []
    alone = "team nlp requests 24 CPU cores; its quota allows 20 CPU cores"
    assert compiled(4, '"8"') == [(alone, "api/api.yaml", 15)]
    assert compiled(3, '"1"') == []


def test_jobs_that_are_not_preemptible_cannot_borrow() -> None:
    """The scheduler lets them use guaranteed GPUs only: they would wait for ever."""

    def found(replicas: int, more: str) -> list[str]:
        spec = (
            "---\nkind: TrainingJob\nmetadata: {name: large, team: vision}\nspec:\n  strategy: allReduce\n"
            f"  image: registry.example.com/x{DIGEST}\n  command: [python, x.py]\n"
            f"  workers: {{replicas: {replicas}, gpus: 8, gpu: V100, cpu: 4, memory: 16Gi}}\n{more}"
        )
        result = unchecked(
            PLATFORM.replace("metadata: {name: main}\n", f"metadata: {{name: main}}\nspec: {{{SCHEDULER}}}\n", 1)
            + QUOTA
            + spec
        )
        return [each.message for each in result.diagnostics if each.code == "quota-exceeded"]

    fixed = "  preemptible: false\n"
    assert found(4, fixed) == found(2, "") == found(5, "") == []
    (message,) = found(5, fixed)
    assert message == (
        "TrainingJob vision/large requests 40 V100 and is not preemptible; team vision is guaranteed 32, and what is "
        "not preemptible cannot borrow"
    )
    assert "its quota allows 40" in found(6, fixed)[0]
