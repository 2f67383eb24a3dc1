"""Measurements of both versions by Prometheus. Answers are bounded, and one that is no number is none."""

from __future__ import annotations

import math
from typing import Any

import aiohttp
import orjson

from avactl.base.promql import confinement_problem, fill_placeholders
from avactl.contracts.document import DocumentError
from avactl.contracts.serving import RolloutAnalysis, RolloutQuery

_TIMEOUT_S = 10.0
_MAX_BYTES = 1 << 20


class PrometheusError(Exception):
    """Prometheus did not answer a query."""


class Prometheus:
    """Client of Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    async def value(self, promql: str) -> float | None:
        """Return the number that a query gives; None for no result, NaN or infinity. Raises PrometheusError."""
        limits = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        query = {"query": promql, "timeout": f"{_TIMEOUT_S:g}s"}
        try:
            async with (
                aiohttp.ClientSession(timeout=limits, trust_env=False) as session,
                session.get(f"{self.url}/api/v1/query", params=query, allow_redirects=False) as response,
            ):
                content = await response.content.read(_MAX_BYTES)
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PrometheusError(f"Prometheus does not answer: {type(error).__name__} {error}"[:300]) from None
        return _parse_answer(status, content)


def _parse_answer(status: int, content: bytes) -> float | None:
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise PrometheusError(f"Prometheus answered {status}, and no JSON") from None
    if not isinstance(answer, dict) or answer.get("status") != "success":
        why = str(answer.get("error", ""))[:200] if isinstance(answer, dict) else ""
        raise PrometheusError(f"Prometheus answered {status}: {why}")
    try:
        data: Any = answer["data"]
        result = data["result"]
        if data["resultType"] == "scalar":
            number = float(result[1])
        elif not result:
            return None
        elif len(result) > 1:
            raise PrometheusError(f"the query has {len(result)} results; aggregate them to one")
        else:
            number = float(result[0]["value"][1])
    except (KeyError, TypeError, ValueError, IndexError):
        raise PrometheusError("Prometheus' answer is not an instant vector") from None
    return number if math.isfinite(number) else None


def of_version(query: RolloutQuery, analysis: RolloutAnalysis, namespace: str, pods: str) -> str:
    """Return a query for the pods of one version, by a regular expression of their names.

    Raises DocumentError if it reads metrics of other namespaces.
    """
    promql = fill_placeholders(query.promql, namespace, pods, analysis.interval_s)
    problem = confinement_problem(promql, namespace)
    if problem is not None:
        raise DocumentError(f"query `{query.name}`: {problem.message}; {problem.hint}")
    return promql


async def run_analysis(
    prometheus: Prometheus | None, analysis: RolloutAnalysis, namespace: str, stable: str, canary: str
) -> tuple[str, str]:
    """Return `passed`, `failed`, `unavailable` or `empty` (no requests), and the values or the reason.

    `stable`, `canary`: regular expressions of the names of the pods of both versions.

    Raises DocumentError for a query that reads metrics of other namespaces.
    """
    if prometheus is None:
        return "unavailable", "the daemon knows no Prometheus: set `monitoring.prometheus` of the Cluster"
    texts, failed, empty = [], False, False
    try:
        for query in analysis.queries:
            new = await prometheus.value(of_version(query, analysis, namespace, canary))
            old = None
            if query.compares:
                old = await prometheus.value(of_version(query, analysis, namespace, stable))
            if new is None or (old is None and query.ratio is not None):
                empty = True
                texts.append(f"{query.name}: no value")
                continue
            wrong = _violation_text(query, new, old or 0.0)
            failed = failed or bool(wrong)
            compared = f", stable {old:.4g}" if old is not None else ""
            texts.append(f"{query.name} {new:.4g}{compared}{wrong}")
    except PrometheusError as error:
        return "unavailable", str(error)
    return ("failed" if failed else "empty" if empty else "passed"), "; ".join(texts)


def _violation_text(query: RolloutQuery, new: float, old: float) -> str:
    if query.max is not None and new > query.max:
        return f": above {query.max:g}"
    if query.min is not None and new < query.min:
        return f": below {query.min:g}"
    if query.ratio is not None and new > query.ratio * old:
        return f": above {query.ratio:g} times the stable version's"
    if query.difference is not None and new > old + query.difference:
        return f": more than {query.difference:g} above the stable version's"
    return ""
