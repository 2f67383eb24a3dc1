"""ServingDeployment: pods of their own that read prompts, as roles of a DisaggregatedSet."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live
from avactl.apply.doctor.needs import needs_of
from avactl.base.object_identity import ObjectKey
from avactl.change.diff.fields import ValueChange
from avactl.change.diff.rules import IN_PLACE, POD_RESTART, classify_change
from avactl.change.plan.workloads import KINDS, ROLES, find_workloads
from avactl.compiler import Compilation, compile_tree
from avactl.contracts.document import load
from avactl.contracts.serving import RolloutConfig
from avactl.policy.builtin import nested_pods
from avactl.program import registry
from avactl.program.dependencies import dependencies
from avactl.program.manifest import groups_at, templates_of
from avactl.program.registry import ObjectEffect
from avactl.spec.repository.tree import MemoryTree
from tests.definitions import define_groups, define_pools, define_routes
from tests.kinds.on_base import Objects, api_server_says
from tests.kinds.test_serving import HEAD
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

VLLM = f"""{HEAD}
  model: {{name: chat, version: "2", url: "s3://vision/models/chat", secret: models-s3, size: 40Gi}}
  runtime: {{name: vllm, image: "vllm/vllm-openai:v0.33.0", args: [--enable-expert-parallel]}}
  resources: {{cpu: 8, memory: 64Gi, gpus: 4, sharedMemory: 16Gi}}
  replicas: 3
  llm:
    maxLength: 8192
    prefill:
      replicas: 2
      resources: {{cpu: 4, memory: 32Gi, gpus: 2}}
      args: [--max-num-batched-tokens=16384]
      router: {{image: "registry.example.com/vllm-router:0.1.17", replicas: 2, args: [--policy, round_robin]}}
"""
SGLANG = (
    VLLM.replace("name: vllm", "name: sglang")
    .replace("vllm/vllm-openai:v0.33.0", "lmsysorg/sglang:v0.5.23")
    .replace("[--enable-expert-parallel]", "[--enable-dp-attention]")
    .replace("--max-num-batched-tokens=16384", "--chunked-prefill-size=16384")
)
PICKED = (
    VLLM.replace(
        'router: {image: "registry.example.com/vllm-router:0.1.17", replicas: 2, args: [--policy, round_robin]}',
        'sidecar: {image: "ghcr.io/llm-d/llm-d-routing-sidecar:v0.8.0", args: [--max-idle-conns-per-host=512]}',
    ).replace("maxLength: 8192", "endpointPicker: {service: chat-epp, pods: {app: chat-epp}}")
    + "  balance: gateway\n  expose: {host: chat.ai.example.com, paths: [/v1]}\n"
)
SEVERAL = SGLANG.replace("llm:\n", "llm:\n    machines: 2\n").replace("replicas: 3", "replicas: 1")
ROLLED = (
    PICKED.replace("{service: chat-epp, pods: {app: chat-epp}}", '{image: "registry.example.com/picker:v0.8.0"}')
    + "  rollout: {canary: {steps: [{percent: 25, pause: 1m}]}}\n"
)
CLUSTER = """  leaderWorkerSet: {}
  daemons: {serving: true}
  exposure:
    gateway: {name: public, namespace: gateways, inferencePools: true}
    proxies: [{namespace: envoy}]
    domains: [{name: ai.example.com}]
"""


def compiled(text: str, more: str = "") -> Compilation:
    head = b"metadata: {name: main}\nspec:\n"
    base = BASE["base/platform.yaml"].replace(head, head + (CLUSTER + more).encode())
    result = compile_tree(MemoryTree({"base.yaml": base, "spec.yaml": text.encode()}))
    assert [each for each in result.diagnostics if each.severity == "error"] == []
    return result


def objects(text: str) -> Objects:
    return {(m.kind, m.name): m.body for m in compiled(text).manifests if m.item.doc.file == "spec.yaml"}


def roles(found: Objects) -> dict[str, dict[str, Any]]:
    """The LeaderWorkerSets of the roles."""
    return {each["name"]: each["spec"] for each in found["DisaggregatedSet", "classifier"]["spec"]["roles"]}


def leader(found: Objects, role: str) -> dict[str, Any]:
    """The template of a role's pods that answer requests."""
    pattern = roles(found)[role]["leaderWorkerTemplate"]
    template: dict[str, Any] = pattern.get("leaderTemplate", pattern["workerTemplate"])
    return template


def server(found: Objects, role: str) -> dict[str, Any]:
    container: dict[str, Any] = leader(found, role)["spec"]["containers"][0]
    return container


def test_each_role_is_a_set_of_groups() -> None:
    found = objects(VLLM)
    assert not {"LeaderWorkerSet", "HorizontalPodAutoscaler"} & {kind for kind, _ in found}
    assert {name: groups["replicas"] for name, groups in roles(found).items()} == {"prefill": 2, "decode": 3}
    for groups in roles(found).values():
        assert groups["leaderWorkerTemplate"]["size"] == 1
        assert groups["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}
        rolling = groups["rolloutStrategy"]["rollingUpdateConfiguration"]
        assert (rolling["maxSurge"], rolling["maxUnavailable"], rolling["partition"]) == (1, 0, 0)
    assert server(found, "prefill")["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": "2"}
    assert server(found, "decode")["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": "4"}


def test_vllm_moves_prompts_by_nixl() -> None:
    found = objects(VLLM)
    for role, tensor, kv_role in (("prefill", 2, "kv_producer"), ("decode", 4, "kv_consumer")):
        args = server(found, role)["args"]
        # Versions of a model are told apart by the path, which both servers compare.
        assert args[:4] == [
            "/models/chat/2",
            "--served-model-name=chat",
            f"--tensor-parallel-size={tensor}",
            "--max-model-len=8192",
        ]
        (given,) = [each.partition("=")[2] for each in args if each.startswith("--kv-transfer-config=")]
        assert orjson.loads(given) == {
            "kv_connector": "NixlConnector",
            "kv_role": kv_role,
            "kv_load_failure_policy": "recompute",
        }
        env = {each["name"]: each for each in server(found, role)["env"]}
        assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        assert env["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"] == "5600"
    own = ["--enable-expert-parallel", "--max-num-batched-tokens=16384"]
    assert server(found, "prefill")["args"][-2:] == own
    assert server(found, "decode")["args"][-1] == own[0]


def test_sglang_has_a_mode_for_each_role() -> None:
    found = objects(SGLANG)
    for role in ("prefill", "decode"):
        args = server(found, role)["args"]
        assert f"--disaggregation-mode={role}" in args
        assert {"--disaggregation-transfer-backend=nixl", "--disaggregation-bootstrap-port=8998"} <= set(args)
    notes = [leader(found, role)["metadata"]["annotations"] for role in ("prefill", "decode")]
    assert [each.get("sglang.ai/bootstrap-port") for each in notes] == ["8998", None]


@pytest.mark.parametrize(
    ("text", "command", "mode", "port"),
    [
        (VLLM, ["vllm-router"], ["--vllm-pd-disaggregation", "--kv-connector=nixl"], 8000),
        (SGLANG, ["python3", "-m", "sglang_router.launch_router"], ["--pd-disaggregation"], 30000),
    ],
    ids=["vllm", "sglang"],
)
def test_clients_reach_the_router(text: str, command: list[str], mode: list[str], port: int) -> None:
    found = objects(text + "  expose: {host: chat.ai.example.com}\n")
    body = found["Deployment", "classifier-router"]["spec"]
    (container,) = body["template"]["spec"]["containers"]
    assert (body["replicas"], container["command"], container["args"][: len(mode)]) == (2, command, mode)
    assert container["args"][-2:] == ["--policy", "round_robin"]
    assert {f"--service-discovery-port={port}", f"--port={port}"} <= set(container["args"])
    assert container["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": port}
    select = found["Service", "classifier"]["spec"]["selector"]
    assert select.items() <= body["template"]["metadata"]["labels"].items()
    for _, template in templates_of(found["DisaggregatedSet", "classifier"]):
        assert not select.items() <= template["metadata"]["labels"].items()
    assert ("Service", "classifier-headless") not in found
    (rule,) = found["HTTPRoute", "classifier"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "classifier", "port": port}]


def test_the_router_may_only_watch_pods() -> None:
    found = objects(VLLM)
    assert found["Role", "classifier-router"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    subject = {"kind": "ServiceAccount", "name": "classifier-router", "namespace": "vision"}
    assert found["RoleBinding", "classifier-router"]["subjects"] == [subject]
    pod = found["Deployment", "classifier-router"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("classifier-router", True)
    for _, template in templates_of(found["DisaggregatedSet", "classifier"]):
        assert template["spec"]["automountServiceAccountToken"] is False


def test_the_router_finds_the_pods_that_answer_requests() -> None:
    found = objects(SEVERAL.replace("replicas: 2\n", "replicas: 2\n      machines: 3\n", 1))
    (container,) = found["Deployment", "classifier-router"]["spec"]["template"]["spec"]["containers"]
    for role in ("prefill", "decode"):
        start = container["args"].index(f"--{role}-selector") + 1
        pairs = dict(each.split("=", 1) for each in container["args"][start : start + 4])
        chosen = [
            path[2:]
            for path, template in templates_of(found["DisaggregatedSet", "classifier"])
            if pairs.items() <= template["metadata"]["labels"].items()
        ]
        assert chosen == [(role, "spec", "leaderWorkerTemplate", "leaderTemplate")]


def test_groups_of_several_machines_are_gangs_in_either_role() -> None:
    text = SEVERAL.replace("replicas: 2\n", "replicas: 2\n      machines: 3\n", 1)
    found = objects(text)
    sizes = {name: groups["leaderWorkerTemplate"]["size"] for name, groups in roles(found).items()}
    assert sizes == {"prefill": 3, "decode": 2}
    for path, template in templates_of(found["DisaggregatedSet", "classifier"]):
        assert template["metadata"]["annotations"]["avactl.dev/gang-size"] == str(sizes[path[2]])
    # One stage over all GPUs of a replica: of 3 × 2 and of 2 × 4.
    assert "--tensor-parallel-size=6" in server(found, "prefill")["args"]
    assert "--tensor-parallel-size=8" in server(found, "decode")["args"]
    assert not any("pipeline" in each for role in sizes for each in server(found, role)["args"])


def test_a_picker_chooses_and_a_sidecar_obeys() -> None:
    found = objects(PICKED)
    assert not any("router" in name or kind == "Service" for kind, name in found)
    (sidecar,) = [each for each in leader(found, "decode")["spec"]["initContainers"] if each["name"] == "routing"]
    assert sidecar["args"] == [
        "--port=8000",
        "--vllm-port=8200",
        "--kv-connector=nixlv2",
        "--secure-proxy=false",
        "--max-idle-conns-per-host=512",
    ]
    assert sidecar["restartPolicy"] == "Always"
    decode, prefill = server(found, "decode"), server(found, "prefill")
    assert "--port=8200" in decode["args"]
    assert "--port=8000" in prefill["args"]
    # Not the sidecar's port, which answers although the server has stopped.
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert [decode[each]["httpGet"]["port"] for each in probes] == [8200] * 3
    assert [prefill[each]["httpGet"]["port"] for each in probes] == [8000] * 3
    # The sidecar has the name of the port by which metrics are read, and passes these requests on.
    assert ([each["name"] for each in decode["ports"]], sidecar["ports"][0]["name"]) == (["server"], "http")
    assert leader(found, "decode")["metadata"]["annotations"]["prometheus.io/port"] == "8000"
    select = found["InferencePool", "classifier"]["spec"]["selector"]["matchLabels"].items()
    found_roles = {
        template["metadata"]["labels"]["llm-d.ai/role"]
        for _, template in templates_of(found["DisaggregatedSet", "classifier"])
        if select <= template["metadata"]["labels"].items()
    }
    assert found_roles == {"prefill", "decode"}
    assert found["InferencePool", "classifier"]["spec"]["targetPorts"] == [{"number": 8000}]
    policy = found["NetworkPolicy", "classifier"]["spec"]["ingress"]
    assert {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy"}}} in policy[1]["from"]


def test_only_the_router_is_open_to_other_teams() -> None:
    found = objects(VLLM + "  exposeTo: [other]\n  expose: {host: chat.ai.example.com}\n" + OTHER)
    assert len(found["NetworkPolicy", "classifier"]["spec"]["ingress"]) == 1
    rules = found["NetworkPolicy", "classifier-router"]["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == [[8000, 29000], [8000], [8000]]


OTHER = """---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: other}
spec: {members: {groups: [other]}}
"""


def test_the_budget_protects_all_pods() -> None:
    found = objects(SEVERAL)
    budget = found["PodDisruptionBudget", "classifier"]["spec"]
    everyone = [template for _, template in templates_of(found["DisaggregatedSet", "classifier"])]
    for template in (*everyone, found["Deployment", "classifier-router"]["spec"]["template"]):
        assert budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_quota_graph_and_plan_count_both_roles() -> None:
    result = compiled(VLLM)
    item = result.program.get("ServingDeployment", "classifier", "vision")
    hooks = registry.get_kind("ServingDeployment").workload
    assert hooks is not None
    counted = [(role.least, role.most, role.compute.gpus) for role in hooks.roles(item)]
    assert counted == [(3, 3, 4), (2, 2, 2), (2, 2, 0)]
    assert hooks.summary(item).endswith("5 pods")
    facts = registry.get_kind("ServingDeployment").facts(item, result.program)
    assert (facts["replicas"], facts["prefill"], facts["GPUs"]) == (3, 2, "12 V100 + 4 V100")
    found = find_workloads(result.manifests, "main")
    for role, count in (("prefill", 2), ("decode", 3)):
        assert found[ObjectKey(KINDS[ROLES], ROLES, "vision", f"classifier-{role}")].count() == count
    requests = [role.compute for role in hooks.roles(compiled(PICKED).program.get(*item.key[:1], item.name, "vision"))]
    assert (requests[0].cpu, requests[0].memory) == ("9000m", str(65 * 2**30))


def test_all_templates_are_seen_everywhere() -> None:
    body = objects(SEVERAL)["DisaggregatedSet", "classifier"]
    paths = [path for path, _ in templates_of(body)]
    assert paths == [
        ("spec", "roles", role, "spec", "leaderWorkerTemplate", key)
        for role in ("prefill", "decode")
        for key in ("leaderTemplate", "workerTemplate")
    ]
    assert [groups_at(body, path)["replicas"] for path in paths] == [2, 2, 1, 1]
    assert len(list(nested_pods(body))) == 4
    assert ObjectKey("", "ServiceAccount", "vision", "avactl-run") in dependencies(body)
    for path in paths:
        change = ValueChange((*path, "spec", "nodeName"), "changed", "a", "b")
        assert classify_change("DisaggregatedSet", change, body)[0] is POD_RESTART
    change = ValueChange(("spec", "roles", "decode", "spec", "replicas"), "changed", 3, 4)
    assert classify_change("DisaggregatedSet", change, body)[0] is IN_PLACE


def test_the_diff_says_when_versions_mix() -> None:
    """Only vLLM's servers compare the models; SGLang's would continue what another version has read."""
    effects = [ObjectEffect("DisaggregatedSet", "classifier", False, True, False)]
    for text, said in ((VLLM, "both roles are replaced step by step"), (SGLANG, "may continue prompts")):
        old, new = (
            compiled(each).program.get("ServingDeployment", "classifier", "vision")
            for each in (text, text.replace('version: "2"', 'version: "3"'))
        )
        phrase = registry.get_kind("ServingDeployment").impact(old, new, effects)
        assert phrase is not None
        assert said in phrase
    assert registry.get_kind("ServingDeployment").impact(old, new, []) is None


def _sets(text: str) -> dict[str, dict[str, Any]]:
    return {name: body for (kind, name), body in objects(text).items() if kind == "LeaderWorkerSet"}


def _versions(text: str) -> set[str]:
    return {
        template["metadata"]["labels"]["avactl.dev/version"]
        for body in _sets(text).values()
        for _, template in templates_of(body)
    }


def test_with_a_canary_each_role_is_a_set_that_nothing_replaces() -> None:
    found = objects(ROLLED)
    assert "DisaggregatedSet" not in {kind for kind, _ in found}
    decode, prefill = (found["LeaderWorkerSet", name] for name in ("classifier", "classifier-prefill"))
    assert (decode["spec"]["replicas"], prefill["spec"]["replicas"]) == (3, 2)
    for body in (decode, prefill):
        # The daemon holds the partition; without it, no engine reverts that.
        assert "partition" not in body["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    config = load(RolloutConfig, decode["metadata"]["annotations"]["avactl.dev/rollout"])
    assert (config.roles, config.pools) == (("classifier-prefill",), ("classifier", "classifier-alt"))
    assert prefill["metadata"]["annotations"]["avactl.dev/rollout-with"] == "classifier"
    assert "avactl.dev/rollout" not in prefill["metadata"]["annotations"]


def test_the_pods_of_both_roles_have_one_version() -> None:
    (version,) = _versions(ROLLED)
    assert _versions(ROLLED.replace("replicas: 3", "replicas: 4").replace("replicas: 2", "replicas: 1")) == {version}
    for changed in (
        ROLLED.replace("--max-num-batched-tokens=16384", "--max-num-batched-tokens=8192"),
        ROLLED.replace("--enable-expert-parallel", "--enforce-eager"),
    ):
        (other,) = _versions(changed)
        assert other != version


def test_the_diff_says_that_roles_are_rolled_out_or_stop() -> None:
    rolling, canary, newer = (
        next(each for each in compiled(text).program.of("ServingDeployment"))
        for text in (PICKED, ROLLED, ROLLED.replace('version: "2"', 'version: "3"'))
    )
    impact = registry.get_kind("ServingDeployment").impact
    for old, new in ((rolling, canary), (canary, rolling)):
        assert str(impact(old, new, [])).startswith("the pods of both roles are replaced at once")
    assert impact(canary, newer, []) is None
    for body in _sets(ROLLED).values():
        change = ValueChange(("spec", "leaderWorkerTemplate", "size"), "changed", 1, 2)
        assert classify_change("LeaderWorkerSet", change, body) == (POD_RESTART, "canary")


def test_alerts_watch_both_roles() -> None:
    result = compiled(VLLM + '  notify: {email: ["a@example.com"]}\n', "  monitoring: {notifications: true}\n")
    rule = next(m for m in result.manifests if m.kind == "PrometheusRule" and m.name == "classifier-notify")
    assert 'statefulset=~"classifier-[0-9a-f]+-(prefill|decode)"' in str(rule.body)


def test_doctor_says_that_the_controller_is_missing() -> None:
    need = needs_of(compiled(VLLM), "main")
    assert need.kinds["disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"] == {"vision"}
    found = [each for each in check(need, Live(version="1.36.0"), rights=False) if "DisaggregatedSet" in each.message]
    assert [each.remedy for each in found] == ["install LeaderWorkerSet 0.9 or newer (sigs.k8s.io/lws)"]


@pytest.mark.parametrize(
    "text", [VLLM, SGLANG, SEVERAL, PICKED, ROLLED], ids=["vllm", "sglang", "several", "picked", "rolled"]
)
def test_the_api_server_takes_every_object(text: str, kube: KubeClient, namespace: str) -> None:
    for define in (define_groups, define_routes, define_pools):
        define(kube)
    assert api_server_says(objects(text), kube, namespace) == []
