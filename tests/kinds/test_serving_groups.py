"""ServingDeployment: replicas of several machines, as groups of pods of a LeaderWorkerSet."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live
from avactl.apply.doctor.needs import needs_of
from avactl.base.object_identity import ObjectKey
from avactl.change.diff.fields import ValueChange
from avactl.change.diff.rules import POD_RESTART, classify_change
from avactl.change.plan.workloads import GROUPS, KINDS, find_workloads
from avactl.compiler import Compilation, compile_tree
from avactl.contracts.document import load
from avactl.contracts.names import ROLLOUT
from avactl.contracts.serving import RolloutConfig
from avactl.policy.builtin import nested_pods
from avactl.program import registry
from avactl.program.dependencies import dependencies
from avactl.program.manifest import templates_of
from avactl.spec.repository.tree import MemoryTree
from tests.definitions import define_groups
from tests.kinds.on_base import Objects, api_server_says
from tests.kinds.test_serving import HEAD
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

VLLM = f"""{HEAD}
  model: {{name: chat, version: "1", url: "s3://vision/models/chat", secret: models-s3, size: 40Gi}}
  runtime: {{name: vllm, image: "vllm/vllm-openai:v0.33.0", args: [--enable-expert-parallel]}}
  resources: {{cpu: 8, memory: 64Gi, gpus: 4, sharedMemory: 16Gi}}
  llm:
    machines: 2
    adapters: [{{name: sql, url: "s3://vision/adapters/sql", secret: models-s3}}]
  probes: {{readiness: {{script: {{configMap: {{name: checks, key: ready.sh}}}}}}}}
"""
SGLANG = VLLM.replace("name: vllm", "name: sglang").replace("vllm/vllm-openai:v0.33.0", "lmsysorg/sglang:v0.5.23")
CLUSTER = b"metadata: {name: main}\nspec:\n"
GANG = "avactl.dev/gang-size"


def compiled(text: str, cluster: bytes = b"  leaderWorkerSet: {}\n") -> Compilation:
    base = BASE["base/platform.yaml"].replace(CLUSTER, CLUSTER + cluster)
    result = compile_tree(MemoryTree({"base.yaml": base, "spec.yaml": text.encode()}))
    assert [each for each in result.diagnostics if each.severity == "error"] == []
    return result


def objects(text: str) -> Objects:
    return {(m.kind, m.name): m.body for m in compiled(text).manifests if m.item.doc.file == "spec.yaml"}


def groups(found: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = found["LeaderWorkerSet", "classifier"]["spec"]
    return spec


def templates(found: Objects) -> tuple[dict[str, Any], dict[str, Any]]:
    leader, worker = (template for _, template in templates_of(found["LeaderWorkerSet", "classifier"]))
    return leader, worker


def test_a_replica_is_a_group_of_pods() -> None:
    found = objects(VLLM + "  replicas: 3\n")
    assert not any(kind == "Deployment" for kind, _ in found)
    spec = groups(found)
    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (3, 2)
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
    rolling = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (1, 0)
    rolling = groups(objects(VLLM + "  maxSurge: 0\n"))["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (0, 1)


def test_only_leaders_answer_requests() -> None:
    found = objects(VLLM)
    leader, worker = templates(found)
    for name in ("classifier", "classifier-headless"):
        select = found["Service", name]["spec"]["selector"].items()
        assert select <= leader["metadata"]["labels"].items()
        assert not select <= worker["metadata"]["labels"].items()
    server, helper = leader["spec"]["containers"][0], worker["spec"]["containers"][0]
    assert {"ports", "readinessProbe", "livenessProbe", "startupProbe"} <= server.keys()
    assert not {"ports", "readinessProbe", "livenessProbe", "startupProbe"} & helper.keys()
    # They hold a part of the model, and stay while the leader answers its last requests.
    assert server["resources"] == helper["resources"]
    assert server["lifecycle"] == helper["lifecycle"]
    assert worker["spec"]["initContainers"] == leader["spec"]["initContainers"]
    assert {each["name"] for each in leader["spec"]["volumes"]} - {
        each["name"] for each in worker["spec"]["volumes"]
    } == {"probe-readiness"}


def test_vllm_joins_the_leader() -> None:
    leader, worker = (template["spec"]["containers"][0] for template in templates(objects(VLLM)))
    shared = [
        "/models/chat",
        "--served-model-name=chat",
        "--tensor-parallel-size=4",
        "--pipeline-parallel-size=2",
        "--enable-lora",
        "--max-lora-rank=16",
        "--max-loras=4",
        "--distributed-executor-backend=mp",
        "--nnodes=2",
        "--node-rank=$(LWS_WORKER_INDEX)",
        "--master-addr=$(LWS_LEADER_ADDRESS)",
        "--master-port=29501",
    ]
    serves = ["--host=0.0.0.0", "--port=8000", "--lora-modules", "sql=/adapters/sql"]
    assert leader["args"] == [*shared, *serves, "--enable-expert-parallel"]
    assert worker["args"] == [*shared, "--headless", "--enable-expert-parallel"]
    assert {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in worker["env"]


def test_sglang_joins_the_leader() -> None:
    leader, worker = (template["spec"]["containers"][0] for template in templates(objects(SGLANG)))
    joins = ["--nnodes=2", "--node-rank=$(LWS_WORKER_INDEX)", "--dist-init-addr=$(LWS_LEADER_ADDRESS):20000"]
    assert [each for each in leader["args"] if each in joins] == joins
    assert {"--tensor-parallel-size=4", "--pipeline-parallel-size=2"} <= set(leader["args"])
    assert leader["args"] == worker["args"]


def test_layers_may_be_split_over_machines() -> None:
    leader, _ = templates(objects(VLLM.replace("machines: 2", "machines: 2\n    tensorParallel: 8")))
    args = leader["spec"]["containers"][0]["args"]
    assert "--tensor-parallel-size=8" in args
    assert not any("pipeline" in each for each in args)


def test_the_pods_of_a_group_are_a_gang() -> None:
    for template in templates(objects(VLLM)):
        assert template["metadata"]["annotations"][GANG] == "2"
        assert "avactl.dev/gang" not in template["metadata"]["labels"]  # it would be that of all groups


def test_the_budget_protects_all_pods_of_a_group() -> None:
    found = objects(VLLM)
    budget = found["PodDisruptionBudget", "classifier"]["spec"]
    for template in templates(found):
        assert budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert budget["maxUnavailable"] == 1


def test_an_autoscaler_counts_groups() -> None:
    result = compiled(VLLM + "  replicas: {min: 1, max: 2, cpuUtilization: 60}\n")
    scaler = next(m for m in result.manifests if m.kind == "HorizontalPodAutoscaler")
    target = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "classifier"}
    assert scaler.body["spec"]["scaleTargetRef"] == target
    groups_of = next(m for m in result.manifests if m.kind == "LeaderWorkerSet")
    assert "replicas" not in groups_of.body["spec"]
    assert groups_of.owned == ("spec.replicas",)
    work = find_workloads(result.manifests, "main")[ObjectKey(KINDS[GROUPS], GROUPS, "vision", "classifier")]
    assert (work.fewest, work.most) == (1, 2)
    assert (work.count(), work.count(4), work.count(6)) == (2, 4, 4)


def test_quota_and_graph_count_every_machine() -> None:
    result = compiled(VLLM + "  replicas: 2\n")
    item = result.program.get("ServingDeployment", "classifier", "vision")
    hooks = registry.get_kind("ServingDeployment").workload
    assert hooks is not None
    (role,) = hooks.roles(item)
    assert (role.least, role.most) == (4, 4)
    assert hooks.summary(item).endswith("4 pods")
    facts = registry.get_kind("ServingDeployment").facts(item, result.program)
    assert facts["GPUs"] == "16 V100"
    assert facts["machines"] == "2 a replica"


def test_both_templates_are_seen_everywhere() -> None:
    body = objects(VLLM)["LeaderWorkerSet", "classifier"]
    assert [path[-2] for _, path in nested_pods(body)] == ["leaderTemplate", "workerTemplate"]
    assert ObjectKey("", "ConfigMap", "vision", "checks") in dependencies(body)
    for name in ("leaderTemplate", "workerTemplate"):
        change = ValueChange(("spec", "leaderWorkerTemplate", name, "spec", "nodeName"), "changed", "a", "b")
        assert classify_change("LeaderWorkerSet", change, body)[0] is POD_RESTART


def test_alerts_watch_the_leaders() -> None:
    cluster = b"  leaderWorkerSet: {}\n  monitoring: {notifications: true}\n"
    result = compiled(VLLM + '  notify: {email: ["a@example.com"]}\n', cluster)
    rule = next(m for m in result.manifests if m.kind == "PrometheusRule" and m.name == "classifier-notify")
    assert 'kube_statefulset_replicas{namespace="vision",statefulset="classifier"}' in str(rule.body)


def test_doctor_says_that_the_controller_is_missing() -> None:
    need = needs_of(compiled(VLLM), "main")
    kind = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    assert need.kinds[kind] == {"vision"}
    found = [each for each in check(need, Live(version="1.36.0"), rights=False) if "LeaderWorkerSet" in each.message]
    assert [each.remedy for each in found] == ["install LeaderWorkerSet 0.9 or newer (sigs.k8s.io/lws)"]


@pytest.mark.parametrize("text", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_the_api_server_takes_every_object(text: str, kube: KubeClient, namespace: str) -> None:
    define_groups(kube)
    assert api_server_says(objects(text), kube, namespace) == []


CANARY = """  replicas: 3
  rollout: {canary: {traffic: replicas, steps: [{percent: 50, pause: 1m}]}}
"""


def test_the_partition_of_a_canary_is_the_daemons() -> None:
    cluster = b"  leaderWorkerSet: {}\n  daemons: {serving: true}\n"
    found = {(m.kind, m.name): m for m in compiled(VLLM + CANARY, cluster).manifests}
    groups = found["LeaderWorkerSet", "classifier"]
    body = groups.body
    assert groups.owned == ("spec.rolloutStrategy.rollingUpdateConfiguration.partition",)
    rolling = body["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    config = load(RolloutConfig, body["metadata"]["annotations"][ROLLOUT])
    assert (config.traffic, config.surge) == ("replicas", 1)
    # A start, and before it a copy of 40 GiB.
    assert config.start is not None
    assert config.deadline is not None
    assert config.deadline > config.start + 1800
    rules = found["Role", "avactl-serving"].body["rules"]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]} in rules


def test_the_daemon_has_no_rights_on_groups_without_their_controller() -> None:
    text = VLLM.replace("machines: 2", "maxLength: 4096")
    for manifest in compiled(text, b"  daemons: {serving: true}\n").manifests:
        if manifest.kind in ("Role", "ClusterRole") and manifest.name.startswith("avactl-serving"):
            assert "leaderworkersets" not in str(manifest.body)
            assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]} not in manifest.body["rules"]
