"""Command of a role: prepends the strategy's launcher to a Python command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from avactl.spec.schema.compute import Code

_IS_PYTHON = re.compile(r"python([23](\.[0-9]+)?)?").fullmatch
_WITH_VALUE = frozenset(("-W", "-X", "--check-hash-based-pycs"))
_LAUNCHER_MODULES = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner")
)
"""Python modules that start processes themselves."""
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def _python_script(command: Sequence[str]) -> int | None:
    """Index of the script or `-m MODULE` in a Python command; None if there is neither."""
    if not command or not _IS_PYTHON(command[0].rpartition("/")[2]):
        return None
    index = 1
    while index < len(command):
        word = command[index]
        if word == "-m" or not word.startswith("-"):
            return index
        if word.startswith("-c") or word == "-":
            return None
        index += 2 if word in _WITH_VALUE else 1
    return None


def with_torchrun(command: Sequence[str]) -> list[str]:
    """`python train.py` → `python -m torch.distributed.run train.py`, which is torchrun with that interpreter.

    Any other command is unchanged: `torchrun`, `accelerate`, `deepspeed` and shell scripts start processes themselves,
    in the same environment. Source: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    start = _python_script(command)
    if start is None or (command[start] == "-m" and _LAUNCHER_MODULES.intersection(command[start + 1 : start + 2])):
        return list(command)
    return [*command[:start], "-m", "torch.distributed.run", *command[start:]]


def with_mpirun(command: Sequence[str], launcher: str = "mpirun") -> list[str]:
    """`python train.py` → `mpirun python train.py`, which starts one rank per slot. Others are unchanged."""
    return [launcher, *command] if _python_script(command) is not None else list(command)


def python_interpreter(command: Sequence[str], code: Code | None = None) -> str:
    """Return the Python of a command, for another program in the same image; `python3` if it names none.

    `code`: source of the code that pods fetch; an interpreter in it does not exist before.
    """
    if not command or not _IS_PYTHON(command[0].rpartition("/")[2]):
        return "python3"
    fetched = "/" in command[0] and (not command[0].startswith("/") or (code and command[0].startswith(code.mount)))
    return "python3" if fetched else command[0]


def torchrun_options(words: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield index, name and value of torchrun's own options in a command with its arguments; none of other programs."""
    program = words[0].rpartition("/")[2] if words else ""
    start = 1 if program == "torchrun" else None
    if _IS_PYTHON(program) and "-m" in words[:-1] and words[words.index("-m") + 1] in _TORCHRUN_MODULES:
        start = words.index("-m") + 2
    for index in range(start, len(words)) if start is not None else ():
        name, equals, value = words[index].partition("=")
        if name.endswith(".py") or name in ("-m", "--module"):
            return
        if name.startswith("--"):
            following = words[index + 1] if index + 1 < len(words) else ""
            yield index, name.replace("_", "-"), value if equals else following


_MPIRUN_NAMES = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
_RANK_OPTIONS = frozenset({"-np", "--np", "-n", "--n", "-c"})


def mpirun_ranks(words: Sequence[str]) -> tuple[int, int] | None:
    """Return the index and the value of mpirun's number of ranks in a command with its arguments; None without."""
    if not words or words[0].rpartition("/")[2] not in _MPIRUN_NAMES:
        return None
    for index, word in enumerate(words[1:-1], 1):
        if word in _RANK_OPTIONS:
            return (index, int(words[index + 1])) if words[index + 1].isdecimal() else None
        if _python_script(words[index:]) is not None:
            return None
    return None
