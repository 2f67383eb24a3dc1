"""Structure of the package: no cycle of modules. The order of packages is in `.importlinter`."""

from __future__ import annotations

from collections.abc import Mapping

from tools.architecture import import_graph


def cyclic_imports(graph: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """Return the modules on a cycle, or between two, with those of their imports that are."""
    left = set(graph)
    while left:
        importers = {module for module in left if not left.isdisjoint(graph[module])}
        imported = {target for module in left for target in graph[module]}
        if left == importers & imported:
            break
        left &= importers & imported
    return {module: sorted(graph[module] & left) for module in sorted(left)}


def test_cyclic_imports_finds_cycles() -> None:
    chain = {"a": {"b"}, "b": {"c"}, "c": set[str]()}
    assert cyclic_imports(chain) == {}
    assert cyclic_imports({**chain, "c": {"b"}, "d": {"a"}}) == {"b": ["c"], "c": ["b"]}


def test_the_graph_has_imports_of_functions_and_of_types() -> None:
    graph = import_graph()
    assert "avactl.spec.schema.base" in graph["avactl.program.program"]  # TYPE_CHECKING
    assert "avactl.change.review.publish" in graph["avactl.cli.changes.ci"]  # in a function


def test_no_module_cycle() -> None:
    assert cyclic_imports(import_graph()) == {}
