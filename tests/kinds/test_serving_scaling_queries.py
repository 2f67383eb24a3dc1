"""The autoscaler's queries: compiled PromQL, evaluated over what Prometheus has, and Kubernetes' formula over rollouts.

The formula is that of `pkg/controller/podautoscaler/replica_calculator.go` of Kubernetes 1.36.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import ceil
from typing import Any

import promql_parser
import pytest

from avactl.daemons.serving.sizes import Sizes, step_sizes
from avactl.kinds.serving.runtime import runtimes
from avactl.program.manifest import templates_of
from tests.kinds.test_serving_autoscaling import METRICS, compiled, scaler
from tests.kinds.test_serving_models import SGLANG, VLLM

COMPARISONS = {">": operator.gt, "<": operator.lt, "==": operator.eq, ">=": operator.ge}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {"*": operator.mul, "/": operator.truediv}


def evaluate(expression: Any, series: dict[str, float]) -> float | None:
    """Return the only element of a result without labels; None if it is empty. `series`: values of the parts that read
    series, by what they are."""
    kind = type(expression).__name__
    if kind == "ParenExpr":
        return evaluate(expression.expr, series)
    if kind == "NumberLiteral":
        return float(expression.val)
    if kind == "BinaryExpr":
        left, right, op = evaluate(expression.lhs, series), evaluate(expression.rhs, series), str(expression.op)
        if op == "or":
            return left if left is not None else right
        if left is None or right is None:
            return None
        if op in COMPARISONS:
            return left if COMPARISONS[op](left, right) else None
        return ARITHMETIC[op](left, right)
    text = "".join(expression.prettify().split())
    if text.startswith("clamp_max("):
        value = evaluate(expression.args[0], series)
        return value if value is None or value != value else min(value, float(expression.args[1].val))
    if text.startswith("histogram_quantile("):
        return series.get("latency")
    if text.startswith("count(sumby(pod)"):
        return series.get("serving")
    if text.startswith("count(up{"):
        return series.get("up")
    if text.startswith("max(kube_horizontalpodautoscaler_status_current_replicas{"):
        return series.get("replicas")
    assert text.startswith("sum("), text
    return series.get("sum")


def triggers(text: str, rollout: str = "rolling") -> dict[str, dict[str, Any]]:
    result = compiled(text + METRICS)
    if rollout != "rolling":
        way = {"blueGreen": "{}", "canary": "{traffic: replicas, steps: [{percent: 50}]}"}[rollout]
        result = compiled(
            f"{text}{METRICS}  rollout: {{{rollout}: {way}}}\n",
            "  daemons: {serving: true, metricsFrom: [monitoring]}\n",
        )
    return {each["name"]: each for each in scaler(result)["triggers"]}


def value_of(trigger: dict[str, Any], **series: float) -> float | None:
    return evaluate(promql_parser.parse(trigger["metadata"]["query"]), series)


def desired(trigger: dict[str, Any], value: float, replicas: int, status_replicas: int, ready: int) -> int:
    """Return the replicas that Kubernetes' autoscaler wants."""
    ratio = value / float(trigger["metadata"]["threshold"])
    if trigger["metricType"] == "Value":
        return replicas if 0.9 <= ratio <= 1.1 else ceil(ratio * ready - 1e-9)
    if status_replicas and 0.9 <= ratio / status_replicas <= 1.1:
        return status_replicas
    return ceil(ratio - 1e-9)


def pods_of(rollout: str, replicas: int) -> tuple[Sizes, int, int]:
    """Return the pods of both versions at their most, those that answer requests, and `status.replicas`."""
    if rollout == "blueGreen":
        return Sizes(replicas, replicas), replicas, 0
    if rollout == "canary":
        sizes = step_sizes(replicas, 50, by_replicas=False, in_place=False)
        return sizes, sum(sizes), 0
    return Sizes(replicas, 1), replicas + 1, replicas + 1  # rolling, with one pod of surge


@pytest.mark.parametrize("rollout", ["blueGreen", "canary", "rolling"])
@pytest.mark.parametrize("text", [VLLM, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("name", ["queue", "running", "tokens", "firstToken", "perToken"])
def test_a_rollout_at_constant_load_adds_no_replicas_but_its_surge(name: str, text: str, rollout: str) -> None:
    trigger, latencies = triggers(text, rollout)[name], {"firstToken": 1.5, "perToken": 0.05}
    for begun in (1, 2, 3, 7, 16):
        for percent in (0.4, 0.6, 0.8, 0.95, 1.0, 1.05):
            replicas = begun
            for _ in range(12):
                sizes, serving, status = pods_of(rollout, replicas)
                series: dict[str, float] = {"replicas": replicas, "serving": serving, "up": sum(sizes)}
                if name in latencies:
                    series |= {"latency": percent * latencies[name], "sum": 5.0}
                else:
                    target = float(trigger["metadata"]["threshold"])
                    series["sum"] = percent * target * begun
                value = value_of(trigger, **series)
                assert value is not None
                replicas = max(1, desired(trigger, value, replicas, status, sum(sizes)))
            # A sum within the tolerance may have the pods of a load that is 10% higher.
            most = begun if name in latencies else max(begun + 1, ceil(percent * begun / 0.9))
            assert replicas <= most, (begun, percent)


def test_groups_of_machines_are_scaled_by_their_leaders() -> None:
    """A `Value` is multiplied by the ready pods that the LeaderWorkerSet's `hpaPodSelector` matches, the leaders: the
    query must divide by these, too, and not by all pods of a group."""
    cluster = "  daemons: {metricsFrom: [monitoring]}\n  leaderWorkerSet: {}\n"
    text = VLLM.replace("  llm:\n", "  llm:\n    machines: 2\n")
    result = compiled(text + METRICS, cluster)
    found = {each["name"]: each for each in scaler(result)["triggers"]}
    assert found == triggers(VLLM)
    monitor = next(each for each in result.manifests if each.kind == "PodMonitor").body["spec"]
    groups = next(each for each in result.manifests if each.kind == "LeaderWorkerSet").body
    leader, worker = (template["metadata"]["labels"].items() for _, template in templates_of(groups))
    read = monitor["selector"]["matchLabels"].items()
    assert (read <= leader, read <= worker) == (True, False)
    # Stuck in a roll-out whose two groups of surge never start, or serve: the bounds hold, and nothing grows.
    latency = found["firstToken"]
    for begun in (1, 2, 5, 12):
        for percent in (0.4, 0.8, 0.95, 1.05):
            for leaders in (begun, begun + min(2, begun)):
                value = value_of(latency, replicas=begun, latency=percent * 1.5, sum=5.0, serving=leaders, up=leaders)
                assert value is not None
                assert desired(latency, value, begun, begun + 2, leaders) <= begun
            value = value_of(latency, replicas=begun, latency=3.0, sum=5.0, serving=begun, up=begun)
            assert value is not None
            assert desired(latency, value, begun, begun, begun) == 2 * begun


@pytest.mark.parametrize("text", [VLLM, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("name", ["firstToken", "perToken"])
def test_a_latency_above_its_target_adds_replicas_by_the_pods_that_answer(name: str, text: str) -> None:
    trigger, target = triggers(text, "blueGreen")[name], {"firstToken": 1.5, "perToken": 0.05}[name]
    # Six replicas, of which four still start; and both versions of a blue-green rollout, of which one answers.
    for replicas, serving in ((6, 2), (2, 2), (2, 4)):
        value = value_of(trigger, latency=1.5 * target, replicas=replicas, serving=serving, sum=5.0)
        assert value == pytest.approx(1.5 * 2)


@pytest.mark.parametrize(
    ("text", "name"),
    [(text, name) for text in (VLLM, SGLANG) for name in ("queue", "running", "tokens", "firstToken", "perToken")],
)
def test_lost_scrape_targets_are_not_an_idle_service(text: str, name: str) -> None:
    trigger = triggers(text)[name]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert value_of(trigger, replicas=4.0) is None
    # Without kube-state-metrics, a latency of a service with requests is no zero.
    if name in ("firstToken", "perToken"):
        assert value_of(trigger, latency=0.01, serving=4.0, sum=5.0, up=4.0) is None


@pytest.mark.parametrize("text", [VLLM, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("name", ["firstToken", "perToken"])
def test_a_service_without_requests_is_idle(text: str, name: str) -> None:
    assert value_of(triggers(text)[name], latency=float("nan"), replicas=4.0, sum=0.0, up=4.0) == 0


def test_a_server_before_its_first_request_is_idle() -> None:
    for name in ("tokens", "firstToken", "perToken"):
        assert value_of(triggers(SGLANG)[name], replicas=4.0, up=4.0) == 0


def test_no_metric_of_a_runtime_takes_missing_series_for_zero() -> None:
    for runtime in runtimes().values():
        for metric in runtime.metrics.values():
            replicas = 'max(kube_horizontalpodautoscaler_status_current_replicas{namespace="vision"})'
            query = metric.fill_in('{namespace="vision"}', 1.0, replicas)
            assert "vector(0)" not in query
            assert evaluate(promql_parser.parse(query), {"replicas": 4.0}) is None
