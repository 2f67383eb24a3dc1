"""Queries of teams are confined to their namespace, as Prometheus understands them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avactl.base.promql import confinement_problem, fill_placeholders, is_per_pod, is_scalar
from avactl.kinds.serving.runtime import runtimes

OWN = 'a{namespace="vision"}'
CONFINED = [
    OWN,
    f"sum(rate({OWN}[5m]))",
    f"-{OWN} + 1",
    f"({OWN})",
    "1",
    "time()",
    "vector(1)",
    '"text"',
    f"sum by (le) (rate({OWN}[5m] offset 1h))",
    f"max_over_time(rate({OWN}[1m])[1h:5m])",
    f"topk(scalar(count({OWN})), {OWN})",
    f"{OWN} / on (pod) group_left (node) {OWN}",
    f"{OWN} @ end()",
    '{__name__="a:b",namespace="vision"}',
    '{namespace="vision"}',
    f'label_replace({OWN}, "namespace", "x", "", "")',
    "a{namespace='vision'}",
    "a{namespace=`vision`}",
    'a{namespace="vision",namespace=~".*"}',
    f"absent({OWN})",
    f"histogram_quantile(0.99, sum by (le) (rate({OWN}[5m])))",
    f"{OWN} > bool 1",
    f"{OWN} and {OWN} unless {OWN}",
]
FOREIGN = [
    "a",
    "sum(a)",
    "rate(a[5m])",
    'a{namespace="web"}',
    'a{namespace=~"vision"}',
    'a{namespace=~"vision|web"}',
    'a{namespace!="vision"}',
    'a{namespace!~"web"}',
    'a{namespace=""}',
    'a{namespace="vision "}',
    'a{ns="vision"}',
    'a{exported_namespace="vision"}',
    '{__name__=~".+"}',
    f"{OWN} + b",
    f"b + {OWN}",
    f"{OWN} or b",
    f"({OWN} - (b))",
    f"topk(scalar(b), {OWN})",
    f"quantile(scalar(b), {OWN})",
    f"clamp({OWN}, scalar(b), 1)",
    f"-b * {OWN}",
    "max_over_time(rate(b[1m])[1h:5m])",
    f"{OWN} and on () b",
    f"count_values('x', b) + {OWN}",
    "sum(b) without (x)",
    'absent_over_time(b{namespace="web"}[5m])',
    'a{namespace="vision" or job="x"}',
]
INVALID = [
    "",
    "(",
    "sum(",
    "a{",
    "rate(a)",
    "nothing(a)",
    f"{OWN} # comment",
    f"{OWN}\r+ b",
    f"{OWN} \x00",
    f"{OWN}\u2028+ b",
    f"info({OWN})",
    "a[5m:",
    'a{namespace="vision}',
    "x" * 5000,
    "(" * 2000,
    "\u200b",
]


@pytest.mark.parametrize("promql", CONFINED)
def test_confined(promql: str) -> None:
    assert confinement_problem(promql, "vision") is None


@pytest.mark.parametrize("promql", FOREIGN)
def test_foreign(promql: str) -> None:
    problem = confinement_problem(promql, "vision")
    assert problem is not None


@pytest.mark.parametrize("promql", INVALID)
def test_invalid(promql: str) -> None:
    problem = confinement_problem(promql, "vision")
    assert problem is not None
    assert not problem.foreign


def test_deep_queries_are_checked_or_refused() -> None:
    deep = "(" * 1900 + "b" + ")" * 1900
    assert confinement_problem(deep, "vision") is not None
    assert confinement_problem("-" * 3900 + "b", "vision") is not None


QUERIES = [query for each in runtimes().values() for query in (each.error_rate, each.latency) if query is not None]


@pytest.mark.parametrize("promql", QUERIES)
def test_the_queries_of_runtimes_are_confined(promql: str) -> None:
    assert confinement_problem(fill_placeholders(promql, "vision", "web-x-[a-z0-9]+", 60.0), "vision") is None


@given(st.text(alphabet=st.sampled_from("ab{}()[]=~!\"'`\\,:+-*/^%<>@. \n\t015msdy#é\r"), max_size=40))
def test_any_text_has_an_answer(text: str) -> None:
    confinement_problem(text, "a")


@given(
    st.lists(st.sampled_from([OWN, "b", "sum(", ")", "(", "+", "[5m]", "[1h:1m]", "or", "-", "rate(", ","]), max_size=9)
)
def test_a_query_with_a_foreign_selector_never_passes(words: list[str]) -> None:
    if "b" in words:
        assert confinement_problem(" ".join(words), "vision") is not None


@pytest.mark.parametrize(
    ("query", "several"),
    [
        ("rate(x[1m])", True),
        ("rate(x[1m]) * 2", True),
        ("x > 0", True),
        ("abs(x)", True),
        ("topk(3, x)", True),
        ("sum by (pod) (x)", True),
        ("sum without (le) (x)", True),
        ("max_over_time(x[5m])", True),
        ("(x)", True),
        ("sum(x) or x", True),
        ("sum(x)", False),
        ("sum by (le) (x)", False),
        ("sum without (pod, instance) (x)", False),
        ("topk(3, sum(x))", False),
        ("2 * sum(x) / count(x)", False),
        ("histogram_quantile(0.95, sum by (le) (rate(x[1m])))", False),
        ("max_over_time(sum(x)[5m:1m])", False),
        ("vector(scalar(x))", False),
    ],
)
def test_queries_of_one_number(query: str, several: bool) -> None:
    assert is_per_pod(query) is several


def test_numbers_without_a_series() -> None:
    assert [is_scalar(query) for query in ("scalar(sum(x))", "(-scalar(x))", "vector(scalar(x))", "sum(x)")] == [
        True,
        True,
        False,
        False,
    ]
