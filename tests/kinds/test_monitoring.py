"""Monitoring: what Prometheus reads, and that it gets through."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

from avactl.compiler import Compilation
from avactl.daemons.elastic import metrics as master_metrics
from avactl.kinds.cluster.daemons.monitoring import PANELS
from avactl.scheduler import metrics as scheduler_metrics
from tests.definitions import define_monitoring
from tests.kinds.compiling import DIGEST, apply, body, compiled, names
from tools.controlplane import KubeClient

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  daemons: {{scheduler: true, metricsFrom: [observability]}}
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
MONITORING
---
kind: Team
metadata: {{name: vision}}
---
kind: TrainingJob
metadata: {{name: train, team: vision}}
spec:
  strategy: elastic
  image: registry.example.com/train:1
  command: [python, train.py]
  workers: {{min: 1, max: 3}}
  checkpoint: {{path: s3://vision/ckpt}}
---
kind: ServingDeployment
metadata: {{name: triton, team: vision}}
spec:
  model: {{name: detector, version: "3"}}
  runtime: {{name: triton, image: "registry.example.com/triton:24.05"}}
---
kind: ServingDeployment
metadata: {{name: tf, team: vision}}
spec:
  model: {{name: resnet, version: "3"}}
  runtime: {{name: tensorflowServing, image: "tensorflow/serving:2.19.1"}}
"""


def platform(monitoring: str = "") -> Compilation:
    line = f"  monitoring: {monitoring}" if monitoring else ""
    return compiled(PLATFORM.replace("MONITORING\n", f"{line}\n" if line else ""))


def admits(policy: dict[str, Any], namespace: str, port: int) -> bool:
    return any(
        namespace in expression["values"] and {"protocol": "TCP", "port": port} in rule["ports"]
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        for expression in peer["namespaceSelector"].get("matchExpressions", ())
    )


def test_each_monitor_selects_pods_and_a_port_that_they_have() -> None:
    result = platform("{labels: {release: prometheus}, interval: 1m}")
    monitors = [manifest for manifest in result.manifests if manifest.kind == "PodMonitor"]
    assert sorted(f"{each.namespace}/{each.name}" for each in monitors) == [
        "avactl-system/avactl-daemons",
        "vision/tf",
        "vision/train-master",
        "vision/triton",
    ]
    for monitor in monitors:
        assert monitor.body["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor.body["spec"]["podMetricsEndpoints"]
        assert endpoint["interval"] == "60s"
        wanted = monitor.body["spec"]["selector"]["matchLabels"].items()
        templates = [
            manifest.body["spec"]["template"]
            for manifest in result.manifests
            if manifest.kind in ("Deployment", "Job") and manifest.namespace == monitor.namespace
        ]
        selected = [each for each in templates if wanted <= each["metadata"]["labels"].items()]
        assert len(selected) == 1
        spec = selected[0]["spec"]
        ports = [
            port["name"]
            for container in (*spec["containers"], *spec.get("initContainers", ()))
            for port in container.get("ports", ())
        ]
        assert endpoint["port"] in ports


def test_prometheus_gets_through_the_default_deny_and_nobody_else_does() -> None:
    before, after = platform(), platform("{}")
    for name, port in (("triton", 8002), ("tf", 8501)):
        assert not admits(body(before, "NetworkPolicy", name, "vision"), "observability", port)
        assert admits(body(after, "NetworkPolicy", name, "vision"), "observability", port)
    assert not admits(body(after, "NetworkPolicy", "triton", "vision"), "observability", 8000)
    assert admits(body(after, "NetworkPolicy", "train-master-metrics", "vision"), "observability", 8080)
    assert "vision/train-master-metrics" not in names(before, "NetworkPolicy")
    assert names(before, "PodMonitor") == []
    assert names(platform("{prometheusOperator: false}"), "PodMonitor") == []


def _known() -> set[str]:
    found = {metric.name for metric in scheduler_metrics.REGISTRY.collect()}
    # The master's are made when they are read, and only of a job.
    return found | set(re.findall(r'"(avactl_master_\w+)"', inspect.getsource(master_metrics)))


def test_panels_show_metrics_that_exist() -> None:
    known = _known()
    for panel in PANELS:
        for query in panel.queries.values():
            for name in re.findall(r"avactl_\w+", query):
                assert re.sub(r"_(total|bucket)$", "", name) in known, name
    result = platform("{dashboards: true}")
    board = body(result, "ConfigMap", "avactl-scheduler-dashboard", "avactl-system")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert len(json.loads(board["data"]["avactl-scheduler.json"])["panels"]) == len(PANELS)
    assert "avactl-system/avactl-scheduler-dashboard" not in names(platform("{}"), "ConfigMap")


def test_the_api_server_takes_every_object(kube: KubeClient) -> None:
    define_monitoring(kube)
    applied = apply(kube, platform("{labels: {release: prometheus}, dashboards: true}").manifests)
    assert [each["kind"] for each in applied].count("PodMonitor") == 4
