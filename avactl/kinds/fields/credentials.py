"""Credentials that stand in a spec as text. They belong into a Secret: a spec can only name one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.secrets import looks_secret
from avactl.kinds.program import Item

Path = tuple[str | int, ...]


def credential_problems(item: Item, env: Mapping[str, Any], path: Path, hint: str = "") -> list[Diagnostic]:
    """`credential-literal` for each text value of `env`, the mapping at `path` of the document.

    Values that come from a Secret are fine. `hint` is the remedy where `{secret: …}` cannot be written.
    """
    return [
        _problem(item, (*path, name), name, hint or f"put it into a Secret: `{name}: {{secret: {{name: …, key: …}}}}`")
        for name, value in env.items()
        if isinstance(value, str) and looks_secret(value, name)
    ]


def argument_problems(item: Item, arguments: Sequence[str], path: Path) -> list[Diagnostic]:
    """`credential-literal` for each word of a command or its arguments, the list at `path` of the document.

    Both `--token=VALUE` and `--token VALUE` are seen.
    """
    found = []
    for index, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        previous = arguments[index - 1] if index else ""
        if equals and option.startswith("-"):
            name, text = option.lstrip("-"), value
        elif previous.startswith("--") and "=" not in previous and not word.startswith("-"):
            name, text = previous.lstrip("-"), word
        else:
            name, text = "", word
        if looks_secret(text, name):
            variable = re.sub(r"[^A-Z0-9]+", "_", (name or "TOKEN").upper())
            hint = f"set `env: {{{variable}: {{secret: {{name: …, key: …}}}}}}` and write `$({variable})` here"
            found.append(_problem(item, (*path, index), f"{path[-1]}[{index}]", hint))
    return found


def _problem(item: Item, path: Path, what: str, hint: str) -> Diagnostic:
    return Diagnostic(
        "credential-literal",
        f"`{what}` of {item} looks like a credential, and everybody who reads the repository reads it too",
        item.span(*path),
        label="covered",
        hint=f"{hint}; take the value out of git's history, or make a new one",
        secret=True,
    )
