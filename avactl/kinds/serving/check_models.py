"""Checks of the models of a service against what its runtime can serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic.alias_generators import to_camel

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import one_of
from avactl.kinds.serving.hub import is_of_hub
from avactl.kinds.serving.llm import machines_per_replica, split_model
from avactl.kinds.serving.parts.models import Adapter, ServedModel
from avactl.kinds.serving.runtime import LanguageModelSupport, names_with, runtime_of, runtimes, titles_with
from avactl.kinds.serving.server_arguments import model_size_problems, server_argument_problems
from avactl.kinds.serving.spec import LanguageModel, ServingDeploymentSpec
from avactl.kinds.team.buckets import bucket_problems
from avactl.program.checks.dataset_start import start_problems
from avactl.program.dataset_access import read_problems
from avactl.program.images import require_image
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.schema.compute import DatasetMount


def model_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of the models and adapters of one service."""
    spec, runtime = item.spec, runtime_of(item.spec)
    if spec.models is not None and runtime.dynamic is None:
        adapters = "; LoRA adapters are `llm.adapters`" if runtime.llm is not None and runtime.llm.adapters else ""
        yield _unsupported_problem(
            item,
            ("spec", "models"),
            f"{runtime.title} serves one model",
            f"write `model: {{…}}`, and a ServingDeployment for each other one{adapters}",
        )
        return
    if spec.models is not None:
        yield from check_duplicates(item, ("spec", "models"), (model.name for model in spec.models), "model")
        yield from require_image(item, program, "fetch", ("spec", "models"))
    elif "models_size" in spec.model_fields_set:
        yield without_effect(item, ("spec", "modelsSize"), "the volume of `model` has the model's `size`")
    for path, model in spec.places:
        if isinstance(model, ServedModel):
            yield from _check_versions(item, path, model)
        yield from _check_files(item, program, path, model)
    yield from start_problems(item, program)
    yield from _language_model(item, program)
    if runtime.max_gpus is not None and spec.resources.gpus > runtime.max_gpus:
        yield _unsupported_problem(
            item,
            ("spec", "resources", "gpus"),
            f"{runtime.title} uses {_gpus(runtime.max_gpus)}, and a pod requests {spec.resources.gpus}",
            f"write `gpus: {runtime.max_gpus}`, and more `replicas` for more requests",
        )


def _gpus(count: int) -> str:
    return "one GPU" if count == 1 else f"{count} GPUs"


def _unsupported_problem(
    item: Item[ServingDeploymentSpec], path: tuple[str | int, ...], why: str, hint: str
) -> Diagnostic:
    note = Note(item.span("spec", "runtime", "name"), "the runtime")
    return Diagnostic("runtime-cannot", why, item.span(*path, key=True), hint=hint, notes=(note,))


def _check_versions(
    item: Item[ServingDeploymentSpec], path: tuple[str | int, ...], model: ServedModel
) -> Iterator[Diagnostic]:
    runtime, found = runtime_of(item.spec), model.versions
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
        yield from check_duplicates(item, (*path, "versions"), listed, "version", key=None)
        if path == ("spec", "model"):
            why = "`model` has one version, whose change starts new pods"
            yield _unsupported_problem(item, (*path, "versions"), why, "write `models: [{…}]`")
    if model.labels and (not runtime.labels or path == ("spec", "model")):
        why = f"labels of versions are those of `models` in {titles_with(lambda each: each.labels)}"
        yield _unsupported_problem(item, (*path, "labels"), why, "remove `labels`")
        return
    for label, version in model.labels.items():
        if version not in listed:
            yield Diagnostic(
                "missing-reference",
                f"label `{label}` is of version `{version}`, which is not live",
                item.span(*path, "labels", label),
                hint=f"write one of {', '.join(f'`{each}`' for each in dict.fromkeys(listed))}",
            )


def _check_files(
    item: Item[ServingDeploymentSpec], program: Program, path: tuple[str | int, ...], model: ServedModel | Adapter
) -> Iterator[Diagnostic]:
    spec = item.spec
    url, dataset, directory = model.url, model.dataset, model.path
    runtime = runtime_of(spec)
    if directory is not None and not runtime.takes_path:
        yield _unsupported_problem(
            item,
            (*path, "path"),
            f"{runtime.title} finds its models by name",
            "remove `path`, and have the model in the directory that the server looks into",
        )
    needed = runtime.needs_files
    if (needed or spec.models is not None) and not model.is_fetched and (directory is None or not needed):
        key = path[1] if len(path) == 2 else path[-2]
        sources = "`url`, `dataset` or `path`" if needed else "`url` or `dataset`"
        yield Diagnostic(
            "missing-key",
            f"`{key}` requires {sources}: the server is told where the files are",
            item.span(*path, "name"),
            hint="add `url: s3://bucket/prefix`, the directory with the files",
        )
    if is_of_hub(url):
        if not runtime.hub:
            titles = titles_with(lambda each: each.hub)
            yield _unsupported_problem(
                item,
                (*path, "url"),
                f"models of Hugging Face's hub are copied with the library in the images of {titles}",
                "copy it to a bucket once (`hf download`, `rclone copy`), and write `s3://BUCKET/PREFIX`",
            )
    elif url is not None:
        yield from require_image(item, program, "fetch", (*path, "url"))
        if model.secret is None:
            yield from bucket_problems(item, program, url, (*path, "url"), writes=False)
    if dataset is not None:
        if isinstance(model, ServedModel) and model.versions is not None and runtime.versioned:
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


def _declared_models(spec: ServingDeploymentSpec) -> str:
    if machines_per_replica(spec) == 1:
        return f"a pod has {spec.resources.gpus}"
    return f"{machines_per_replica(spec)} machines of a replica have {spec.resources.gpus} each"


def _language_model(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    spec = item.spec
    runtime = runtime_of(spec)
    if runtime.llm is None:
        if spec.llm is not None:
            titles, names = titles_with(lambda each: each.llm), names_with(lambda each: each.llm)
            yield _unsupported_problem(
                item,
                ("spec", "llm"),
                f"`llm` has options of {titles}, and {runtime.title} has none of them",
                f"remove `llm`, or choose the runtime {one_of(names)}",
            )
        return
    if spec.resources.shares_gpu:
        yield _unsupported_problem(
            item,
            ("spec", "resources", "gpus"),
            f"{runtime.title} takes the memory of whole GPUs, and a pod requests {spec.resources.gpus:g} of one",
            "request a whole GPU, and fewer `replicas`",
        )
    yield from server_argument_problems(item, runtime.llm)
    yield from model_size_problems(item, program)
    if spec.llm is not None:
        yield from _language_model_features(item, spec.llm, runtime.llm)
    found, gpus = split_model(spec), max(1, spec.resources.visible_gpus) * machines_per_replica(spec)
    counted = machines_per_replica(spec) == 1 or spec.resources.gpus  # else it is refused as a whole
    if spec.llm is not None and counted and found.tensor * found.pipeline != gpus:
        key = "tensorParallel" if spec.llm.tensor_parallel is not None else "pipelineParallel"
        yield Diagnostic(
            "parallelism-mismatch",
            f"tensor parallelism {found.tensor} × pipeline parallelism {found.pipeline} needs "
            f"{found.tensor * found.pipeline} GPUs, and {_declared_models(spec)}",
            item.span("spec", "llm", key),
            hint=f"write keys whose product is {gpus}"
            + (
                f", or `gpus: {found.tensor * found.pipeline}` in `resources`"
                if machines_per_replica(spec) == 1
                else ""
            ),
            notes=(Note(item.span("spec", "resources", "gpus"), "the GPUs of a pod"),) if spec.resources.gpus else (),
        )
    if spec.llm is None:
        return
    if spec.llm.adapters:
        served = [spec.model.name] if spec.model is not None else []
        yield from check_duplicates(
            item, ("spec", "llm", "adapters"), (each.name for each in spec.llm.adapters), "adapter"
        )
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


def _has_option(field: str) -> Callable[[LanguageModelSupport], object]:
    return lambda each: field in each.options


def _language_model_features(
    item: Item[ServingDeploymentSpec], llm: LanguageModel, supported: LanguageModelSupport
) -> Iterator[Diagnostic]:
    """Yield keys of `llm` that only other runtimes have options for."""
    features: list[tuple[str, bool, Callable[[LanguageModelSupport], object]]] = [
        ("adapters", bool(llm.adapters), lambda each: each.adapters),
        ("machines", llm.machines > 1, lambda each: each.machines),
        ("prefill", llm.prefill is not None, lambda each: each.disaggregation),
    ]
    for field in ("tensor_parallel", "pipeline_parallel", "max_length", "gpu_memory"):
        features.append((to_camel(field), getattr(llm, field) is not None, _has_option(field)))
    for key, wanted, has in features:
        if wanted and not has(supported):
            names = [name for name, each in runtimes().items() if each.llm is not None and has(each.llm)]
            yield _unsupported_problem(
                item,
                ("spec", "llm", key),
                f"{runtime_of(item.spec).title} has no options for `{key}`",
                f"remove `{key}`, or choose the runtime {one_of(names)}",
            )
