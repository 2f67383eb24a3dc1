"""ServingDeployment: no pods while nobody uses a service, and the first one by requests that are counted elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest

from avactl.base.object_identity import ObjectKey
from avactl.change.diff.compare import compare
from avactl.change.plan.model import PlanVerdict
from avactl.change.plan.planner import make_plan
from avactl.change.plan.workloads import find_workloads
from tests.kinds.compiling import DIGEST, body, codes, compiled, unchecked

PLATFORM = """
kind: Cluster
metadata: {name: main}
spec:
  daemons: {serving: true, metricsFrom: [monitoring]}
  images: {avactl: registry.example.com/avactlDIGEST}
  monitoring: {prometheus: "http://prometheus.monitoring:9090"}
  exposure:
    gateway:
      name: public
      namespace: gateways
      inferencePools: true
      queued: 'sum(held{namespace="{{namespace}}",pool="{{pool}}"})'
    requests: 'sum(rate(requests_total{route=~"{{namespace}}/{{routes}}"}[2m]))'
    proxies: [{namespace: gateways}]
    domains: [{name: ai.example.com}]
---
kind: NodePool
metadata: {name: h100}
spec: {cluster: main, machineType: h100-sxm-8, count: 1}
---
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
---
""".replace("DIGEST", DIGEST)
FAST = """
kind: ServingDeployment
metadata: {name: web, team: vision}
spec:
  model: {name: digits, version: "1"}
  runtime: {name: custom, image: "registry.example.com/server:1", port: 8080}
  probe: {path: /health, startup: 1m}
  resources: {cpu: 1, memory: 1Gi, gpus: 2}
  expose: {host: web.ai.example.com}
  replicas: {min: 0, max: 3}
"""
LLM = """
kind: ServingDeployment
metadata: {name: chat, team: vision}
spec:
  model: {name: chat, version: "1", path: /opt/chat}
  runtime: {name: vllm, image: "vllm/vllm-openai:v0.33.0"}
  resources: {cpu: 8, memory: 64Gi, gpus: 4}
  llm: {endpointPicker: {service: chat-epp, pods: {app: chat-epp}}}
  expose: {host: chat.ai.example.com}
  replicas: {min: 0, max: 2, idle: 90m, metrics: {running: 16}}
"""


def scaler(text: str, name: str = "web") -> dict[str, Any]:
    spec: dict[str, Any] = body(compiled(PLATFORM + text), "ScaledObject", name, "vision")["spec"]
    return spec


def triggers(text: str, name: str = "web") -> dict[str, Any]:
    return {each.get("name", each["type"]): each for each in scaler(text, name)["triggers"]}


def test_the_gateway_starts_the_first_pod_and_the_cpu_the_others() -> None:
    spec, found = scaler(FAST), triggers(FAST)
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["cooldownPeriod"]) == (0, 3, 900)
    assert spec["initialCooldownPeriod"] == 900, "a new service would lose its pod at once"
    # Without an answer of Prometheus KEDA leaves the service as it is, unless there is a fallback.
    assert "fallback" not in spec
    assert list(found) == ["requests", "cpu"]
    assert found["requests"]["metadata"] == {
        "serverAddress": "http://prometheus.monitoring:9090",
        "query": 'sum(rate(requests_total{route=~"vision/(web|web-rollout)"}[2m]))',
        "threshold": "1000000",
    }
    assert list(triggers(FAST.replace("max: 3", "max: 1"))) == ["requests"], "nothing to scale by CPU"
    assert "ScaledObject" not in {each.kind for each in compiled(PLATFORM + FAST.replace("min: 0", "min: 1")).manifests}


@pytest.mark.parametrize("rollout", ["{rolling: {}}", "{canary: {steps: [{percent: 5}]}}", "{blueGreen: {}}"])
def test_the_query_counts_the_requests_of_the_route_that_there_is(rollout: str) -> None:
    text = f"{FAST}  rollout: {rollout}\n"
    (route,) = [each.name for each in compiled(PLATFORM + text).manifests if each.kind == "HTTPRoute"]
    pattern = re.search(r'route=~"([^"]*)"', triggers(text)["requests"]["metadata"]["query"])
    assert pattern is not None
    assert re.fullmatch(pattern[1], f"vision/{route}")
    assert not re.fullmatch(pattern[1], "vision/web-2")


def test_an_endpoint_picker_holds_requests() -> None:
    found = triggers(LLM, "chat")
    assert list(found) == ["requests", "queued", "running"]
    assert found["queued"]["metadata"]["query"] == 'sum(held{namespace="vision",pool="chat"})'
    assert scaler(LLM, "chat")["cooldownPeriod"] == 5400
    # A picker that holds none lets clients wait for the start.
    line = """      queued: 'sum(held{namespace="{{namespace}}",pool="{{pool}}"})'\n"""
    assert codes(unchecked(PLATFORM.replace(line, "") + LLM)) == ["slow-start"]
    # It is enough to start the first pod.
    line = """    requests: 'sum(rate(requests_total{route=~"{{namespace}}/{{routes}}"}[2m]))'\n"""
    result = compiled(PLATFORM.replace(line, "") + LLM)
    names = [each["name"] for each in body(result, "ScaledObject", "chat", "vision")["spec"]["triggers"]]
    assert names == ["queued", "running"]
    assert codes(unchecked(PLATFORM.replace(line, "") + FAST)) == ["missing-monitoring"]


@pytest.mark.parametrize(
    ("probes", "slow"),
    [
        ("probe: {path: /health}", True),
        ("probe: {path: /health, startup: 301s}", True),
        ("probes: {readiness: {path: /health}}", True),
        ("probes: {startup: {path: /health, period: 5s, failures: 60}, readiness: {path: /health}}", False),
    ],
)
def test_a_slow_start_is_told(probes: str, slow: bool) -> None:
    result = unchecked(PLATFORM + FAST.replace("probe: {path: /health, startup: 1m}", probes))
    assert codes(result) == (["slow-start"] if slow else [])


def test_a_service_without_pods_must_be_able_to_have_one() -> None:
    assert codes(unchecked(PLATFORM + FAST.replace("gpus: 2", "gpus: 16"))) == ["pod-never-fits"]
    quota = "---\nkind: Quota\nmetadata: {name: gpus, team: vision}\nspec: {gpus: [{gpu: H100, guaranteed: 4}]}\n"
    both = f"{FAST}---{FAST.replace('web', 'other')}".replace("max: 3", "max: 2")
    assert codes(unchecked(PLATFORM + both + quota)) == [], "one at a time"
    single = FAST.replace("max: 3", "max: 1") + "  maxSurge: 0\n"
    assert codes(unchecked(PLATFORM + single.replace("gpus: 2", "gpus: 6") + quota)) == ["quota-exceeded"]
    memory = "---\nkind: Quota\nmetadata: {name: gpus, team: vision}\nspec: {memory: 512Mi}\n"
    assert codes(unchecked(PLATFORM + FAST.replace(", gpus: 2", "") + memory)) == ["quota-exceeded"]


def test_plans_and_diffs_count_no_pods() -> None:
    before, after = compiled(PLATFORM + FAST.replace("min: 0", "min: 2")), compiled(PLATFORM + FAST)
    work = find_workloads(after.manifests, "main")[ObjectKey("apps", "Deployment", "vision", "web")]
    assert (work.count(), work.count(2)) == (0, 2)
    (service,) = [each for each in compare(before, after).intents if each.key.name == "web"]
    facts = {change.name: (change.old, change.new) for change in service.facts}
    assert facts["replicas"] == ("2 to 3", "0 to 3")
    assert facts["GPUs"] == ("4 to 6 H100", "0 to 6 H100")


def test_a_new_service_has_its_first_pod_at_once() -> None:
    def verdicts(base: str, head: str) -> list[tuple[PlanVerdict, int]]:
        entries = make_plan(compiled(PLATFORM + base), compiled(PLATFORM + head), "main").entries
        return [(each.verdict, each.pods) for each in entries if each.owner.name == "web"]

    assert verdicts(LLM, LLM + "---" + FAST) == [(PlanVerdict.STARTS, 1)]
    assert verdicts(FAST, FAST.replace("server:1", "server:2")) == [(PlanVerdict.STOPPED, 0)]
