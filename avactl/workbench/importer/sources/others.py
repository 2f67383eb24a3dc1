"""Kinds of other systems that stay manifests, and the kind of avactl that would take their place."""

from __future__ import annotations

from typing import Any

from avactl.workbench.importer.model import GivenValue

_REASONS = {
    ("serving.kserve.io", "InferenceService"): (
        "a ServingDeployment would take its place, but its runtime and the way to its model are objects of KServe"
    ),
    ("serving.kserve.io", "LLMInferenceService"): (
        "a ServingDeployment would take its place, but its pods are made of KServe's templates"
    ),
    ("argoproj.io", "Rollout"): (
        "a ServingDeployment with `rollout` would take its place; its steps and analyses are those of Argo"
    ),
    ("argoproj.io", "AnalysisTemplate"): "`rollout: {checks: …}` of a ServingDeployment would take its place",
    ("data.fluid.io", "Dataset"): "a Dataset and a CacheTier would take its place; the data is in the mounts of Fluid",
    ("data.fluid.io", "AlluxioRuntime"): "a CacheTier with `engine: alluxio` would take its place",
    ("data.fluid.io", "JuiceFSRuntime"): "a CacheTier with `engine: juicefs` would take its place",
    ("jobset.x-k8s.io", "JobSet"): (
        "a TrainingJob would take its place; its pods find each other by the names of JobSet's Service"
    ),
    ("ray.io", "RayJob"): "Ray starts processes on its own nodes, which no strategy of a TrainingJob does",
    ("ray.io", "RayCluster"): "Ray starts processes on its own nodes, which no strategy of a TrainingJob does",
    ("ray.io", "RayService"): "Ray starts processes on its own nodes, which no ServingDeployment does",
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        "a ServingDeployment with several machines would take its place; its leader and workers have own commands"
    ),
    ("workload.codeflare.dev", "AppWrapper"): "import the objects that it wraps",
}


def manifest_reason(given: GivenValue) -> str:
    """Return why an object of another system stays a manifest; empty if nothing takes the place of its kind."""
    if (given.group, given.kind) == ("scheduling.run.ai", "Queue"):
        guaranteed, most = (given.get("spec", "resources", "gpu", key) for key in ("quota", "limit"))
        return f"a Quota of its team takes the place of a queue of KAI: {_quota(guaranteed, most)}"
    if (given.group, given.kind) == ("scheduling.volcano.sh", "Queue"):
        deserved, most = given.get("spec", "deserved"), given.get("spec", "capability")
        numbers = _quota(_gpus(deserved), _gpus(most))
        return f"a Quota of its team takes the place of a queue of Volcano: {numbers}"
    return _REASONS.get((given.group, given.kind), "")


def _gpus(amounts: Any) -> Any:
    return amounts.get("nvidia.com/gpu") if isinstance(amounts, dict) else None


def _quota(guaranteed: Any, most: Any) -> str:
    """Return the numbers of a Quota for a guarantee and a limit; -1 means no limit."""
    if not _is_count(guaranteed):
        return "write `guaranteed` and `borrow` for its GPU model"
    if not _is_count(most):
        return f"write `guaranteed: {int(guaranteed)}`, and as `borrow` what other teams lend"
    return f"write `guaranteed: {int(guaranteed)}` and `borrow: {max(0, int(most) - int(guaranteed))}`"


def _is_count(value: Any) -> bool:
    return str(value).isdecimal() and len(str(value)) < 7
