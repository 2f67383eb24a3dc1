"""Programs that run in containers of their own: the pod runs them, in the image of the spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from avactl.workbench.importer.shell import Program, Word
from avactl.workbench.importer.slurm.commands import Note
from avactl.workbench.importer.slurm.sizes import LeftOut
from avactl.workbench.importer.slurm.steps import base_name, text_of_assignment


class _Runtime(NamedTuple):
    """How a command line names a program: its options, the same by a letter, and whether an image comes before it."""

    flags: frozenset[str]
    values: frozenset[str]
    letters: dict[str, str]
    command: str = ""
    """Word after the runtime's name."""
    names_image: bool = False
    """True if the image comes before the program."""
    prefixes: tuple[str, ...] = ()
    """Of variables that only the program gets."""


_SINGULARITY = _Runtime(
    frozenset(
        """
        nv nvccli rocm cleanenv contain containall ipc pid no-home writable writable-tmpfs userns fakeroot no-init
        no-umask no-privs keep-privs compat unsquash no-eval no-pid sharens disable-cache
        """.split()  # noqa: SIM905 - a list of words reads better
    ),
    frozenset(
        "bind mount env pwd cwd workdir scratch home overlay no-mount app security add-caps drop-caps".split()  # noqa: SIM905
    ),
    {
        "B": "bind",
        "H": "home",
        "W": "workdir",
        "S": "scratch",
        "o": "overlay",
        "e": "cleanenv",
        "c": "contain",
        "C": "containall",
        "i": "ipc",
        "p": "pid",
        "w": "writable",
        "u": "userns",
        "f": "fakeroot",
    },
    "exec",
    True,
    ("SINGULARITYENV_", "APPTAINERENV_"),
)
_SHIFTER = _Runtime(
    frozenset(["entrypoint", "clearenv"]),
    frozenset(["image", "module", "volume", "env", "workdir"]),
    {"i": "image", "m": "module", "V": "volume", "e": "env", "w": "workdir"},
)
_CONDA = _Runtime(
    frozenset(["no-capture-output", "live-stream", "verbose"]),
    frozenset(["name", "prefix", "cwd"]),
    {"n": "name", "p": "prefix", "s": "live-stream", "v": "verbose"},
    "run",
)
RUNTIMES = {
    "singularity": _SINGULARITY,
    "apptainer": _SINGULARITY,
    "apptainer_wrapper": _SINGULARITY._replace(names_image=False),  # of CSC
    "singularity_wrapper": _SINGULARITY._replace(names_image=False),
    "shifter": _SHIFTER,
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
}
_EXPANSION = re.compile(r"\"?\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?\})\"?")
OTHER_RUNTIMES = ("docker", "podman", "podman-hpc", "nerdctl", "enroot", "ch-run", "udocker", "sarus", "charliecloud")
"""Programs whose containers have an entrypoint, or a file system, that a script does not tell."""


def refuse_runtime(name: str, line: int) -> None:
    """Raise LeftOut for a runtime whose program a script does not tell."""
    if name in OTHER_RUNTIMES:
        raise LeftOut(
            f"line {line}: pods have no `{name}`: write the program that it starts, and name its image by "
            "`--image job=…`"
        )


def enter(program: Program, words: list[Word], line: int, note: Note) -> tuple[list[Word], str]:
    """Return the words of the program that a container or an environment runs, and `env … ` for what it sets.

    Raises LeftOut for what runs a program of its image, and for options that are not known.
    """
    prefix = ""
    while words and _runtime_of(words) is not None:
        index, more = _enter(program, words, line, note)
        words, prefix = words[index:], prefix + more
    return words, prefix


def _runtime_of(words: Sequence[Word]) -> _Runtime | None:
    runtime = RUNTIMES.get(base_name(words[0]))
    if runtime is _CONDA and [each.value for each in words[1:2]] != ["run"]:
        return None
    return runtime


def _enter(program: Program, words: Sequence[Word], line: int, note: Note) -> tuple[int, str]:
    name = base_name(words[0])
    runtime = RUNTIMES[name]
    index, given = 1, []
    if runtime.command:
        texts = [each.text for each in words]
        index = next((at for at, each in enumerate(texts) if at and not each.startswith("-")), len(texts))
        if texts[index : index + 1] != [runtime.command]:
            raise LeftOut(f"line {line}: the program of the container is in its image")
        index += 1
    while index < len(words):
        held = _held_options(program, words[index], runtime, line)
        if held is not None:
            given += held
            index += 1
        elif words[index].text.startswith("-"):
            option, value, index = _read_option(runtime, words, index, line)
            given.append((option, value))
        else:
            break
    if runtime.names_image:
        index += 1
    if index >= len(words) or words[index].text.startswith("-"):
        raise LeftOut(f"line {line}: the container has no command")
    if runtime is _CONDA:
        note(line, "the image has what the line loads", "build it into the image")
    else:
        image = words[index - 1].text if runtime.names_image else next((v for o, v in given if o == "image"), "its own")
        note(line, f"the pods run the image of the spec in place of {image[:200]}")
    variables, directory = "", ""
    for option, value in given:
        if option == "env":
            variables += "".join(f"{each} " for each in _variables(value, runtime, line))
        elif option in ("pwd", "cwd") or (option == "workdir" and runtime is _SHIFTER):
            directory = f"-C {value} "
        elif option in ("bind", "mount", "volume", "home", "scratch", "overlay"):
            note(line, f"`--{option} {value[:80]}` has no effect", "mount volumes: `pod: {volumes: …}`")
        elif option in ("cleanenv", "containall", "clearenv"):
            note(line, f"`--{option}` has no effect: the program also gets the variables of the script")
        elif option in ("app", "entrypoint"):
            raise LeftOut(f"line {line}: `--{option}` of {name} runs what only its image tells")
    for each in program.assignments:
        prefix = next((one for one in runtime.prefixes if each.startswith(one)), None)
        own = each.removeprefix(prefix or "")
        if prefix and own in ("PATH", "PREPEND_PATH", "APPEND_PATH", "LD_LIBRARY_PATH"):
            raise LeftOut(f"line {line}: {each} changes the paths of a container")
        if prefix:
            variables += f'{own}="${each}" '
    return index, f"env {directory}{variables}" if directory or variables else ""


def _held_options(program: Program, word: Word, runtime: _Runtime, line: int) -> list[tuple[str, str]] | None:
    """Return the options that a variable holds, or None for another word. Raises LeftOut if they are not known.

    A value may begin with the former one: `BINDS="$BINDS,/data"`.
    """
    whole = _EXPANSION.fullmatch(word.text)
    name = next(filter(None, whole.groups()), "") if whole else ""
    places = program.assignments.get(name, [])
    texts = [text_of_assignment(program, each) for each in places]
    if not any(text is not None and re.match(r"\(?\s*[\"']?-", text) for text in texts):
        return None
    found: list[tuple[str, str]] = []
    for text in texts:
        own = re.match(rf"\$\{{?{name}\b\}}?\S*", text or "")
        rest = text[own.end() :] if own and text else text
        if rest is None or (not own and rest and not rest.startswith("-")) or re.search(r"`|\$\(|[\"'\\]", rest):
            raise LeftOut(f"line {line}: {word.text[:40]} may hold options of a container: write them in its place")
        index, words = 0, [Word(word.start, word.end, each, None) for each in rest.split()]
        while index < len(words):
            option, value, index = _read_option(runtime, words, index, line)
            if option not in (*runtime.flags, "bind", "mount", "volume", "home", "scratch", "overlay", "image"):
                raise LeftOut(f"line {line}: {word.text[:40]} holds `--{option}`: write it in place of the variable")
            found.append((option, value))
    return found


def _read_option(runtime: _Runtime, words: Sequence[Word], index: int, line: int) -> tuple[str, str, int]:
    """Return an option, the text of its value, and the index after it. Raises LeftOut if it is not known."""
    text = words[index].text
    name, equals, value = text.lstrip("-").partition("=")
    glued = not text.startswith("--") and len(name) > 1 and runtime.letters.get(name[0]) in runtime.values
    if glued:
        return runtime.letters[name[0]], text[2:].removeprefix("="), index + 1
    if not text.startswith("--"):
        name = runtime.letters.get(name, name)
    if name in runtime.flags and not equals:
        return name, "", index + 1
    if name not in runtime.values or (not equals and index + 1 >= len(words)):
        raise LeftOut(f"line {line}: `{text[:40]}` of {words[0].text[:40]} is not known")
    return (name, value, index + 1) if equals else (name, words[index + 1].text, index + 2)


def _variables(text: str, runtime: _Runtime, line: int) -> list[str]:
    """Return the `NAME=VALUE` of an option, of which one can have several."""
    found = text.split(",") if runtime.names_image and not re.search(r"[\"'\\]", text) else [text]
    if not all(re.match(r"[\"']?[A-Za-z_]\w*=", each) for each in found):
        raise LeftOut(f"line {line}: `--env {text[:40]}` cannot be read")
    return found
