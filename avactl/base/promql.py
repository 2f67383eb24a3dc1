"""PromQL of specs: checks of platform queries, and confinement of teams' queries to the series of their namespace.

A team's query runs with the platform's access to Prometheus, which has the metrics of all teams. A query is confined to
a namespace if each of its selectors has the matcher `namespace="…"` with exactly that name: nothing else of PromQL
reads series, but for the function `info`. That and what the parser does not know are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

MAX_CHARACTERS = 4000
_NAMESPACE_LABEL = "namespace"
_READING_FUNCTIONS = frozenset({"info"})
"""Functions that read series which no selector names."""


class QueryProblem(NamedTuple):
    """Why a query may not run: a message, the remedy, and True if it reads series of other namespaces."""

    message: str
    hint: str
    foreign: bool


def fill_placeholders(promql: str, namespace: str, pods: str, interval: float) -> str:
    """Return a query with its placeholders filled in: `pods`, a regular expression of names; `interval`, in seconds."""
    return (
        promql.replace("{{pods}}", pods)
        .replace("{{namespace}}", namespace)
        .replace("{{interval}}", f"{max(1, round(interval))}s")
    )


@lru_cache(maxsize=4096)
def confinement_problem(promql: str, namespace: str) -> QueryProblem | None:
    """Return why a query, whose placeholders are filled in, may not run for a namespace; None if it may."""
    problem, selectors = _read(promql)
    if problem is not None:
        return problem
    for selector in selectors:
        if selector.matchers.or_matchers or not any(
            _names_namespace(each, namespace) for each in selector.matchers.matchers
        ):
            shown = selector.prettify()
            return QueryProblem(
                f"`{shown if len(shown) <= 80 else f'{shown[:77]}…'}` reads metrics of other teams",
                f'add `{_NAMESPACE_LABEL}="{{{{{_NAMESPACE_LABEL}}}}}"` to each selector',
                True,
            )
    return None


def syntax_problem(promql: str, pattern: str) -> QueryProblem | None:
    """Return the problem of a platform query with its placeholders filled in; None if it is valid. `pattern`: the
    placeholder value that is a regular expression; empty for none."""
    import promql_parser

    problem, selectors = _read(promql)
    if problem is not None:
        return problem
    unknown = re.search(r"\{\{.{0,60}?\}\}", promql)
    if unknown is not None:
        return _invalid_problem(f"no placeholder is called `{unknown[0]}`", "remove it")
    literal = (promql_parser.MatchOp.Equal, promql_parser.MatchOp.NotEqual)
    for each in (matcher for selector in selectors for matcher in selector.matchers.matchers):
        if pattern and pattern in each.value and each.op in literal:
            return _invalid_problem(f"`{each.name}` is compared with a regular expression", f'write `{each.name}=~"…"`')
    return None if selectors else _invalid_problem("it reads no metric", "select one")


def is_per_pod(promql: str) -> bool:
    """Return whether a query, whose placeholders are filled in, has a result for each pod, or for several of them."""
    import promql_parser

    _, selectors = _read(promql)
    return bool(selectors) and _has_pods(promql_parser.parse(promql))


def is_scalar(promql: str) -> bool:
    """Return whether a query has a number as its result, without a series: KEDA cannot read it."""
    import promql_parser

    tree = promql_parser.parse(promql)
    while isinstance(tree, promql_parser.ParenExpr | promql_parser.UnaryExpr):
        tree = tree.expr
    return isinstance(tree, promql_parser.Call) and tree.func.return_type is promql_parser.ValueType.Scalar


_SEVERAL = frozenset(("topk", "bottomk", "limitk", "limit_ratio", "count_values"))
_POD_LABELS = frozenset(("pod", "instance"))


def _has_pods(tree: Any) -> bool:
    import promql_parser as parser

    match tree:
        case parser.ParenExpr() | parser.UnaryExpr() | parser.SubqueryExpr():
            return _has_pods(tree.expr)
        case parser.BinaryExpr():
            return _has_pods(tree.lhs) or _has_pods(tree.rhs)
        case parser.Call():
            one = tree.func.return_type is parser.ValueType.Scalar or tree.func.name in ("vector", "absent")
            return not one and any(map(_has_pods, tree.args))
        case parser.AggregateExpr():
            without = tree.modifier is not None and tree.modifier.type is parser.AggModifierType.Without
            labels = frozenset(tree.modifier.labels if tree.modifier is not None else ())
            kept = _POD_LABELS - labels if without else _POD_LABELS & labels
            return (str(tree.op) in _SEVERAL or bool(kept)) and _has_pods(tree.expr)
        case _:
            return isinstance(tree, parser.VectorSelector | parser.MatrixSelector)


def _read(promql: str) -> tuple[QueryProblem | None, list[Any]]:
    """Return why a query cannot be read, or its selectors."""
    import promql_parser

    if len(promql) > MAX_CHARACTERS:
        return _invalid_problem(f"longer than {MAX_CHARACTERS} characters", "shorten it"), []
    odd = next((each for each in promql if each == "#" or (not each.isprintable() and each not in "\n\t")), None)
    if odd is not None:
        # The ends of comments and lines are not the same to all parsers.
        return _invalid_problem(f"the character {odd!r}", "remove it; comments belong in the spec"), []
    try:
        return None, list(_vector_selectors(promql_parser.parse(promql)))
    except (ValueError, OverflowError, NotImplementedError) as error:
        return _invalid_problem(str(error).splitlines()[0][:200] if str(error) else "not PromQL", "correct it"), []


def _invalid_problem(why: str, hint: str) -> QueryProblem:
    return QueryProblem(f"not a query that avactl can check: {why}", hint, False)


def _names_namespace(matcher: Any, namespace: str) -> bool:
    import promql_parser

    same: bool = (
        matcher.name == _NAMESPACE_LABEL and matcher.op == promql_parser.MatchOp.Equal and matcher.value == namespace
    )
    return same


def _vector_selectors(tree: Any) -> Any:
    """Yield all selectors of vectors. Raises NotImplementedError for an expression of an unknown type."""
    import promql_parser as p

    rest = [tree]
    while rest:
        match rest.pop():
            case p.VectorSelector() as found:
                yield found
            case p.MatrixSelector() as found:
                yield found.vector_selector
            case p.AggregateExpr() as found:
                rest += [found.expr, *([found.param] if found.param is not None else [])]
            case p.BinaryExpr() as found:
                rest += [found.lhs, found.rhs]
            case p.UnaryExpr() | p.ParenExpr() | p.SubqueryExpr() as found:
                rest.append(found.expr)
            case p.Call() as found:
                if found.func.name in _READING_FUNCTIONS:
                    raise NotImplementedError(f"the function `{found.func.name}`, which reads other series")
                rest += found.args
            case p.NumberLiteral() | p.StringLiteral():
                pass
            case found:
                raise NotImplementedError(f"an expression `{type(found).__name__}`")
