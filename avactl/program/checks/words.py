"""Checks of commands and arguments: each entry of the list is one word."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from avactl.diagnostics import Diagnostic
from avactl.program.program import Item

_LONGEST = 200
"""Maximum characters of a suggested command."""
_FLAG_AND_VALUE = re.compile(r"(--?[A-Za-z][\w-]*)[ \t]+(\S+)").fullmatch
_PLAIN = re.compile(r"(?:--?[A-Za-z]|\.{0,2}/|[A-Za-z_])[A-Za-z0-9/._=+@-]*").fullmatch


def flow(words: Sequence[str]) -> str:
    """Write words as they stand in a YAML list in one line: `torchrun, sft.py, --epochs, "90"`."""
    return ", ".join(word if _PLAIN(word) and word not in _NOT_TEXT else json.dumps(word) for word in words)


_NOT_TEXT = frozenset(("true", "false", "null", "True", "False", "Null", "TRUE", "FALSE", "NULL"))


_SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"))
_OPERATOR = re.compile(r"&&?|\|\|?|;|[0-9&]?>>?(&[0-9])?|<").fullmatch
_VARIABLE = re.compile(r"(?<!\$)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))").search


def word_problems(item: Item, words: Sequence[str], path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield commands that are written as one word, options in one word with their value, and syntax of a shell."""
    if path[-1] == "command" and len(words) == 1 and (split := _split(_redacted(words[0]))):
        hint = f"write `[{flow(split)}]`" if len(words[0]) <= _LONGEST else "write a list of its words"
        yield Diagnostic(
            "invalid-value",
            f"{_dotted(path)}: the list has one word, `{_redacted(words[0][:60])}`, which is no program",
            item.span(*path, 0),
            hint=hint,
        )
        return
    for index, word in enumerate(words):
        match = _FLAG_AND_VALUE(word)
        if match is not None and (index == 0 or words[index - 1] not in ("-c", "-lc")):
            two = flow((match[1], _redacted(word)[match.start(2) :])) if len(word) <= _LONGEST else "OPTION, VALUE"
            yield Diagnostic(
                "invalid-value",
                f"{_dotted(path)}[{index}]: `{_redacted(word[:60])}` is one argument with a space in it",
                item.span(*path, index),
                severity="warning",
                hint=f"write two: `{two}`",
            )
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        yield from _shell_syntax(item, words, path)


def _shell_syntax(item: Item, words: Sequence[str], path: tuple[str | int, ...]) -> Iterator[Diagnostic]:
    """Yield the first operator and the first variable of a shell among arguments that no shell reads."""
    operator = next((index for index, word in enumerate(words) if _OPERATOR(word)), None)
    if operator is not None:
        line = _redacted(" ".join(word if _OPERATOR(word) else shlex.quote(word) for word in words)[: _LONGEST + 1])
        whole = path[-1] == "command" and len(line) <= _LONGEST
        yield Diagnostic(
            "invalid-value",
            f"{_dotted(path)}[{operator}]: no shell reads `{words[operator]}`: the program gets it as an argument",
            item.span(*path, operator),
            severity="warning",
            hint=f"write `[{flow(('sh', '-c', line))}]`" if whole else "begin the command with `sh, -c`",
        )
    for index, word in enumerate(words):
        # Values of options and paths; a text with spaces is a script or a template of the program's own.
        match = None if " " in word or "\n" in word else _VARIABLE(word)
        if match is not None:
            name = match[1] or match[2]
            yield Diagnostic(
                "invalid-value",
                f"{_dotted(path)}[{index}]: no shell reads `{match[0][:60]}`: the program gets these characters",
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


def _redacted(text: str) -> str:
    from avactl.diagnostics.redaction import redact  # its patterns take long to compile

    return redact(text)


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(str(step) for step in path)
