"""Checks of commands and arguments: each entry of the list is one word."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item

_MAX_WORD_LENGTH = 200
"""Maximum characters of a suggested command."""
_FLAG_AND_VALUE = re.compile(r"(--?[A-Za-z][\w-]*)[ \t]+(\S+)").fullmatch
_IS_PLAIN_WORD = re.compile(r"(?:--?[A-Za-z]|\.{0,2}/|[A-Za-z_])[A-Za-z0-9/._=+@-]*").fullmatch


def flow_list(words: Sequence[str]) -> str:
    """Write words as they stand in a YAML list in one line: `torchrun, sft.py, --epochs, "90"`."""
    return ", ".join(word if _IS_PLAIN_WORD(word) and word not in _NOT_TEXT else json.dumps(word) for word in words)


_NOT_TEXT = frozenset(("true", "false", "null", "True", "False", "Null", "TRUE", "FALSE", "NULL"))


_SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"))
_IS_SHELL_OPERATOR = re.compile(r"&&?|\|\|?|;|[0-9&]?>>?(&[0-9])?|<").fullmatch
_SHELL_VARIABLE = re.compile(r"(?<!\$)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))").search


def word_problems(item: Item, words: Sequence[str], path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield commands that are written as one word, options in one word with their value, and syntax of a shell."""
    if path[-1] == "command" and words and (reason := _no_program(words)) is not None:
        yield Diagnostic("invalid-value", f"{_format_path(path)}: {reason[0]}", item.span(*path, 0), hint=reason[1])
        return
    if path[-1] == "command" and len(words) == 1 and (split := _split(_redact(words[0]))):
        if any(operator in words[0] for operator in ("&&", "||", ";", "|", "$(")):
            split = ["sh", "-c", _redact(words[0])]
        hint = f"write `[{flow_list(split)}]`" if len(words[0]) <= _MAX_WORD_LENGTH else "write a list of its words"
        yield Diagnostic(
            "invalid-value",
            f"{_format_path(path)}: the list has one word, `{_redact(words[0][:60])}`, which is no program",
            item.span(*path, 0),
            hint=hint,
        )
        return
    for index, word in enumerate(words):
        match = _FLAG_AND_VALUE(word)
        if match is not None and (index == 0 or words[index - 1] not in ("-c", "-lc")):
            two = (
                flow_list((match[1], _redact(word)[match.start(2) :].strip("\"'")))
                if len(word) <= _MAX_WORD_LENGTH
                else "OPTION, VALUE"
            )
            yield Diagnostic(
                "invalid-value",
                f"{_format_path(path)}[{index}]: `{_redact(word[:60])}` is one argument with a space in it",
                item.span(*path, index),
                severity="warning",
                hint=f"write two: `{two}`",
            )
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        yield from _shell_syntax(item, words, path)


_SHELL_COMMANDS = frozenset(
    ("cd", "source", ".", "export", "set", "ulimit", "alias", "eval", "exec", "module", "umask")
)
"""Commands that exist in a shell only."""
_SLURM_COMMANDS = frozenset(("srun", "sbatch", "salloc"))
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL).fullmatch


def _no_program(words: Sequence[str]) -> tuple[str, str] | None:
    """Return why the first word of a command is no program, and the remedy."""
    first = words[0]
    if not first.strip():
        return "the program has no name", "write the program, or remove the key: then that of the image runs"
    if first in _SLURM_COMMANDS:
        return (
            f"`{first}` is a program of Slurm, and avactl starts the pods",
            "write the program itself; with `strategy: mpi`, mpirun starts it on all machines",
        )
    if (assignment := _ASSIGNMENT(first)) is not None:
        return (
            f"`{_redact(first)[:60]}` is an assignment of a shell, and no program",
            f"write `env: {{{assignment[1][:60]}: …}}`, and begin with the program",
        )
    if first in _SHELL_COMMANDS or list(words[:2]) == ["conda", "activate"]:
        name = "conda activate" if first == "conda" else first
        line = _redact(" ".join(word if _IS_SHELL_OPERATOR(word) else shlex.quote(word) for word in words))
        script = f"[{flow_list(('bash', '-c', line))}]"
        is_whole = any(map(_IS_SHELL_OPERATOR, words))
        hint = f"write `{script}`" if is_whole and len(line) <= _MAX_WORD_LENGTH else 'write `[bash, -c, "…"]`'
        more = "" if is_whole else ", with the program in the same text"
        return f"`{name}` is a command of a shell, and no program", f"{hint}{more}"
    return None


def variable_problems(item: Item, env: Mapping[str, object], path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield values of variables with syntax of a shell, and variables that choose among a machine's devices."""
    for name, value in env.items():
        if not isinstance(value, str):
            continue
        match = None if " " in value or "\n" in value else _SHELL_VARIABLE(value)
        if match is not None:
            yield Diagnostic(
                "invalid-value",
                f"{_format_path((*path, name))}: no shell reads `{match[0][:60]}`: the program gets these characters",
                item.span(*path, name),
                severity="warning",
                hint=f"write the value, or `$({(match[1] or match[2])[:60]})` for another variable of `env`",
            )
        elif name in _DEVICE_VARIABLES and value.strip("0123456789, ") == "" and value:
            yield Diagnostic(
                "invalid-value",
                f"{_format_path((*path, name))}: a pod sees its own GPUs only, numbered from 0, and this hides others",
                item.span(*path, name),
                severity="warning",
                hint="remove it: `gpus` says how many the pod gets",
            )


_DEVICE_VARIABLES = frozenset(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))


def _shell_syntax(item: Item, words: Sequence[str], path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield the first operator and the first variable of a shell among arguments that no shell reads."""
    operator = next((index for index, word in enumerate(words) if _IS_SHELL_OPERATOR(word)), None)
    if operator is not None:
        line = _redact(
            " ".join(word if _IS_SHELL_OPERATOR(word) else shlex.quote(word) for word in words)[: _MAX_WORD_LENGTH + 1]
        )
        whole = path[-1] == "command" and len(line) <= _MAX_WORD_LENGTH
        yield Diagnostic(
            "invalid-value",
            f"{_format_path(path)}[{operator}]: no shell reads `{words[operator]}`: the program gets it as an argument",
            item.span(*path, operator),
            severity="warning",
            hint=f"write `[{flow_list(('sh', '-c', line))}]`" if whole else "begin the command with `sh, -c`",
        )
    for index, word in enumerate(words):
        if word.startswith("~/"):
            yield Diagnostic(
                "invalid-value",
                f"{_format_path(path)}[{index}]: no shell reads `~`: the program gets this character",
                item.span(*path, index),
                severity="warning",
                hint="write the path from `/`",
            )
            return
        # Values of options and paths; a text with spaces is a script or a template of the program's own.
        match = None if " " in word or "\n" in word else _SHELL_VARIABLE(word)
        if match is not None:
            name = match[1] or match[2]
            yield Diagnostic(
                "invalid-value",
                f"{_format_path(path)}[{index}]: no shell reads `{match[0][:60]}`: the program gets these characters",
                item.span(*path, index),
                severity="warning",
                hint=f"write `$({name[:60]})`, which Kubernetes replaces by the variable of `env`",
            )
            return


def _split(command: str) -> list[str]:
    """Return the words of a command line; none if it has only one."""
    if command.startswith(("/", "./")) and " -" not in command:
        return []  # the path of a program may contain spaces
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return words if len(words) > 1 else []


def _redact(text: str) -> str:
    from avactl.diagnostics.redaction import redact_text  # its patterns take long to compile

    return redact_text(text)


def _format_path(path: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in path)
