"""Kinds of other systems that stay manifests: the kind of avactl that would take their place, and what keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from avactl.workbench.importer.failures import READ_ERRORS, explain_failure
from avactl.workbench.importer.model import Body, GivenValue
from avactl.workbench.importer.sources.kserve import MODES, deployment_mode, describe_canary, describe_storage

_SERVICE = "a ServingDeployment would take its place"
_TRAINING = "a TrainingJob would take its place"
_REASONS = {
    ("argoproj.io", "AnalysisTemplate"): (
        "`rollout: {canary: {analysis: {query: …}}}` of a ServingDeployment would take its place; its queries measure "
        "the service, and those of avactl the pods of each version, as {{pods}}"
    ),
    ("argoproj.io", "ClusterAnalysisTemplate"): (
        "`rollout: {canary: {analysis: {query: …}}}` of a ServingDeployment would take its place; its queries measure "
        "the service, and those of avactl the pods of each version, as {{pods}}"
    ),
    ("serving.kserve.io", "ServingRuntime"): "`runtime` of a ServingDeployment would take its place",
    ("serving.kserve.io", "ClusterServingRuntime"): "`runtime` of a ServingDeployment would take its place",
    ("data.fluid.io", "DataLoad"): "`prewarm` of a Dataset would take its place",
    ("workload.codeflare.dev", "AppWrapper"): "import the objects that it wraps",
}
_MOST = 6
"""Names in one reason."""


def manifest_reason(given: GivenValue) -> str:
    """Return why an object of another system stays a manifest; empty if nothing takes the place of its kind."""
    key = (given.group, given.kind)
    read = _READERS.get(key)
    try:
        return read(given) if read is not None else _REASONS.get(key, "")
    except READ_ERRORS as error:
        return explain_failure(given, error)


def _names(values: Any) -> str:
    """Return names for a reason."""
    shown = [str(each)[:80] for each in values]
    return ", ".join(shown[:_MOST]) + (f" and {len(shown) - _MOST} more" if len(shown) > _MOST else "")


def _keys(value: Any, known: tuple[str, ...] = ()) -> list[str]:
    return [str(key) for key in value if key not in known] if isinstance(value, dict) else []


def _inference_service(given: GivenValue) -> str:
    """Say what of an InferenceService KServe decides: the server, the way to its model, or what is around it."""
    predictor: Body = given.get("spec", "predictor") or {}
    found = []
    model = predictor.get("model") or {}
    form = (model.get("modelFormat") or {}).get("name") or next(
        (key for key, value in predictor.items() if isinstance(value, dict) and "storageUri" in value), ""
    )
    uri = model.get("storageUri") or (predictor.get(form) or {}).get("storageUri")
    if form:
        runtime = model.get("runtime")
        found.append(
            f"its server is that of ServingRuntime {runtime}" if runtime else f"KServe chooses a server for `{form}`"
        )
    elif predictor.get("containers"):
        found.append("its containers get probes and ports of KServe")
    if uri:
        found.append(describe_storage(uri))
    if predictor.get("canaryTrafficPercent") is not None:
        found.append(describe_canary(predictor))
    mode = deployment_mode(given)
    if mode is None:
        why = "Knative scales it by requests, unless KServe's settings say otherwise: then write the annotation"
        found.append(f"{why} serving.kserve.io/deploymentMode: Standard")
    elif mode not in MODES:
        found.append("Knative scales it by requests")
    found += [f"it has `{key}`" for key in ("transformer", "explainer") if given.get("spec", key)]
    return f"{_SERVICE}; {'; '.join(found)}"


def _llm_inference_service(given: GivenValue) -> str:
    found = []
    templates = [each.get("name") for each in given.get("spec", "baseRefs") or () if isinstance(each, dict)]
    found.append(f"its pods are made of KServe's templates{': ' + _names(templates) if templates else ''}")
    uri = given.get("spec", "model", "uri")
    if uri:
        pinned = not str(uri).startswith("hf://") or "@" in str(uri)
        found.append(f"KServe brings its model {_names([uri])}" + ("" if pinned else ", which names no commit"))
    router = _keys(given.get("spec", "router"))
    if router:
        found.append(f"KServe makes its {_names(router)}")
    found += [f"it has `{key}`" for key in ("prefill", "worker", "parallelism") if given.get("spec", key)]
    return f"{_SERVICE}; {'; '.join(found)}"


def _fluid_dataset(given: GivenValue) -> str:
    """Say what of a Dataset of Fluid has another form: pods mount a claim of its name, which has all mounts."""
    mounts = [each for each in given.get("spec", "mounts") or () if isinstance(each, dict)]
    points = _names(each.get("mountPoint") for each in mounts)
    found = [f"pods mount claim `{given.name}`, with {points or 'no mounts'}, and no version of them"]
    options = sorted({key for each in mounts for key in _keys(each.get("options"))})
    if options:
        found.append(f"its mounts have options of the engine: {_names(options)}")
    return f"a Dataset and a CacheTier would take its place; {'; '.join(found)}"


def _fluid_runtime(given: GivenValue) -> str:
    engine = given.kind.removesuffix("Runtime").lower()
    levels = [each for each in given.get("spec", "tieredstore", "levels") or () if isinstance(each, dict)]
    found = ["its masters, workers and mounts are in the pods of Fluid, and the claims of its Dataset name them"]
    several = [str(each.get("path")) for each in levels if "," in str(each.get("path"))]
    if several:
        found.append(f"a tier of avactl has one directory, and this has {_names(several)}")
    properties = _keys(given.get("spec", "properties"))
    if properties:
        found.append(f"its properties go to `properties`: {_names(properties)}")
    return f"a CacheTier with `engine: {engine}` would take its place; {'; '.join(found)}"


def _ray(place: str, instead: str) -> Callable[[GivenValue], str]:
    def read(given: GivenValue) -> str:
        cluster = given.get("spec", "rayClusterSpec") or given.get("spec", "rayClusterConfig") or given.get("spec")
        groups = [each.get("groupName") for each in (cluster or {}).get("workerGroupSpecs") or ()]
        workers = f", and groups of workers {_names(groups)}" if groups else ""
        return (
            f"{place}; Ray starts processes on nodes of its own, a head{workers}, which no spec of avactl does; "
            f"a program that needs no Ray runs by {instead}"
        )

    return read


def _leader_worker_set(given: GivenValue) -> str:
    template = given.get("spec", "leaderWorkerTemplate") or {}
    pods = "its leader and workers have own templates" if template.get("leaderTemplate") else "its pods are alike"
    return (
        f"{_SERVICE}, with `llm: {{machines: {template.get('size') or 1}}}`; {pods}, and find each other by "
        "LWS_LEADER_ADDRESS, while avactl writes the command of each machine itself"
    )


def _volcano_queue(given: GivenValue) -> str:
    deserved, most = given.get("spec", "deserved"), given.get("spec", "capability")
    return f"a Quota of its team takes the place of a queue of Volcano: {_quota(_gpus(deserved), _gpus(most))}"


def _kai_queue(given: GivenValue) -> str:
    guaranteed, most = (given.get("spec", "resources", "gpu", key) for key in ("quota", "limit"))
    weight = given.get("spec", "resources", "gpu", "overQuotaWeight")
    shared = f"; beyond that it competes with weight {weight}" if weight is not None else ""
    return f"a Quota of its team takes the place of a queue of KAI: {_quota(guaranteed, most)}{shared}"


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


_READERS: dict[tuple[str, str], Callable[[GivenValue], str]] = {
    ("serving.kserve.io", "InferenceService"): _inference_service,
    ("serving.kserve.io", "LLMInferenceService"): _llm_inference_service,
    ("data.fluid.io", "Dataset"): _fluid_dataset,
    ("data.fluid.io", "AlluxioRuntime"): _fluid_runtime,
    ("data.fluid.io", "JuiceFSRuntime"): _fluid_runtime,
    ("ray.io", "RayJob"): _ray(_TRAINING, "torchrun or mpirun"),
    ("ray.io", "RayCluster"): _ray(_TRAINING, "torchrun or mpirun"),
    ("ray.io", "RayService"): _ray(_SERVICE, "`runtime: {name: custom}`"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_worker_set,
    ("scheduling.run.ai", "Queue"): _kai_queue,
    ("scheduling.volcano.sh", "Queue"): _volcano_queue,
}
