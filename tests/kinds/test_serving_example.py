"""The objects of each service of `examples/serving`, one golden file for each runtime and way of balancing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.compiler import Compilation, compile_tree
from avactl.kinds.lowering.pods import FETCH_SCRIPT
from avactl.kinds.serving.follow import FOLLOW_SCRIPT
from tests.conftest import ROOT
from tests.example_trees import example_tree

GOLDEN = ROOT / "tests" / "golden" / "serving"
SERVICES = (
    "classify", "embed", "search", "detect", "segment", "caption", "chat", "code", "rewrite", "agent", "judge",
    "rerank", "rank", "suggest", "score", "reason", "plan", "complete",
)  # fmt: skip
SCRIPTS = {FETCH_SCRIPT: "(FETCH_SCRIPT)", FOLLOW_SCRIPT: "(FOLLOW_SCRIPT)"}


@cache
def compiled() -> Compilation:
    return compile_tree(example_tree("serving"))


def test_the_example_has_every_runtime_with_every_balancing() -> None:
    result = compiled()
    assert list(result.diagnostics) == []
    specs = [item.spec for item in result.program.of("ServingDeployment")]
    found = {(spec.runtime.name, spec.balance) for spec in specs}
    runtimes = ("tensorflowServing", "triton", "vllm", "sglang", "custom")
    assert found == {(name, way) for name in runtimes for way in ("service", "headless", "gateway")}
    assert {item.name for item in result.program.of("ServingDeployment")} == set(SERVICES)


def without_scripts(value: Any) -> Any:
    """The value with the scripts of containers, which have tests of their own, by name."""
    if isinstance(value, dict):
        return {key: without_scripts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_scripts(inner) for inner in value]
    return SCRIPTS.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("service", SERVICES)
def test_objects(service: str, golden: Callable[[Path, str], None]) -> None:
    bodies = [
        without_scripts(manifest.body)
        for manifest in compiled().manifests
        if (manifest.item.kind, manifest.item.name) == ("ServingDeployment", service)
    ]
    golden(GOLDEN / f"{service}.yaml", yaml.safe_dump_all(bodies, sort_keys=False, width=120, allow_unicode=True))
