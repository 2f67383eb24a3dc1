"""Steps of a batch script: what `srun` starts, on which nodes, and how often."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from avactl.workbench.importer.shell import Command, Node, Program, Word
from avactl.workbench.importer.slurm.options import KNOWN_OPTIONS, MEANT_OPTIONS, Option, step_options
from avactl.workbench.importer.slurm.sizes import LeftOut

_EXPANSION = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)").fullmatch
_WHICH = re.compile(r'"?\$\((?:which|command -v) ([\w.-]+)\)"?').fullmatch
_PLAIN_DEFAULT = re.compile(r"\$\{(\w+):-([\w.:/-]*)\}")
_DEFAULT = re.compile(r"\$\{(\w+):?-([^{}$]*)\}").match
_MAX_DEPTH = 5
"""Variables that a name is looked up through."""
_SIZE_VARIABLES = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_NTASKS_PER_NODE", "SLURM_HOSTFILE")
_OPTION_VARIABLES = {"SLURM_MPI_TYPE": "mpi", "SRUN_CPUS_PER_TASK": "cpus-per-task"}
"""Variables that stand for options of srun."""
_MPI_NAMES = ("pmix", "pmi2", "openmpi", "pmi1", "cray_shasta")


WRAPPERS = (
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


def base_name(word: Word) -> str:
    """Return a word without its directory; empty if it is no literal."""
    return (word.value or "").rpartition("/")[2]


def inner_command(command: Command, names: tuple[str, ...]) -> Command | None:
    """Return the command itself if it is one of these, or what it starts of them, as `timeout 60 srun` does; or None.

    Raises LeftOut if that is srun, and pods start it another way.
    """
    bases = [base_name(word) for word in command.words]
    at = next((index for index, base in enumerate(bases) if base in names), None)
    asked = command.name == "command" and bases[1:2] and bases[1].startswith("-")
    if at is None or asked or command.name in ("echo", "printf", "which", "type", "hash", "export", "module", "ml"):
        return None
    if at and command.name not in WRAPPERS:
        if names == ("srun",):
            raise LeftOut(f"line {command.line}: `{command.name}` starts srun, which pods do not have")
        return None
    return command if not at else Command(command.node, command.words[at:], command.assignments)


def known_value(
    program: Program, text: str, constants: Mapping[str, str], before: int | None = None, depth: int = _MAX_DEPTH
) -> str | None:
    """Return the value of a word whose variables are known, or None. `before`: byte before which they are assigned."""

    def variable(name: str) -> str | None:
        if name in constants:
            return constants[name]
        found = program.literal_variable(name, before)
        inner = program.assigned_value(name, before) if found is None and depth else None
        return known_value(program, program.text_of(inner), constants, before, depth - 1) if inner else found

    def default(found: re.Match[str]) -> str:
        if found[1] in constants:
            return constants[found[1]]
        return found[2] if found[1].startswith("SLURM_") and found[1] not in program.assignments else found[0]

    text = _PLAIN_DEFAULT.sub(default, text)
    sum_ = _ARITHMETIC(text)
    if sum_ is not None:
        return _compute(
            re.sub(r"\$?\b[A-Za-z_]\w*|\$\{\w+\}", lambda each: variable(each[0].strip("${}")) or "?", sum_[1])
        )
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    text = text[1:-1] if quoted else text
    rest = _EXPANSION.sub("", text)
    if re.search(r"[\"'\\`$]", rest) or (not quoted and re.search(r"[~*?\[\]{}\s]", rest)):
        return None
    values = {each[0]: variable(each[1] or each[2]) for each in _EXPANSION.finditer(text)}
    if None in values.values():
        return None
    made = _EXPANSION.sub(lambda each: values[each[0]] or "", text)
    return None if not quoted and re.search(r"[\s*?\[]", made) else made


def _compute(text: str) -> str | None:
    """Return the value of a sum of numbers, or None."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:([-+*/])\s*(\d{1,9})\s*)?", text)
    if found is None or (found[2] == "/" and not int(found[3])):
        return None
    first, second = int(found[1]), int(found[3] or 0)
    return str(
        {None: first, "+": first + second, "-": first - second, "*": first * second}.get(
            found[2], first // (second or 1)
        )
    )


def _read_step(program: Program, command: Command, constants: Mapping[str, str]) -> Step:
    """Return a step. A variable that holds options counts as the words of its value."""
    words: list[str] = []
    places: list[Word | None] = []
    for word in command.words[1:]:
        split = _held_options(program, word, constants)
        if split is None:
            words.append(word.value if word.value is not None else word.text)
            places.append(word)
        else:
            words += split
            places += [None] * len(split)
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


def _held_options(program: Program, word: Word, constants: Mapping[str, str]) -> list[str] | None:
    """Return the words of a variable that is empty or holds options, or None."""
    elements = _elements(program, word)
    if elements:
        values = [program.literal(each) for each in elements]
        texts = [
            program.text_of(each) if value is None else value for each, value in zip(elements, values, strict=True)
        ]
        return texts if texts[0].startswith("-") else None
    whole = _EXPANSION.fullmatch(word.text)
    places = program.assignments.get(whole[1] or whole[2], []) if whole else []
    found: list[str] = []
    for place in places:
        text = text_of_assignment(program, place)
        if text is None or (text and not text.startswith("-")) or re.search(r"`|\$\(", text):
            return None
        text = text.replace("\\\n", " ")
        known = known_value(program, f'"{text}"', constants)
        found += (text if known is None else known).split()
    if len(places) > 1 and any(name in MEANT_OPTIONS for name, _ in step_options(found)[0]):
        return None  # which of them counts, only Slurm could tell
    return found if places else None


def _elements(program: Program, word: Word) -> list[Node]:
    """Return the words of an array that a word stands for, such as `"${OPTIONS[@]}"`; empty for another word."""
    whole = re.fullmatch(r'"?\$\{(\w+)\[[@*]\]\}"?', word.text)
    place = program.only_assignment(whole[1]) if whole else None
    array = place.child("Array") if place is not None else None
    found = [each.child("Value") for each in array.children if each.type == "Element"] if array is not None else []
    return [each for each in found if each is not None]


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
        own = program.only_assignment(name)
        value = own.child("Value") if own is not None and option not in given else None
        known = known_value(program, program.text_of(value), constants) if value is not None else None
        if known is not None:
            found.append((option, known))
    return found


def program_name(program: Program, word: Word) -> str:
    """Return the name of the program that a word begins, without its directory; empty if the script does not tell."""
    name = word.value
    elements = _elements(program, word)
    if elements:
        name = program.literal(elements[0]) or ""
        name = "" if name.startswith("-") else name
    found = _WHICH(word.text)
    name = found[1] if found else name
    if name is None:
        name = word.text.strip('"')
        default = _DEFAULT(name)
        if default and default[1] not in program.assignments:
            name = default[2]
        for _ in range(_MAX_DEPTH):
            whole = _EXPANSION.match(name)
            name = (_assigned_text(program, whole[1] or whole[2]) or "") + name[whole.end() :] if whole else name
        name = name.split()[0] if re.match(r"[\w./]", name) else ""
    return name.rpartition("/")[2]


def _assigned_text(program: Program, name: str) -> str | None:
    """Return the text that a variable is assigned once, without its quotes and outer blanks, or None."""
    place = program.only_assignment(name)
    return None if place is None else text_of_assignment(program, place)


def text_of_assignment(program: Program, place: Node) -> str | None:
    if place.type != "Assign" or any(place.has(key) for key in ("Array", "Append")):
        return None
    value = place.child("Value")
    if value is None:
        return ""
    text = program.literal(value)
    return (program.text_of(value).strip("\"'") if text is None else text).lstrip("\\\n ").strip("\\\n ")


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
