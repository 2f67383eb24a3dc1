"""Checks of a language model's own arguments and files against the GPUs that its pods have."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic.alias_generators import to_camel

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.base.terminal import count_text, shorten_middle
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import WordIndex, did_you_mean
from avactl.kinds.serving.llm import has_groups, machines_per_replica, model_options, split_model
from avactl.kinds.serving.runtime import LanguageModelSupport, runtime_of, server
from avactl.kinds.serving.runtime_facts import facts_of, runtime_names
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program

_MAX_SUGGESTIONS = 20
"""Maximum number of unknown options for which the closest known one is searched: a file can have 100,000."""
_IS_COUNT = re.compile(r"[0-9]{1,6}").fullmatch


_SUBSTITUTED = "$("
"""Start of a variable, which Kubernetes replaces by its value: any option, or none."""
_PORT_OPTION = "port"
"""Part of the names of options that move the server from where Services and probes look for it."""


class _Argument(NamedTuple):
    position: int
    name: str
    """The option, with `-` for `_`."""
    value: str
    written: str
    """The option as it is written."""


def server_argument_problems(item: Item[ServingDeploymentSpec], support: LanguageModelSupport) -> Iterator[Diagnostic]:
    """Yield arguments that override what avactl writes or ask for GPUs that a replica does not have."""
    spec = item.spec
    if spec.runtime.command:
        return  # another program reads the arguments
    arguments = _options(spec.runtime.args)
    watched = {**support.aliases, **{option: option for option in (*support.options.values(), support.data_parallel)}}
    given = {watched[name]: each for each in arguments if (name := _full_name(each.name, watched)) in watched}
    written = dict(option.split("=", 1) for option in model_options(spec, support.options))
    keys = {option: key for key, option in support.options.items()}
    copies = given.pop(support.data_parallel, None)
    if copies is not None and _IS_COUNT(copies.value) and int(copies.value) > 1:
        shared = any(each.name == "--enable-dp-attention" for each in arguments)
        yield from _copies_problems(item, support, copies, given, shared)
        return
    for option, argument in given.items():
        if option not in written and keys[option] != "pipeline_parallel":
            continue  # avactl does not write it
        own = written.get(option, "1")
        if argument.value == own or _number(argument.value) == _number(own) is not None:
            continue
        parallel = keys[option] in ("tensor_parallel", "pipeline_parallel")
        yield Diagnostic(
            "conflicting-keys",
            f"`{option}` in `args` is {shorten_middle(argument.value, 40)}, and avactl writes {own}"
            + (f" for the {count_text(_gpus(spec), 'GPU')} of a replica" if parallel else ""),
            item.span("spec", "runtime", "args", argument.position),
            hint=f"remove it from `args`; `llm: {{{to_camel(keys[option])}: …}}`"
            + (" and `resources: {gpus: …}` say it" if parallel else " says it"),
        )


def overridden_problems(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield arguments that repeat an option of avactl's with another value, of any server that it knows."""
    spec = item.spec
    runtime = runtime_of(spec)
    if spec.runtime.command or runtime.is_generic or not spec.runtime.args:
        return
    support = runtime.llm
    told_elsewhere = {*support.options.values(), support.data_parallel} if support is not None else set()
    written = {each.name: each.value for each in _options(server(spec).args)}
    for argument in _options(spec.runtime.args):
        own = written.get(argument.name)
        if own is None or own == argument.value or argument.name in told_elsewhere:
            continue
        is_port = _PORT_OPTION in argument.name
        yield Diagnostic(
            "conflicting-keys",
            f"`{argument.name}` in `args` is {shorten_middle(argument.value, 40)}, and avactl writes "
            f"{shorten_middle(own, 40)}" + (", where clients and probes look for it" if is_port else ""),
            item.span("spec", "runtime", "args", argument.position),
            severity="error" if is_port else "warning",
            hint="remove it from `args`" + ("; `runtime: {port: …}` says it" if argument.name == "--port" else ""),
        )
    if support is not None and not spec.runtime.args[0].startswith(("-", _SUBSTITUTED)):
        yield Diagnostic(
            "unknown-option",
            f"`{shorten_middle(spec.runtime.args[0], 60)}` is no option: {runtime.title} is told its model by `model`",
            item.span("spec", "runtime", "args", 0),
            hint="remove it, and begin with an option",
        )


def image_problems(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield a warning for the image of another server, or for one that needs GPUs without any."""
    spec, image = item.spec, item.spec.runtime.image
    own = facts_of(spec.runtime.name)
    others = [name for name in runtime_names() if any(part in image for part in facts_of(name).images)]
    if own.images and others and spec.runtime.name not in others:
        yield Diagnostic(
            "runtime-cannot",
            f"this is an image of {facts_of(others[0]).title}, and the runtime is {own.title}",
            item.span("spec", "runtime", "image"),
            severity="warning",
            hint=f"write `name: {others[0]}`, or an image of {own.title}",
        )
    support = runtime_of(spec).llm
    is_makers = support is not None and re.search(rf"(^|/){re.escape(runtime_of(spec).image)}[:@]", image)
    counted = has_groups(spec)
    if is_makers and not spec.resources.gpus and not counted:  # else it is refused as a whole
        yield Diagnostic(
            "runtime-cannot",
            f"this image of {own.title} runs on GPUs, and the pods have none",
            item.span("spec", "runtime", "image"),
            severity="warning",
            hint="add `gpus: 1` to `resources`",
        )


def _copies_problems(
    item: Item[ServingDeploymentSpec],
    support: LanguageModelSupport,
    copies: _Argument,
    given: Mapping[str, _Argument],
    shared: bool,
) -> Iterator[Diagnostic]:
    """Yield a problem if copies of the model in a replica need more GPUs than it has; `shared`: they share them."""
    spec, count = item.spec, int(copies.value)
    split = split_model(spec)
    sizes = []
    for key, own in (("tensor_parallel", split.tensor), ("pipeline_parallel", split.pipeline)):
        argument = given.get(support.options.get(key, ""))
        sizes.append(int(argument.value) if argument is not None and _IS_COUNT(argument.value) else own)
    needed = sizes[0] * sizes[1] * (1 if shared else count)
    if needed > _gpus(spec):
        yield Diagnostic(
            "parallelism-mismatch",
            f"{count} copies of the model, each split over {count_text(sizes[0] * sizes[1], 'GPU')}, need {needed} "
            f"GPUs, and a replica has {_gpus(spec)}",
            item.span("spec", "runtime", "args", copies.position),
            hint=f"write `replicas`, which start further pods, or add `{support.options['tensor_parallel']}="
            f"{max(1, _gpus(spec) // count)}` to `args`",
        )


def _full_name(name: str, options: Iterable[str]) -> str:
    """Return the option that a name is the only beginning of, as argparse does."""
    matches = [option for option in options if option.startswith(name)]
    return name if name in options or len(matches) != 1 or not name.startswith("--") else matches[0]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def model_size_problems(item: Item[ServingDeploymentSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a warning for files of a model that the memory of a replica's GPUs cannot hold."""
    spec = item.spec
    if spec.model is None or "size" not in spec.model.model_fields_set or program.lacks_machines:
        return
    model = gpu_model(program, item.cluster, spec.resources)
    pools = program.candidate_pools(item.cluster, model, spec.resources.pool, spec.resources.tolerates)
    gpus = [found for pool in pools if (found := program.machine(pool).gpus) is not None]
    per_gpu = max((int(parse_quantity(each.memory)) for each in gpus), default=0)
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


def unknown_options(item: Item[ServingDeploymentSpec]) -> Iterator[Diagnostic]:
    """Yield options that the server does not have: by the release that the image names, else those that none has."""
    spec, runtime = item.spec, runtime_of(item.spec)
    releases = options_by_release(spec.runtime.name)
    if spec.runtime.command or not releases:
        return  # another program reads the arguments
    release = _release_of(spec.runtime.image, runtime.image, releases)
    known, newest = _known_options(spec.runtime.name, release), next(reversed(releases))
    given: list[tuple[tuple[str, ...], list[str]]] = [(("spec", "runtime", "args"), spec.runtime.args)]
    if spec.llm is not None and spec.llm.prefill is not None:
        given.append((("spec", "llm", "prefill", "args"), spec.llm.prefill.args))
    unknown = [
        (path, argument, name)
        for path, arguments in given
        for argument in _options(arguments)
        if (name := _unknown_name(argument, known, runtime.parser))
    ]
    for index, (path, argument, name) in enumerate(unknown):
        having = [each for each, names in releases.items() if name in names]
        until = f"until {having[-1]}" if having and having[-1] != newest else "on"
        if having:
            hint = f"releases from {having[0]} {until} have it"
        elif index < _MAX_SUGGESTIONS:
            hint = did_you_mean(f"--{name}", _index_options(spec.runtime.name, release), "options")
        else:
            hint = "compare it with the options of the release"
        shown = argument.name if runtime.parser == "argparse" else argument.written
        yield Diagnostic(
            "unknown-option",
            f"{runtime.title} {release or f'up to {newest}'} has no option `{shorten_middle(shown, 60)}`",
            item.span(*path, argument.position),
            # The table has the last patch of a release: others may have what another release has.
            severity="error" if release and not having else "warning",
            hint=hint,
        )


def _unknown_name(argument: _Argument, known: Collection[str], parser: str) -> str:
    """Return the name of an option that the parser of a server's command line does not find; "" if it does."""
    written = argument.name if parser == "argparse" else argument.written
    if not written.startswith("--") or _SUBSTITUTED in written:
        return ""
    name = written.removeprefix("--")
    if parser == "argparse":  # keys of JSON may follow a dot
        name = name.partition(".")[0].removeprefix("no-")
    is_known = name in known or (parser and any(each.startswith(name) for each in known))
    return "" if is_known else name


@cache
def _known_options(server: str, release: str) -> frozenset[str]:
    """Return the options of a release; "": of all."""
    releases = options_by_release(server)
    return releases[release] if release else frozenset[str]().union(*releases.values())


@cache
def _index_options(server: str, release: str) -> WordIndex:
    return WordIndex(f"--{name}" for name in _known_options(server, release))


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


def _release_of(image: str, repository: str, releases: Iterable[str]) -> str:
    """Return the known release that an image of the server's makers has; "" for others, which may have been changed."""
    tag = re.search(rf"(?:^|/){re.escape(repository)}:(?:[a-z0-9]+-)*v?([0-9.]+)", image)
    return next((each for each in releases if tag is not None and f"{tag[1]}.".startswith(f"{each}.")), "")


def _gpus(spec: ServingDeploymentSpec) -> int:
    return max(1, spec.resources.visible_gpus) * machines_per_replica(spec)


def _options(words: Sequence[str]) -> list[_Argument]:
    """Return the options of a command line, with the value after `=` or in the next word; after `--` there are none."""
    found = []
    for index, word in enumerate(words):
        if word == "--":
            break
        option, equals, value = word.partition("=")
        if option.startswith("-"):
            name = f"--{option[2:].replace('_', '-')}" if option.startswith("--") else option
            text = value if equals else next(iter(words[index + 1 : index + 2]), "")
            found.append(_Argument(index, name, text, option))
    return found
