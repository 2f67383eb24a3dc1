"""Steps of a batch script: what `srun` starts, on which nodes, and how often."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from avactl.workbench.importer.shell import Command, Program, Word
from avactl.workbench.importer.slurm.options import KNOWN_OPTIONS, Option, step_options
from avactl.workbench.importer.slurm.sizes import LeftOut

_EXPANSION = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_MAX_DEPTH = 5
"""Variables that a name is looked up through."""
_SIZE_VARIABLES = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_HOSTFILE")
_OPTION_VARIABLES = {"SLURM_MPI_TYPE": "mpi", "SRUN_CPUS_PER_TASK": "cpus-per-task"}
"""Variables that stand for options of srun."""
_MPI_NAMES = ("pmix", "pmi2", "openmpi", "pmi1", "cray_shasta")


_WRAPPERS = (
    *("exec", "command", "env", "nohup", "setsid", "time", "timeout", "nice", "ionice", "stdbuf", "numactl"),
    *("taskset", "xargs", "parallel"),
)
"""Programs that start the one of their arguments."""


@dataclass
class Step:
    """A command of `srun`."""

    command: Command
    """Its words begin with `srun`."""
    options: list[Option]
    program: list[Word]
    """Words of the program that it starts."""
    name: str
    """Name of the program without its directory; empty if the script does not tell it."""
    prefix: str = ""
    """Text before the program, of what its container sets."""
    wrapper: str = ""
    """The program that starts srun, such as `timeout`."""

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def by_mpi(self) -> bool:
        """Return True if its processes find each other by MPI."""
        return (self.get("mpi") or "").partition("_v")[0] in _MPI_NAMES

    def get(self, *names: str) -> str | None:
        """Return the last value of an option, or None."""
        return next((value for name, value in reversed(self.options) if name in names), None)

    def number(self, *names: str) -> int:
        """Return the value of an option, at least 1; 0 without the option. Raises LeftOut."""
        value = self.get(*names)
        if value is None:
            return 0
        found = re.fullmatch(r"([1-9]\d{0,5})(?:-\1)?", value)
        if found is None:
            raise LeftOut(f"line {self.line}: `--{names[0]} {value[:40]}` of srun is no number that the script tells")
        return int(found[1])


def find_steps(program: Program, constants: Mapping[str, str]) -> list[Step]:
    """Return the steps of a program; `constants` are variables whose values are known. Raises LeftOut."""
    found = []
    for each in program.commands:
        inner = inner_command(each, ("srun",))
        if inner is not None:
            step = _read_step(program, inner, constants)
            step.wrapper = "" if inner is each else each.name
            found.append(step)
    return found


def inner_command(command: Command, names: tuple[str, ...]) -> Command | None:
    """Return the command itself if it is one of these, or what it starts of them, as `timeout 60 srun` does; or None.

    Raises LeftOut if that is srun, and pods start it another way.
    """
    bases = [(word.value or "").rpartition("/")[2] for word in command.words]
    at = next((index for index, base in enumerate(bases) if base in names), None)
    asked = command.name == "command" and bases[1:2] and bases[1].startswith("-")
    if at is None or asked or command.name in ("echo", "printf", "which", "type", "hash", "export", "module", "ml"):
        return None
    if at and command.name not in _WRAPPERS:
        if names == ("srun",):
            raise LeftOut(f"line {command.line}: `{command.name}` starts srun, which pods do not have")
        return None
    return command if not at else Command(command.node, command.words[at:], command.assignments)


def known_value(program: Program, text: str, constants: Mapping[str, str], before: int | None = None) -> str | None:
    """Return the value of a word whose variables are known, or None. `before`: byte before which they are assigned."""
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    text = text[1:-1] if quoted else text
    rest = _EXPANSION.sub("", text)
    if re.search(r"[\"'\\`$]", rest) or (not quoted and re.search(r"[~*?\[\]{}\s]", rest)):
        return None
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        name = found[1] or found[2]
        known = constants.get(name)
        known = program.literal_variable(name, before) if known is None else known
        missing |= known is None
        return known or ""

    made = _EXPANSION.sub(value, text)
    if missing or (not quoted and re.search(r"[\s*?\[]", made)):
        return None
    return made


def _read_step(program: Program, command: Command, constants: Mapping[str, str]) -> Step:
    """Return a step. A variable that holds options counts as the words of its value."""
    words: list[str] = []
    places: list[Word | None] = []
    for word in command.words[1:]:
        whole = _EXPANSION.fullmatch(word.text)
        value = _assigned_text(program, whole[1] or whole[2]) if whole else None
        if value is not None and (not value or value.startswith("-")) and not re.search(r"[$`]", value):
            split = value.replace("\\\n", " ").split()
            words += split
            places += [None] * len(split)
        else:
            words.append(word.value if word.value is not None else word.text)
            places.append(word)
    if ":" in words:
        raise LeftOut(f"line {command.line}: a step of several programs has no equivalent")
    options, start = step_options(words)
    options += _options_of_variables(program, constants, {name for name, _ in options})
    first = places[start] if start < len(places) else None
    if first is None:
        raise LeftOut(f"line {command.line}: srun starts no program that the script tells")
    name = program_name(program, first)
    if not name:
        raise LeftOut(f"line {command.line}: {first.text[:40]} may hold options of srun or a program")
    for option, value in options:
        if value and option not in KNOWN_OPTIONS and f"--{option}={value}" not in words:
            raise LeftOut(f"line {command.line}: `--{option}` of srun is not known: write its value after `=`")
    known = [(option, _known_or_text(program, value, constants)) for option, value in options]
    return Step(command, known, command.words[command.words.index(first) :], name)


def _options_of_variables(program: Program, constants: Mapping[str, str], given: set[str]) -> list[Option]:
    """Return the options that variables set, which the script assigns. Raises LeftOut for those of other sizes."""
    unset = {word.text: each.line for each in program.commands if each.name == "unset" for word in each.words[1:]}
    for name in _SIZE_VARIABLES:
        place = program.assignments.get(name)
        if place or name in unset:
            line = place[0].line if place else unset[name]
            raise LeftOut(f"line {line}: {name} changes what srun starts: write its options")
    found = []
    for name, option in _OPTION_VARIABLES.items():
        place = program.only_assignment(name)
        value = place.child("Value") if place is not None and option not in given else None
        known = known_value(program, program.text_of(value), constants) if value is not None else None
        if known is not None:
            found.append((option, known))
    return found


def program_name(program: Program, word: Word) -> str:
    """Return the name of the program that a word begins, without its directory; empty if the script does not tell."""
    name = word.value
    if name is None:
        name = word.text.strip('"')
        for _ in range(_MAX_DEPTH):
            whole = _EXPANSION.match(name)
            name = (_assigned_text(program, whole[1] or whole[2]) or "") + name[whole.end() :] if whole else name
        name = name.split()[0] if re.match(r"[\w./]", name) else ""
    return name.rpartition("/")[2]


def _assigned_text(program: Program, name: str) -> str | None:
    """Return the text that a variable is assigned once, without its quotes and outer blanks, or None."""
    place = program.only_assignment(name)
    if place is None or place.has("Array"):
        return None
    value = place.child("Value")
    if value is None:
        return ""
    text = program.literal(value)
    return (program.text_of(value).strip("\"'") if text is None else text).lstrip("\\\n ").strip()


def _known_or_text(program: Program, text: str, constants: Mapping[str, str]) -> str:
    value = known_value(program, text, constants)
    return text if value is None else value


def exported(step: Step) -> tuple[str, bool]:
    """Return `env NAME=VALUE …` for `--export` of a step, and whether other variables are passed on. Raises LeftOut."""
    value = step.get("export")
    if value is None or value == "ALL":
        return "", True
    if value in ("NONE", "NIL"):
        raise LeftOut(f"line {step.line}: `--export={value}` passes no variable on")
    if re.search(r"[$`]", value):
        raise LeftOut(f"line {step.line}: `--export` of srun has values that the script computes")
    parts = [each for each in value.split(",") if each and each != "ALL"]
    named = [each for each in parts if "=" in each]
    if any(not re.fullmatch(r"[A-Za-z_]\w*=.*", each, re.DOTALL) for each in named):
        raise LeftOut(f"line {step.line}: `--export={value[:40]}` cannot be read")
    return "".join(f"{shlex.quote(each)} " for each in named), "ALL" in value.split(",")
