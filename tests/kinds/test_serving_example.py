"""The objects of each service of `examples/serving`, one golden file for each runtime and way of balancing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics import Diagnostic
from avactl.kinds import ServingDeployment
from avactl.kinds.serving.follow import FOLLOW_SCRIPT
from avactl.kinds.serving.hub import COPY_SCRIPT
from avactl.kinds.serving.runtime_facts import runtime_names
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering.pods import FETCH_MODEL_SCRIPT
from avactl.spec.repository.tree import MemoryTree
from tests.conftest import ROOT
from tests.definitions import define_groups, define_monitoring, define_pools, define_routes, define_scaling
from tests.example_trees import example_tree
from tools.controlplane import ControlPlane

GOLDEN = ROOT / "tests" / "golden" / "serving"
SERVICES = (
    "classify",
    "embed",
    "search",
    "detect",
    "segment",
    "caption",
    "chat",
    "code",
    "rewrite",
    "agent",
    "judge",
    "rerank",
    "rank",
    "suggest",
    "score",
    "reason",
    "plan",
    "prove",
    "complete",
    "digits",
    "summarise",
    "draft",
    "solve",
    "write",
    "answer",
    "retrieve",
    "match",
    "tag",
)
SCRIPTS = {FETCH_MODEL_SCRIPT: "(FETCH_SCRIPT)", FOLLOW_SCRIPT: "(FOLLOW_SCRIPT)", COPY_SCRIPT: "(COPY_SCRIPT)"}


@cache
def compiled() -> Compilation:
    return compile_tree(example_tree("serving"))


def test_the_example_has_every_runtime_with_every_balancing() -> None:
    result = compiled()
    assert list(result.diagnostics) == []
    specs = [item.spec for item in result.program.of_kind(ServingDeployment)]
    found = {(spec.runtime.name, spec.balance) for spec in specs}
    assert found == {(name, way) for name in runtime_names() for way in ("service", "headless", "gateway")}
    assert {item.name for item in result.program.of("ServingDeployment")} == set(SERVICES)


def kind_of(spec: ServingDeploymentSpec) -> str:
    """How a service's new versions take over."""
    rollout = spec.rollout
    if rollout is None or rollout.rolling is not None:
        return "rolling"
    if rollout.blue_green is not None:
        return "blueGreen"
    assert rollout.canary is not None
    return f"canary by {rollout.canary.traffic or 'gateway'}"


def test_the_example_has_every_rollout_with_every_balancing() -> None:
    specs = [item.spec for item in compiled().program.of_kind(ServingDeployment)]
    found = {(kind_of(spec), spec.balance) for spec in specs}
    kinds = ("rolling", "canary by replicas", "blueGreen")
    inside = {(kind, way) for kind in kinds for way in ("service", "headless")}
    assert found == inside | {(kind, "gateway") for kind in ("rolling", "blueGreen", "canary by gateway")}
    runtimes = {
        spec.runtime.name: {kind_of(each) for each in specs if each.runtime.name == spec.runtime.name} for spec in specs
    }
    assert all(len(kinds) >= 3 for kinds in runtimes.values()), runtimes


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


STEPS = "steps: [{percent: 50, pause: 1m}], analysis: {job: {image: registry.example.com/check:1}}, inPlace: true"
ROLLOUTS = {
    "rolling": "{rolling: {}}",
    "blueGreen": "{blueGreen: {analysis: {job: {image: registry.example.com/check:1}}}}",
    "canary by replicas": f"{{canary: {{traffic: replicas, {STEPS}}}}}",
    "canary by gateway": f"{{canary: {{traffic: gateway, {STEPS}}}}}",
}


def with_rollout(kind: str) -> tuple[Compilation, set[str]]:
    """The example where every service has this rollout; and the services without it, which cannot have it."""
    files, without = {}, set()
    for path in sorted((ROOT / "examples" / "serving").rglob("*.yaml")):
        documents = list(yaml.safe_load_all(path.read_text()))
        for each in documents:
            spec = each["spec"]
            if each["kind"] != "ServingDeployment":
                continue
            fixed = not {"machines", "endpointPicker", "prefill"}.isdisjoint(spec.get("llm", ()))
            if (kind == "canary by gateway" and "expose" not in spec) or (kind != "rolling" and fixed):
                without.add(each["metadata"]["name"])
                spec.pop("rollout", None)
                continue
            spec["rollout"] = yaml.safe_load(ROLLOUTS[kind])
            if kind.startswith("canary") and not isinstance(spec.get("replicas"), int):
                spec["replicas"] = {**spec.get("replicas", {}), "min": 2, "max": 4}
        files[path.name] = yaml.safe_dump_all(documents, sort_keys=False).encode()
    return compile_tree(MemoryTree(files)), without


def told(problem: Diagnostic) -> bool:
    """Tell problems of the rollout from those of too few GPUs in the example."""
    return problem.code != "replicas-do-not-fit"


def test_the_api_server_accepts_each_runtime_with_each_balancing_and_each_rollout(
    new_plane: Callable[..., ControlPlane],
) -> None:
    plane = new_plane()
    with plane.client() as kube:
        for define in (define_routes, define_monitoring, define_scaling, define_groups, define_pools):
            define(kube)
        for manifest in compiled().manifests:
            if manifest.item.kind != "ServingDeployment" and not manifest.patch:
                kube.apply(manifest.body, field_manager="avactl")
        seen = set()
        for kind in ROLLOUTS:
            result, without = with_rollout(kind)
            assert [each for each in result.diagnostics if told(each)] == []
            for manifest in result.manifests:
                item = manifest.item
                if item.kind == "ServingDeployment" and item.name not in without:
                    reply = kube.apply(manifest.body, field_manager="avactl", dry_run=True)
                    assert not reply.warnings, f"{manifest.id}: {reply.warnings}"
                    assert isinstance(item.spec, ServingDeploymentSpec)
                    seen.add((item.spec.runtime.name, item.spec.balance, kind))
    # Requests can be divided by a gateway only where there is one.
    assert len(seen) == len(runtime_names()) * (3 * 3 + 1)
