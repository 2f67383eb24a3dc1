"""Read a Slurm batch script: its directives, and the lines of its shell program with their places.

Source: sbatch(1), srun(1).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from avactl.diagnostics import Span
from avactl.spec.documents.document import Document, Path
from avactl.workbench.importer.model import GivenValue, ImportProblem, spec_name

GROUP, KIND = "slurm", "SlurmScript"
_MAX_BYTES = 256 * 1024
_SHORT_OPTIONS = {
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "G": "gpus",
    "t": "time",
    "p": "partition",
    "A": "account",
    "q": "qos",
    "C": "constraint",
    "o": "output",
    "e": "error",
    "a": "array",
    "D": "chdir",
    "d": "dependency",
    "w": "nodelist",
    "x": "exclude",
    "i": "input",
    "L": "licenses",
    "B": "extra-node-info",
    "m": "distribution",
    "M": "clusters",
    "b": "begin",
    "S": "core-spec",
}
"""Short options that take a value."""


class Directive(NamedTuple):
    """An option of an `#SBATCH` line."""

    name: str
    value: str
    line: int


class ScriptLine(NamedTuple):
    """A command of the program; continued lines are joined."""

    text: str
    number: int


@dataclass
class SlurmScript:
    """A batch script."""

    directives: list[Directive] = field(default_factory=list)
    lines: list[ScriptLine] = field(default_factory=list)

    def get(self, *names: str) -> str | None:
        """Return the last value of an option, or None."""
        return next((each.value for each in reversed(self.directives) if each.name in names), None)


class _Lines:
    """Locates the line that a path names: `("line", 12, …)`."""

    def __init__(self, file: str) -> None:
        self.file = file

    def locate(self, index: int, path: Path, key: bool) -> Span:
        number = path[1] if len(path) > 1 and path[0] == "line" else 1
        return Span(self.file, number if isinstance(number, int) else 1)


def read_script(file: str, data: bytes) -> GivenValue:
    """Return a script as an object of the source. Raises ImportProblem."""
    if len(data) > _MAX_BYTES:
        raise ImportProblem(f"{file}: the script has more than {_MAX_BYTES >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ImportProblem(f"{file}: the script is not UTF-8 text") from None
    name = parse(text).get("job-name") or PurePath(file).name.partition(".")[0] or "job"
    value = {
        "apiVersion": f"{GROUP}/v1",
        "kind": KIND,
        "metadata": {"name": spec_name(name)},
        "script": text,
    }
    return GivenValue(value, Document(file, 0, value, _Lines(file)))


def parse(text: str) -> SlurmScript:
    """Return the directives and commands of a script. Directives end at the first command, as in sbatch."""
    script = SlurmScript()
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#SBATCH") and not script.lines and not pending:
            script.directives += _directive_options(stripped.removeprefix("#SBATCH"), number)
            continue
        if not pending and (not stripped or stripped.startswith("#")):
            continue
        first = first or number
        if stripped.endswith("\\"):
            pending += f"{stripped[:-1].strip()} "
            continue
        script.lines.append(ScriptLine(pending + (stripped if pending else line.rstrip()), first))
        pending, first = "", 0
    if pending:
        script.lines.append(ScriptLine(pending.strip(), first))
    return script


def _directive_options(text: str, line: int) -> Iterator[Directive]:
    for name, value in parse_options(split_words(text.partition(" #")[0])):
        yield Directive(name, value, line)


def parse_options(given: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of sbatch or srun among words; the others are skipped."""
    index = 0
    while index < len(given):
        word = given[index]
        index += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and index < len(given) and not given[index].startswith("-") and name not in FLAGS:
                value, index = given[index], index + 1
            yield name, value
        elif re.fullmatch(r"-[A-Za-z].*", word):
            name, value = _SHORT_OPTIONS.get(word[1], ""), word[2:].removeprefix("=")
            if name and not value and index < len(given):
                value, index = given[index], index + 1
            if name:
                yield name, value


FLAGS = (
    "exclusive",
    "requeue",
    "no-requeue",
    "overcommit",
    "hold",
    "parsable",
    "wait",
    "unbuffered",
    "label",
    "kill-on-bad-exit",
    "no-kill",
    "quiet",
    "verbose",
    "overlap",
    "exact",
    "contiguous",
    "oversubscribe",
    "no-container-mount-home",
    "container-writable",
)
"""Options without a value."""


def split_words(text: str) -> list[str]:
    """Split a command into words; one with unbalanced quotes by blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
