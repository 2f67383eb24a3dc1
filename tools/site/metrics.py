"""Metrics that daemons export, read from the source of their `metrics` modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from tools.site.links import ROOT

_TYPES = ("Counter", "Gauge", "Histogram", "CounterMetricFamily", "GaugeMetricFamily")


class DeclaredMetric(NamedTuple):
    """A metric as its constructor declares it."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str


def declared_metrics() -> list[DeclaredMetric]:
    """Return all metrics of the package, by name. Daemons are not imported: their libraries are slow to load."""
    modules = sorted((ROOT / "avactl").rglob("metrics.py"))
    return sorted(metric for module in modules for metric in _declarations(ast.parse(module.read_text())))


def _declarations(tree: ast.Module) -> Iterator[DeclaredMetric]:
    constants: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple):
            for target in node.targets:
                constants |= _literals(target, node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TYPES:
            type_ = node.func.id.removesuffix("MetricFamily").lower()
            name, meaning = (str(ast.literal_eval(argument)) for argument in node.args[:2])
            if type_ == "counter" and not name.endswith("_total"):
                name += "_total"  # as Prometheus exports it
            yield DeclaredMetric(name, type_, tuple(_labels(node, constants)), meaning)


def _literals(target: ast.expr, value: ast.List | ast.Tuple) -> dict[str, list[str]]:
    if isinstance(target, ast.Tuple):
        return {
            name: found
            for name_node, part in zip(target.elts, value.elts, strict=True)
            if isinstance(part, ast.List)
            for name, found in _literals(name_node, part).items()
        }
    if isinstance(target, ast.Name) and all(isinstance(element, ast.Constant) for element in value.elts):
        return {target.id: [str(element) for element in ast.literal_eval(value)]}
    return {}


def _labels(call: ast.Call, constants: dict[str, list[str]]) -> list[str]:
    """Return a call's labels: the third argument of a metric, or `labels=` of a family (whose third is the value)."""
    given = [keyword.value for keyword in call.keywords if keyword.arg in ("labels", "labelnames")]
    if isinstance(call.func, ast.Name) and not call.func.id.endswith("Family"):
        given += call.args[2:3]
    return [label for expression in given for label in _texts(expression, constants)]


def _texts(expression: ast.expr, constants: dict[str, list[str]]) -> list[str]:
    """Return a list of texts that may contain constants of the module: `[*_DATASET, "state"]`."""
    match expression:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name):
            return constants[name]
        case ast.Starred(value=value):
            return _texts(value, constants)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [text for element in elements for text in _texts(element, constants)]
    raise ValueError(f"labels that are not texts: {ast.unparse(expression)}")
