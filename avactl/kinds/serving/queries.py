"""PromQL of servers' metrics, for the records of runtimes.

`error_rate` and `latency` compare the pods of two versions in a rollout, whose daemon fills in `{{pods}}`,
`{{namespace}}` and `{{interval}}`. `ScalingMetric` is what an autoscaler reads of all pods of a service.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.base.promql import QueryProblem
from avactl.diagnostics import Diagnostic
from avactl.program.program import Item
from avactl.spec.documents.document import Path

TOLERANCE = 0.1
"""Relative difference from the target at which Kubernetes' autoscaler leaves the replicas as they are, by default."""
_PODS = 'namespace="{{namespace}}",pod=~"{{pods}}"'


def query_diagnostic(item: Item[Any], name: str, problem: QueryProblem, path: Path) -> Diagnostic:
    """Return the diagnostic for a query of a spec; `path`: its PromQL."""
    code = "foreign-metrics" if problem.foreign else "invalid-query"
    return Diagnostic(code, f"query `{name}`: {problem.message}", item.span(*path), hint=problem.hint)


def rate(metric: str, more: str = "") -> str:
    """Return the rate of a counter in a rollout's pods; `more`: further matchers, each after a comma."""
    return f'rate({{__name__="{metric}",{_PODS}{more}}}[{{{{interval}}}}])'


def share(failed: str, total: str) -> str:
    """Return the share of failed requests, from their rate and that of all requests."""
    return f"(sum({failed}) or vector(0)) / (sum({total}) > 0)"


def share_of_failures(failed: str, succeeded: str, *, appears_late: bool = False) -> str:
    """Return the share of failed requests, from their rate and that of those that succeeded.

    `appears_late`: the server does not export the second metric before the first request that succeeds.
    """
    failures = f"(sum({failed}) or vector(0))"
    successes = f"(sum({succeeded}) or vector(0))" if appears_late else f"sum({succeeded})"
    return f"{failures} / ({successes} + {failures} > 0)"


def p99(histogram: str) -> str:
    """Return the 99th percentile of a histogram in a rollout's pods."""
    return f"histogram_quantile(0.99, sum by (le) ({rate(f'{histogram}_bucket')}))"


def mean(total: str, count: str) -> str:
    """Return the mean of a latency in a rollout's pods, from the counters of its sum and of requests."""
    return f"sum({rate(total)}) / (sum({rate(count)}) > 0)"


class ScalingMetric(NamedTuple):
    """A metric of a server, in PromQL. The result grows with the load and has a target for each pod."""

    query: str
    """`{pods}` stands for the selector of the service's pods, `{target}` for the target, `{replicas}` for the number of
    replicas that the autoscaler has set. No result: an error, because a lost scrape target is not an idle service."""
    is_ratio: bool
    """The query divides by the target."""

    def fill_in(self, pods: str, target: float, replicas: str) -> str:
        """Return the query for a service."""
        return self.query.replace("{pods}", pods).replace("{target}", f"{target:g}").replace("{replicas}", replicas)

    def threshold(self, target: float) -> float:
        """Return the result of the query for each pod at the target."""
        return 1 if self.is_ratio else target


def sum_of_pods(gauge: str, *, appears_late: bool = False) -> ScalingMetric:
    """Return the sum of a gauge. `appears_late`: the server does not export it before the first request."""
    return ScalingMetric(_zero_if_late(f"sum({gauge}{{pods}})", appears_late), False)


def rate_of_pods(counter: str, *, appears_late: bool = False) -> ScalingMetric:
    """Return the sum of a counter's rates. `appears_late` as for `sum_of_pods`."""
    return ScalingMetric(_zero_if_late(f"sum(rate({counter}{{pods}}[2m]))", appears_late), False)


def p95_of_service(histogram: str, *, appears_late: bool = False) -> ScalingMetric:
    """Return the 95th percentile of a histogram, relative to its target, times the replicas that answer requests.
    `appears_late` as for `sum_of_pods`.

    A latency alone (`metricType: Value`) would be multiplied by all ready pods that the selector of the scaled object
    matches. During a rollout these are the pods of both versions, and each added replica would add one to both.
    """
    ratio = f"(histogram_quantile(0.95, sum by (le) (rate({histogram}_bucket{{pods}}[2m]))) / {{target}})"
    # The autoscaler compares with `status.replicas`, which does not count the pods of a rollout: its tolerance has no
    # effect then. Without requests the ratio is NaN, which no comparison passes.
    tolerated = f"({ratio} > {1 + TOLERANCE:g} or clamp_max({ratio}, 1) >= 0)"
    # Pods that start do not answer yet: the load of those that do says how many more are needed. A version that is
    # only compared answers, too, but is no part of the replicas.
    serving = f"count(sum by (pod) (rate({histogram}_count{{pods}}[2m])) > 0)"
    rate = _zero_if_late(f"sum(rate({histogram}_count{{pods}}[2m]))", appears_late)
    return ScalingMetric(f"{tolerated} * ({serving} < {{replicas}} or {{replicas}}) or ({rate}) == 0", True)


def _zero_if_late(query: str, appears_late: bool) -> str:
    """Return a query that is 0 while servers that Prometheus can read do not export the metric yet."""
    return f"{query} or 0 * count(up{{pods}} == 1)" if appears_late else query
