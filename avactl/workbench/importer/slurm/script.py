"""Read a Slurm batch script: its directives, and its program.

Source: sbatch(1), srun(1).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from avactl.diagnostics import Span
from avactl.spec.documents.document import Document, Path
from avactl.workbench.importer.model import Body, GivenValue, ImportProblem, spec_name
from avactl.workbench.importer.slurm.options import directive_options

GROUP, KIND = "slurm", "SlurmScript"
_MAX_BYTES = 256 * 1024
MAX_ELEMENTS = 64
"""Elements of an array that become specs."""


class Directive(NamedTuple):
    """An option of an `#SBATCH` line."""

    name: str
    value: str
    line: int


@dataclass
class SlurmScript:
    """A batch script."""

    shebang: str = ""
    directives: list[Directive] = field(default_factory=list)
    text: str = ""
    """The program: the script with empty lines in place of the directives."""

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


def read_script(file: str, data: bytes) -> list[GivenValue]:
    """Return a script as an object of the source; one for each element of an array. Raises ImportProblem."""
    if len(data) > _MAX_BYTES:
        raise ImportProblem(f"{file}: the script has more than {_MAX_BYTES >> 10} KiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ImportProblem(f"{file}: the script is not UTF-8 text") from None
    script = parse(text)
    name = script.get("job-name") or PurePath(file).name.partition(".")[0] or "job"
    elements = array_elements(script.get("array") or "")[:MAX_ELEMENTS]
    if not elements:
        return [_script_object(file, text, name, None)]
    return [_script_object(file, text, f"{name}-{element}", element) for element in elements]


def _script_object(file: str, text: str, name: str, element: int | None) -> GivenValue:
    value: Body = {
        "apiVersion": f"{GROUP}/v1",
        "kind": KIND,
        "metadata": {"name": spec_name(name)},
        "script": text,
        "file": PurePath(file).name,
    }
    if element is not None:
        value["element"] = element
    return GivenValue(value, Document(file, 0, value, _Lines(file)))


def array_elements(text: str) -> list[int]:
    """Return the indexes of an array, such as `0-9:3,12%2`; empty for none, and for what is no array."""
    found: list[int] = []
    for part in text.partition("%")[0].split(",") if text else ():
        made = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part.strip())
        if made is None or (made[3] and not int(made[3])):
            return []
        found += range(int(made[1]), int(made[2] or made[1]) + 1, int(made[3] or 1))[: MAX_ELEMENTS + 1]
    return list(dict.fromkeys(found))[: MAX_ELEMENTS + 1]


def array_facts(text: str) -> dict[str, int]:
    """Return COUNT, MIN, MAX and STEP of an array, as Slurm's variables tell them."""
    ranges = [
        range(int(made[1]), int(made[2] or made[1]) + 1, int(made[3] or 1))
        for part in text.partition("%")[0].split(",")
        if (made := re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", part.strip()))
    ]
    ranges = [each for each in ranges if each]
    if not ranges:
        return {}
    least, most = min(each[0] for each in ranges), max(each[-1] for each in ranges)
    step = ranges[0].step if len(ranges) == 1 else 1
    return {"COUNT": sum(map(len, ranges)), "MIN": least, "MAX": most, "STEP": step}


def parse(text: str) -> SlurmScript:
    """Return the directives and the program of a script. Directives end at the first command, as in sbatch."""
    script = SlurmScript(shebang=text.partition("\n")[0][2:].strip() if text.startswith("#!") else "")
    lines = text.split("\n")
    for number, line in enumerate(lines):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = split_words(stripped.removeprefix("#SBATCH").partition(" #")[0])
            script.directives += [Directive(name, value, number + 1) for name, value in directive_options(words)]
        if line.startswith(("#SBATCH", "#!")):
            lines[number] = ""
    script.text = "\n".join(lines)
    return script


def split_words(text: str) -> list[str]:
    """Split a command into words; one with unbalanced quotes by blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
