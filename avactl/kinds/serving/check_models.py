"""Checks of the models of a service against what its runtime can serve."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.serving.llm import machines, parallelism
from avactl.kinds.serving.parts.models import Adapter, ServedModel
from avactl.kinds.serving.runtimes import LLM, RUNTIMES
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.kinds.team.buckets import bucket_problems
from avactl.program.checks.dataset_start import start_problems
from avactl.program.dataset_access import read_problems
from avactl.program.images import require_image
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.program.unique_entries import duplicates
from avactl.spec.schema.compute import DatasetMount

_SEVERAL = ("tensorflowServing", "triton")


def model_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of the models and adapters of one service."""
    spec, runtime = item.spec, RUNTIMES[item.spec.runtime.name]
    if spec.models is not None and runtime.dynamic is None:
        adapters = "; LoRA adapters are `llm.adapters`" if spec.runtime.name in LLM else ""
        yield _cannot(
            item, ("spec", "models"), f"{runtime.title} serves one model",
            f"write `model: {{…}}`, and a ServingDeployment for each other one{adapters}",
        )  # fmt: skip
        return
    if spec.models is not None:
        yield from duplicates(item, ("spec", "models"), (model.name for model in spec.models), "model")
        yield from require_image(item, program, "fetch", ("spec", "models"))
    elif "models_size" in spec.model_fields_set:
        yield without_effect(item, ("spec", "modelsSize"), "the volume of `model` has the model's `size`")
    for path, model in spec.places:
        if isinstance(model, ServedModel):
            yield from _versions(item, path, model)
        yield from _files(item, program, path, model)
    yield from start_problems(item, program)
    yield from _language_model(item)
    if spec.runtime.name == "torchServe":
        yield Diagnostic(
            "deprecated-runtime",
            "spec.runtime.name: TorchServe is no longer maintained, and gets no security fixes",
            item.span("spec", "runtime", "name"),
            severity="warning",
            hint="serve the model with `triton`, or a large language model with `vllm` or `sglang`",
        )


def _cannot(item: Item[ServingDeploymentSpec], path: tuple[str | int, ...], why: str, hint: str) -> Diagnostic:
    note = Note(item.span("spec", "runtime", "name"), "the runtime")
    return Diagnostic("runtime-cannot", why, item.span(*path, key=True), hint=hint, notes=(note,))


def _versions(
    item: Item[ServingDeploymentSpec], path: tuple[str | int, ...], model: ServedModel
) -> Iterator[Diagnostic]:
    runtime, found = RUNTIMES[item.spec.runtime.name], model.versions
    listed = model.live
    if runtime.numbered:
        for index, version in enumerate(listed):
            if version.isdecimal() and version.isascii():
                continue
            where = (*path, "version") if found is None else (*path, "versions", index)
            digits = "".join(ch for ch in version.partition(".")[0] if ch.isdigit() and ch.isascii())
            name = ".".join(f"{part}" if isinstance(part, str) else f"[{part}]" for part in where).replace(".[", "[")
            yield Diagnostic(
                "invalid-value",
                f"{name}: {runtime.title} requires an integer, got string `{version}`",
                item.span(*where),
                hint=f'write `"{digits}"`' if digits else "versions are numbered directories: 1, 2, …",
            )
    if found is not None:
        yield from duplicates(item, (*path, "versions"), listed, "version", key=None)
        if path == ("spec", "model"):
            why = "`model` has one version, whose change starts new pods"
            yield _cannot(item, (*path, "versions"), why, "write `models: [{…}]`")
    if model.labels and (item.spec.runtime.name != "tensorflowServing" or path == ("spec", "model")):
        why = "labels of versions are those of `models` in TensorFlow Serving"
        yield _cannot(item, (*path, "labels"), why, "remove `labels`")
        return
    for label, version in model.labels.items():
        if version not in listed:
            yield Diagnostic(
                "missing-reference",
                f"label `{label}` is of version `{version}`, which is not live",
                item.span(*path, "labels", label),
                hint=f"write one of {', '.join(f'`{each}`' for each in dict.fromkeys(listed))}",
            )


def _files(
    item: Item[ServingDeploymentSpec], program: Program, path: tuple[str | int, ...], model: ServedModel | Adapter
) -> Iterator[Diagnostic]:
    spec = item.spec
    url, dataset, directory = model.url, model.dataset, model.path
    language = spec.runtime.name in LLM
    if directory is not None and not language and spec.runtime.name != "custom":
        yield _cannot(
            item, (*path, "path"), f"{RUNTIMES[spec.runtime.name].title} finds its models by name",
            "remove `path`, and have the model in the directory that the server looks into",
        )  # fmt: skip
    if (language or spec.models is not None) and not model.is_fetched and (directory is None or not language):
        key = path[1] if len(path) == 2 else path[-2]
        sources = "`url`, `dataset` or `path`" if language else "`url` or `dataset`"
        yield Diagnostic(
            "missing-key",
            f"`{key}` requires {sources}: the server is told where the files are",
            item.span(*path, "name"),
            hint="add `url: s3://bucket/prefix`, the directory with the files",
        )
    if url is not None:
        yield from require_image(item, program, "fetch", (*path, "url"))
        if model.secret is None:
            yield from bucket_problems(item, program, url, (*path, "url"), writes=False)
    if dataset is not None:
        if isinstance(model, ServedModel) and model.versions is not None and spec.runtime.name == "tensorflowServing":
            yield Diagnostic(
                "conflicting-keys",
                "a dataset has the files of one version",
                item.span(*path, "versions", key=True),
                hint="write `version`, or the `url` of a directory with all versions",
            )
            return
        where = spec.directory(model)
        mount = DatasetMount(name=dataset.name, version=dataset.version, mount=where)
        yield from read_problems(item, program, mount, (*path, "dataset"))


def _has(spec: ServingDeploymentSpec) -> str:
    if machines(spec) == 1:
        return f"a pod has {spec.resources.gpus}"
    return f"{machines(spec)} machines of a replica have {spec.resources.gpus} each"


def _language_model(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    title = RUNTIMES[spec.runtime.name].title
    if spec.runtime.name not in LLM:
        if spec.llm is not None:
            yield _cannot(
                item, ("spec", "llm"), f"`llm` has options of vLLM and SGLang, and {title} has none of them",
                "remove `llm`, or choose `runtime: {name: vllm}`",
            )  # fmt: skip
        return
    found, gpus = parallelism(spec), max(1, spec.resources.gpus) * machines(spec)
    counted = machines(spec) == 1 or spec.resources.gpus  # else it is refused as a whole
    if spec.llm is not None and counted and found.tensor * found.pipeline != gpus:
        key = "tensorParallel" if spec.llm.tensor_parallel is not None else "pipelineParallel"
        yield Diagnostic(
            "parallelism-mismatch",
            f"tensor parallelism {found.tensor} × pipeline parallelism {found.pipeline} needs "
            f"{found.tensor * found.pipeline} GPUs, and {_has(spec)}",
            item.span("spec", "llm", key),
            hint=f"write keys whose product is {gpus}"
            + (f", or `gpus: {found.tensor * found.pipeline}` in `resources`" if machines(spec) == 1 else ""),
            notes=(Note(item.span("spec", "resources", "gpus"), "the GPUs of a pod"),) if spec.resources.gpus else (),
        )
    if spec.llm is None:
        return
    if spec.llm.adapters:
        served = [spec.model.name] if spec.model is not None else []
        yield from duplicates(item, ("spec", "llm", "adapters"), (each.name for each in spec.llm.adapters), "adapter")
        for index, adapter in enumerate(spec.llm.adapters):
            if adapter.name in served:
                yield Diagnostic(
                    "duplicate-name",
                    f"adapter `{adapter.name}` has the name of the model",
                    item.span("spec", "llm", "adapters", index, "name"),
                    hint="choose another name: clients request adapters and the model by name",
                )
    else:
        for field, key in (("max_adapters", "maxAdapters"), ("max_rank", "maxRank")):
            if field in spec.llm.model_fields_set:
                yield without_effect(item, ("spec", "llm", key), "there are no `adapters`")
