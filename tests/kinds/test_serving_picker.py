"""ServingDeployment: requests of the gateway by an endpoint picker."""

from __future__ import annotations

from typing import Any

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live
from avactl.apply.doctor.model import CheckState
from avactl.apply.doctor.needs import needs_of
from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.definitions import define_pools, define_routes
from tests.kinds.on_base import Objects, api_server_says
from tests.kinds.test_serving import HEAD
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

EXPOSURE = b"""  leaderWorkerSet: {}
  exposure:
    gateway: {name: public, namespace: gateways, inferencePools: true}
    proxies: [{namespace: envoy}]
    domains: [{name: ai.example.com}]
"""
SPEC = f"""{HEAD}
  model: {{name: chat, version: "1", path: /opt/chat}}
  runtime: {{name: vllm, image: "vllm/vllm-openai:v0.33.0"}}
  resources: {{cpu: 8, memory: 64Gi, gpus: 4, sharedMemory: 16Gi}}
  llm: {{endpointPicker: {{service: chat-epp, pods: {{app: chat-epp}}}}}}
  balance: gateway
  expose: {{host: chat.ai.example.com, paths: [/v1]}}
"""
SERVICE = ("Service", "vision", "chat-epp")


def compiled(text: str) -> Compilation:
    head = b"metadata: {name: main}\nspec:\n"
    base = BASE["base/platform.yaml"].replace(head, head + EXPOSURE)
    result = compile_tree(MemoryTree({"base.yaml": base, "spec.yaml": text.encode()}))
    assert [each for each in result.diagnostics if each.severity == "error"] == []
    return result


def objects(text: str) -> Objects:
    return {(m.kind, m.name): m.body for m in compiled(text).manifests if m.item.doc.file == "spec.yaml"}


def pool(found: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = found["InferencePool", "classifier"]["spec"]
    return spec


def test_the_route_leads_to_a_pool_of_the_pods() -> None:
    found = objects(SPEC)
    (rule,) = found["HTTPRoute", "classifier"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert backend == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "classifier"}
    labels = found["Deployment", "classifier"]["spec"]["template"]["metadata"]["labels"]
    assert pool(found)["selector"]["matchLabels"].items() <= labels.items()
    assert pool(found)["targetPorts"] == [{"number": 8000}]
    reference = {"name": "chat-epp", "port": {"number": 9002}, "failureMode": "FailClose"}
    assert pool(found)["endpointPickerRef"] == reference


def test_the_gateway_may_ask_the_picker() -> None:
    found = objects(SPEC.replace("service: chat-epp", "service: chat-epp, port: 9100"))
    spec = found["NetworkPolicy", "classifier-picker"]["spec"]
    assert spec["podSelector"] == {"matchLabels": {"app": "chat-epp"}}
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9100}]
    (source,) = rule["from"]
    assert source["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "envoy"}}


def test_a_gateway_may_choose_itself_without_an_answer() -> None:
    text = SPEC.replace("service: chat-epp", "service: chat-epp, failOpen: true")
    assert pool(objects(text))["endpointPickerRef"]["failureMode"] == "FailOpen"


def test_only_leaders_of_groups_are_chosen() -> None:
    found = objects(SPEC.replace("llm: {", "llm: {machines: 2, "))
    groups = found["LeaderWorkerSet", "classifier"]["spec"]["leaderWorkerTemplate"]
    select = pool(found)["selector"]["matchLabels"].items()
    assert select <= groups["leaderTemplate"]["metadata"]["labels"].items()
    assert not select <= groups["workerTemplate"]["metadata"]["labels"].items()


def test_without_a_picker_the_route_leads_to_the_service() -> None:
    found = objects(SPEC.replace("  llm: {endpointPicker: {service: chat-epp, pods: {app: chat-epp}}}\n", ""))
    assert not any(kind == "InferencePool" for kind, _ in found)
    assert ("NetworkPolicy", "classifier-picker") not in found
    (rule,) = found["HTTPRoute", "classifier"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "classifier", "port": 8000}]


def test_doctor_looks_for_the_kind_and_the_picker() -> None:
    needs = needs_of(compiled(SPEC), "main")
    assert ("inference.networking.k8s.io/v1", "InferencePool") in needs.kinds
    assert [(each.kind, each.namespace, each.name) for each in needs.objects if each.kind == "Service"] == [SERVICE]
    missing = [each for each in check(needs, Live(version="1.36.0"), rights=False) if each.check == "services"]
    assert [(each.state, each.message) for each in missing] == [
        (CheckState.FAILED, "no Service vision/chat-epp; needed by ServingDeployment vision/classifier")
    ]
    there = Live(version="1.36.0", objects={SERVICE: frozenset()})
    (found,) = [each for each in check(needs, there, rights=False) if each.check == "services"]
    assert (found.state, found.message) == (CheckState.OK, "1 of 1 exist")


def test_the_api_server_takes_every_object(kube: KubeClient, namespace: str) -> None:
    define_routes(kube)
    define_pools(kube)
    assert api_server_says(objects(SPEC), kube, namespace) == []
