"""Checks of a language model's own arguments and files against the GPUs that its pods have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic.alias_generators import to_camel

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic
from avactl.kinds.serving.llm import machines_per_replica, model_options
from avactl.kinds.serving.runtime import LanguageModelSupport
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program


class _Argument(NamedTuple):
    position: int
    value: str


def server_argument_problems(item: Item[ServingDeploymentSpec], support: LanguageModelSupport) -> Iterator[Diagnostic]:
    """Yield arguments that override what avactl writes, or that ask for GPUs that a replica does not have."""
    spec, aliases = item.spec, support.aliases
    given = {aliases.get(option, option): each for option, each in _options(spec.runtime.args).items()}
    written = dict(option.split("=", 1) for option in model_options(spec, support.options))
    keys = {option: key for key, option in support.options.items()}
    for option in given.keys() & (written.keys() | {support.options.get("pipeline_parallel")}):
        own, argument = written.get(option, "1"), given[option]
        if argument.value == own:
            continue
        parallel = keys[option] in ("tensor_parallel", "pipeline_parallel")
        yield Diagnostic(
            "conflicting-keys",
            f"`{option}` in `args` is {argument.value}, and avactl writes {own}"
            + (f" for the {_gpus(spec)} GPU{'s' if _gpus(spec) > 1 else ''} of a replica" if parallel else ""),
            item.span("spec", "runtime", "args", argument.position),
            hint=f"remove it from `args`; `llm: {{{to_camel(keys[option])}: …}}`"
            + (" and `resources: {gpus: …}` say it" if parallel else " says it"),
        )
    copies = given.get(support.data_parallel)
    if copies is not None and copies.value.isdigit() and int(copies.value) > _gpus(spec):
        yield Diagnostic(
            "parallelism-mismatch",
            f"`{support.data_parallel}` needs at least {copies.value} GPUs, and a replica has {_gpus(spec)}",
            item.span("spec", "runtime", "args", copies.position),
            hint="write `replicas`, which start further pods, or more `gpus` in `resources`",
        )


def model_size_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a warning for files of a model that the memory of a replica's GPUs cannot hold."""
    spec = item.spec
    if spec.model is None or "size" not in spec.model.model_fields_set or program.lacks_machines:
        return
    model = gpu_model(program, item.cluster, spec.resources)
    pools = program.candidate_pools(item.cluster, model, spec.resources.pool, spec.resources.tolerates)
    per_gpu = max((int(parse_quantity(program.machine(pool).gpus.memory)) for pool in pools), default=0)
    size, memory = int(parse_quantity(spec.model.size)), per_gpu * _gpus(spec)
    if model is None or not memory or size <= memory:
        return
    yield Diagnostic(
        "model-exceeds-memory",
        f"the files of the model may have {spec.model.size}, and the {_gpus(spec)} {model} of a replica have "
        f"{format_quantity(memory)} of memory",
        item.span("spec", "model", "size"),
        severity="warning",
        hint=f"write `gpus: {-(-size // per_gpu)}` or more in `resources`, or the size that the files have",
    )


def _gpus(spec: ServingDeploymentSpec) -> int:
    return max(1, spec.resources.gpus) * machines_per_replica(spec)


def _options(words: Sequence[str]) -> dict[str, _Argument]:
    """Return the options of a command line, with the value after `=` or in the next word; the last one counts."""
    found = {}
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option.startswith("-"):
            found[option] = _Argument(index, value if equals else next(iter(words[index + 1 : index + 2]), ""))
    return found
