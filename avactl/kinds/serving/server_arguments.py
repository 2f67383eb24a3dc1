"""Checks of a language model's own arguments and files against the GPUs that its pods have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic.alias_generators import to_camel

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import did_you_mean
from avactl.kinds.serving.llm import machines_per_replica, model_options
from avactl.kinds.serving.runtime import LanguageModelSupport, runtime_of
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
    yield from _unknown_options(item)
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


def _unknown_options(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield options that the server ends at: errors if the image names a release, else those that no release has."""
    runtime = item.spec.runtime
    releases = options_by_release(runtime.name)
    release = _release_of(runtime.image, releases)
    known = releases[release] if release else frozenset[str]().union(*releases.values())
    for option, argument in _options(runtime.args).items():
        # As argparse and vLLM take it: `_` for `-`, the beginning of a name, keys of JSON after a dot.
        name = option.removeprefix("--").removeprefix("no-").partition(".")[0].replace("_", "-")
        if not known or not option.startswith("--") or any(each.startswith(name) for each in known):
            continue
        having, newest = [each for each, names in releases.items() if name in names], next(reversed(releases))
        until = f"until {having[-1]}" if having and having[-1] != newest else "on"
        yield Diagnostic(
            "unknown-option",
            f"{runtime_of(item.spec).title} {release or f'up to {newest}'} has no option `{option}`",
            item.span("spec", "runtime", "args", argument.position),
            severity="error" if release else "warning",
            hint=f"releases from {having[0]} {until} have it" if having else did_you_mean(name, known, "options"),
        )


@cache
def options_by_release(server: str) -> dict[str, frozenset[str]]:
    """Return the options of each known release of a server, oldest first; empty for other servers."""
    path = Path(__file__).parent / "runtimes" / "options" / f"{server}.json"
    names: frozenset[str] = frozenset()
    found = {}
    for release, changes in json.loads(path.read_bytes()).items() if path.exists() else ():
        names = names.difference(each[1:] for each in changes if each[0] == "-")
        names = names.union(each[1:] for each in changes if each[0] == "+")
        found[release] = names
    return found


def _release_of(image: str, releases: Iterable[str]) -> str:
    """Return the known release that an image of the server's makers has; "" for others, which may have been changed."""
    tag = re.search(r"(?:^|/)(?:vllm/vllm-openai|lmsysorg/sglang):v?([0-9.]+)", image)
    return next((each for each in releases if tag is not None and f"{tag[1]}.".startswith(f"{each}.")), "")


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
