"""ServingDeployment: autoscaling on metrics of the server, by KEDA."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.apply.doctor.needs import needs_of
from avactl.base.object_identity import ObjectKey
from avactl.change.plan.workloads import find_workloads
from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics import Diagnostic
from avactl.spec.repository.tree import MemoryTree
from tests.definitions import define_scaling
from tests.kinds.test_serving import CUSTOM, TRITON
from tests.kinds.test_serving_models import SGLANG, VLLM
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

METRICS = (
    "  replicas: {min: 2, max: 6, metrics: {queue: 4, running: 32, tokens: 900, firstToken: 1500ms, perToken: 50ms}}\n"
)


def compiled(text: str, daemons: str = "  daemons: {metricsFrom: [monitoring]}\n") -> Compilation:
    head = b"metadata: {name: main}\nspec:\n"
    monitoring = b'  monitoring: {prometheus: "http://prometheus.monitoring:9090"}\n'
    base = BASE["base/platform.yaml"].replace(head, head + monitoring + daemons.encode())
    result = compile_tree(MemoryTree({"base.yaml": base, "spec.yaml": text.encode()}))
    assert [each for each in result.diagnostics if each.severity == "error"] == []
    return result


def errors(text: str) -> list[Diagnostic]:
    result = compile_tree(MemoryTree({"base.yaml": BASE["base/platform.yaml"], "spec.yaml": text.encode()}))
    return [each for each in result.diagnostics if each.severity == "error"]


def scaler(result: Compilation) -> dict[str, Any]:
    spec: dict[str, Any] = next(m for m in result.manifests if m.kind == "ScaledObject").body["spec"]
    return spec


QUERY = """  replicas:
    min: 2
    max: 6
    metrics:
      query:
        - name: rows
          averageValue: 0.002
          promql: 'sum(rate(rows_total{namespace="{{namespace}}",pod=~"{{pods}}"}[2m]))'
        - {name: wait, value: 12000000, promql: 'max(wait{namespace="vision"})'}
"""


@pytest.mark.parametrize("text", [TRITON, CUSTOM, VLLM], ids=["triton", "custom", "vllm"])
def test_servers_of_any_kind_scale_by_own_queries(text: str) -> None:
    rows, wait = scaler(compiled(text + QUERY))["triggers"]
    assert rows == {
        "type": "prometheus",
        "name": "query-rows",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": "http://prometheus.monitoring:9090",
            "query": 'sum(rate(rows_total{namespace="vision",pod=~"classifier-[a-z0-9]+-[a-z0-9]+"}[2m]))',
            "threshold": "0.002",
            "ignoreNullValues": "false",
        },
    }
    # Kubernetes multiplies a Value by the ready pods.
    assert (wait["name"], wait["metricType"], wait["metadata"]["threshold"]) == ("query-wait", "Value", "12000000")


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        ('namespace="{{namespace}}",', "", "foreign-metrics", "reads metrics of other teams"),
        ('namespace="vision"', 'namespace="ads"', "foreign-metrics", "reads metrics of other teams"),
        ("'sum(rate(", "'(rate(", "invalid-query", "a result for each pod"),
        ("pod=~", "pod=", "invalid-query", "is compared with a regular expression"),
        ("[2m]", "[{{interval}}]", "invalid-query", "`{{interval}}` is that of an analysis"),
        ("{{pods}}", "{{pod}}", "invalid-query", "illegal regex for {{pod}}"),
        ("name: wait", "name: rows", "duplicate-entry", "duplicate query `rows`"),
        ("averageValue: 0.002", "averageValue: 0", "invalid-value", "averageValue"),
        ("averageValue: 0.002", "maximum: 1", "unknown-key", "maximum"),
        ("value: 12000000, ", "", "invalid-value", "either `averageValue` or `value`"),
    ],
)
def test_own_queries_are_checked(old: str, new: str, code: str, said: str) -> None:
    assert old in QUERY
    found = errors(TRITON + QUERY.replace(old, new))
    assert any(each.code == code and said in each.message for each in found), found


@pytest.mark.parametrize("way", ["canary: {traffic: replicas, steps: [{percent: 50}]}", "blueGreen: {}"])
def test_both_versions_of_a_rollout_do_not_count_by_own_queries(way: str) -> None:
    text = f"{TRITON}{QUERY}  rollout: {{{way}}}\n"
    (found,) = [each for each in errors(text) if each.code == "conflicting-keys"]
    assert "`value` is multiplied by the ready pods" in found.message
    average = text.replace("value: 12000000", "averageValue: 12000000")
    assert [each for each in errors(average) if each.code == "conflicting-keys"] == []


@pytest.mark.parametrize(
    ("text", "waiting", "first"),
    [
        (VLLM, "vllm:num_requests_waiting", "vllm:time_to_first_token_seconds_bucket"),
        (SGLANG, "sglang:num_queue_reqs", "sglang:time_to_first_token_seconds_bucket"),
    ],
    ids=["vllm", "sglang"],
)
def test_language_models_scale_on_their_metrics(text: str, waiting: str, first: str) -> None:
    result = compiled(text + METRICS)
    assert [m for m in result.manifests if m.kind == "HorizontalPodAutoscaler"] == []
    deployment = next(m for m in result.manifests if (m.kind, m.name) == ("Deployment", "classifier"))
    assert "replicas" not in deployment.body["spec"]
    found = scaler(result)
    assert (found["minReplicaCount"], found["maxReplicaCount"]) == (2, 6)
    triggers = {trigger["name"]: trigger for trigger in found["triggers"]}
    assert list(triggers) == ["queue", "running", "tokens", "firstToken", "perToken"]
    pods = '{namespace="vision",app_kubernetes_io_instance="classifier"}'
    assert triggers["queue"] == {
        "type": "prometheus",
        "name": "queue",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": "http://prometheus.monitoring:9090",
            "query": f"sum({waiting}{pods})",
            "threshold": "4",
            "ignoreNullValues": "false",
        },
    }
    assert triggers["firstToken"]["metricType"] == "Value"
    assert triggers["firstToken"]["metadata"]["threshold"] == "1"
    assert "/ 1.5)" in triggers["firstToken"]["metadata"]["query"]
    assert f"rate({first}{pods}[2m])" in triggers["firstToken"]["metadata"]["query"]


def test_the_series_have_the_labels_that_are_asked_for() -> None:
    result = compiled(VLLM + METRICS)
    monitor = next(m for m in result.manifests if m.kind == "PodMonitor").body["spec"]
    assert "app.kubernetes.io/instance" in monitor["podTargetLabels"]
    assert monitor["podMetricsEndpoints"][0]["port"] == "http"


def test_the_cpu_may_be_one_of_the_metrics() -> None:
    result = compiled(TRITON + "  replicas: {min: 1, max: 2, cpuUtilization: 60, metrics: {queue: 8}}\n")
    assert scaler(result)["triggers"][1] == {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "60"}}


def test_plans_know_the_bounds() -> None:
    found = find_workloads(compiled(VLLM + METRICS).manifests, "main")
    work = found[ObjectKey("apps", "Deployment", "vision", "classifier")]
    assert (work.fewest, work.most) == (2, 6)


def test_doctor_asks_for_the_kind() -> None:
    assert ("keda.sh/v1alpha1", "ScaledObject") in needs_of(compiled(VLLM + METRICS), "main").kinds


@pytest.mark.parametrize("text", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_the_api_server_takes_it(text: str, kube: KubeClient, namespace: str) -> None:
    define_scaling(kube)
    body = next(m for m in compiled(text + METRICS).manifests if m.kind == "ScaledObject").body
    placed = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    assert kube.apply(placed).warnings == []
