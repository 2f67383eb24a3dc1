"""Command lines of known model servers → `runtime`, `model` and `llm` of a ServingDeployment, if nothing is lost."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from pydantic import ValidationError

from avactl.kinds.serving.runtime import ServingRuntime, runtime, runtimes, server
from avactl.kinds.serving.runtime_facts import facts_of
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.workbench.importer.model import Body

_SHELLS = ("sh", "bash", "dash", "ash")
_SHELL_SYNTAX = re.compile(r"[;&|<>$`\n(){}*?~#!\\]")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


class UnlikeServerError(Exception):
    """A command line that the runtime of a spec would not repeat. The text is the reason."""


@dataclass
class ServerOptions:
    """A command line in the words of a spec."""

    model: Body
    runtime: Body
    env: Body = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Options that avactl adds."""


def known_runtime(image: str) -> str:
    """Return the runtime of an image; "" if avactl knows none."""
    return next((name for name, each in runtimes().items() if any(part in image for part in each.images)), "")


def live_path(name: str, model: str) -> str:
    """Return the path of a known server that tells whether it is healthy; "" if it depends on an unknown model."""
    paths = set()
    for each in (model,) if model else ("a", "b"):
        body = {"model": {"name": each, "version": "1"}, "runtime": {"name": name, "image": "a:1"}}
        paths.add(server(ServingDeploymentSpec.model_validate(body)).live or "")
    return paths.pop() if len(paths) == 1 else ""


def read_server(name: str, words: list[str], image: str, resources: Body) -> ServerOptions:
    """Return the command line of a known server for a spec. Raises UnlikeServerError.

    `words`: command and arguments of the container.
    """
    known = runtime(name)
    words = _without_program(known, _plain_words(words))
    model_options = tuple(each for each in known.model_options if each.startswith("-"))
    options = _Options(words, known)
    if "serve" in known.model_options and words and not words[0].startswith("-"):
        path, options.used = words[0], {0}
    else:
        path = options.take(*model_options) or ""
    if not path.startswith("/"):
        told = f"its model `{path[:80]}` is not a directory in the pod" if path else "it names no directory of a model"
        raise UnlikeServerError(told)
    # A server without such an option is asked for no name.
    names = options.take_all(*known.name_options) if known.name_options else [path.rstrip("/").rpartition("/")[2]]
    if len(names) != 1 or not _NAME.fullmatch(names[0]):
        told = f"clients request the model as `{' '.join(names or [path])[:80]}`"
        raise UnlikeServerError(f"{told}, and a model of a spec has one name, of letters, digits, `.`, `_` and `-`")
    port = options.take("--port")
    if port is not None and not port.isdecimal():
        raise UnlikeServerError(f"its port is `{port[:40]}`")
    body: Body = {"name": name, "image": image}
    if port is not None and int(port) != known.ports["http"]:
        body["port"] = int(port)
    made = ServerOptions({"name": names[0], "version": "1", "path": path}, body)
    _compare_options(known, made, options, resources)
    rest = [word for index, word in enumerate(words) if index not in options.used]
    if rest:
        body["args"] = rest
    return made


def _plain_words(words: list[str]) -> list[str]:
    """Return the words of a command, also of one that a shell runs."""
    if words and words[0].rpartition("/")[2] in _SHELLS:
        if len(words) != 3 or not re.fullmatch(r"-[a-z]*c", words[1]) or _SHELL_SYNTAX.search(words[2]):
            raise UnlikeServerError("its command is a program of a shell")
        try:
            words = shlex.split(words[2])
        except ValueError:
            raise UnlikeServerError("its command is a program of a shell") from None
        return words[1:] if words[:1] == ["exec"] else words
    return words


def _without_program(known: ServingRuntime, words: list[str]) -> list[str]:
    for program in known.programs:
        if tuple(words[: len(program)]) == program:
            return words[len(program) :]
    if words and not words[0].startswith("-"):
        raise UnlikeServerError(f"its program is `{words[0][:80]}`")
    return words


class _Options:
    """Options of a command line, and which of its words were read."""

    def __init__(self, words: list[str], known: ServingRuntime) -> None:
        self.words, self.used = words, set[int]()
        self._aliases = known.llm.aliases if known.llm is not None else {}
        self._dashes = known.parser == "argparse"

    def _named(self, index: int) -> tuple[str, str | None]:
        option, equals, value = self.words[index].partition("=")
        name = f"--{option[2:].replace('_', '-')}" if self._dashes and option.startswith("--") else option
        return self._aliases.get(name, name), value if equals else None

    def take_all(self, *names: str) -> list[str]:
        """Return all values of an option that may have several. Raises UnlikeServerError if it occurs twice."""
        found: list[str] | None = None
        for index, word in enumerate(self.words):
            if not word.startswith("-"):
                continue
            name, value = self._named(index)
            if name not in names:
                continue
            if found is not None:
                raise UnlikeServerError(f"`{name}` occurs twice")
            self.used.add(index)
            found = [value] if value is not None else []
            for after in range(index + 1, len(self.words)):
                if value is not None or self.words[after].startswith("-"):
                    break
                found.append(self.words[after])
                self.used.add(after)
        return found or []

    def take(self, *names: str) -> str | None:
        """Return the value of an option, or None. Raises UnlikeServerError if it has several."""
        found = self.take_all(*names)
        if len(found) > 1:
            raise UnlikeServerError(f"`{names[0]}` has several values")
        return found[0] if found else None


def _compare_options(known: ServingRuntime, made: ServerOptions, options: _Options, resources: Body) -> None:
    """Compare the options that avactl writes with those of the source. Raises UnlikeServerError."""
    compute = {key: resources[key] for key in ("cpu", "memory", "gpus") if key in resources}
    spec = _validated({"model": made.model, "runtime": made.runtime, "resources": compute})
    run = server(spec)
    own = {"--port", *known.name_options, *known.model_options}
    for written in run.args:
        option, _, value = written.partition("=")
        if option in own or not option.startswith("-"):
            continue
        given = options.take(option)
        if given is not None and given != value:
            raise UnlikeServerError(f"its `{option}` is `{given[:40]}`, and avactl writes `{value[:40]}`")
        if given is None and option in (known.llm.options.values() if known.llm is not None else ()):
            if value != "1":
                raise UnlikeServerError(f"it has no `{option}`, and avactl writes `{value}`")
        elif given is None:
            made.added.append(written)
    # Its files are in the pod, but code and tokenizers that its options name may be on the hub.
    if "HF_HUB_OFFLINE" in run.env:
        made.env["HF_HUB_OFFLINE"] = "0"


def _validated(body: Body) -> ServingDeploymentSpec:
    try:
        return ServingDeploymentSpec.model_validate(body)
    except ValidationError:
        raise UnlikeServerError("its command line has values that a spec does not take") from None


def served_name(words: list[str], env: Body, runtime_name: str) -> str:
    """Return the name that clients request the model by, as a model of a spec can have it; "" if there is none."""
    records = [facts_of(runtime_name)] if runtime_name else list(runtimes().values())
    options = {option for record in records for option in record.name_options}
    text = " ".join(words)
    found = re.search(rf"(?:^|\s)(?:{'|'.join(map(re.escape, sorted(options)))})[= ]+([^\s;&|]+)", text)
    hub = re.search(r"(?:^|\s)(?:--?model(?:-id|-path)?[= ]+|serve )([^\s;&|-][^\s;&|]*)", text)
    of_env = env.get("MODEL_NAME")
    guess = found[1] if found else of_env if isinstance(of_env, str) else hub[1] if hub else ""
    guess = guess.strip("'\"")
    if "$" in guess:
        return ""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", guess.rstrip("/").rpartition("/")[2]).strip("-_.")[:63]
