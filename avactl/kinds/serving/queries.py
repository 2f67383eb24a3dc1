"""PromQL of servers' metrics, for the records of runtimes.

`error_rate` and `latency` compare the pods of two versions in a rollout, whose daemon fills in `{{pods}}`,
`{{namespace}}` and `{{interval}}`. `ScalingMetric` is what an autoscaler reads of all pods of a service.
"""

from __future__ import annotations

from typing import NamedTuple

_PODS = 'namespace="{{namespace}}",pod=~"{{pods}}"'


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
    """A metric of a server, in the language of Prometheus; `{}` stands for the selector of the service's pods."""

    query: str
    average: bool
    """The target is that of one pod, and the query the sum of all; else both are of the service."""


def sum_of_pods(gauge: str) -> ScalingMetric:
    """Return the sum of a gauge."""
    return ScalingMetric(f"sum({gauge}{{}})", True)


def rate_of_pods(counter: str) -> ScalingMetric:
    """Return the sum of a counter's rates."""
    return ScalingMetric(f"sum(rate({counter}{{}}[2m]))", True)


def p95_of_service(histogram: str) -> ScalingMetric:
    """Return the 95th percentile of a histogram."""
    # Without requests the quantile is NaN, which KEDA takes as a failure of the query.
    return ScalingMetric(
        f"(histogram_quantile(0.95, sum by (le) (rate({histogram}_bucket{{}}[2m]))) > 0) or vector(0)", False
    )
