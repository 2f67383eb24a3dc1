"""Detection of plain-text credentials in specs. A spec may only reference a Secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from avactl.diagnostics import Diagnostic
from avactl.diagnostics.secrets import looks_secret, secret_paths
from avactl.program.program import Item

Path = tuple[str | int, ...]


def credential_problems(item: Item, env: Mapping[str, Any], path: Path, hint: str = "") -> list[Diagnostic]:
    """Return `credential-literal` for each credential among the values of `env`, the mapping at `path`.

    Values from Secrets are fine. `hint` is the remedy for fields that do not accept `{secret: …}`.
    """
    return [
        _make_problem(
            item, (*path, name), name, hint or f"store it in a Secret: `{name}: {{secret: {{name: …, key: …}}}}`"
        )
        for name, value in env.items()
        if isinstance(value, str) and looks_secret(value, name)
    ]


def value_problems(item: Item, value: Any, path: Path, hint: str) -> list[Diagnostic]:
    """Return `credential-literal` for each credential at any depth of the value at `path`. `hint`: the remedy."""
    places = sorted({(*path, *inner) for inner in secret_paths(value)}, key=str)
    return [_make_problem(item, place, str(place[-1]), hint) for place in places]


def argument_problems(item: Item, arguments: Sequence[str], path: Path) -> list[Diagnostic]:
    """Return `credential-literal` for each credential in a command or its arguments, the list at `path`.

    Both `--token=VALUE` and `--token VALUE` are detected.
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
            found.append(_make_problem(item, (*path, index), f"{path[-1]}[{index}]", hint))
    return found


def _make_problem(item: Item, path: Path, what: str, hint: str) -> Diagnostic:
    return Diagnostic(
        "credential-literal",
        f"`{what}` of {item} looks like a credential and is visible to everyone with access to the repository",
        item.span(*path),
        label="redacted",
        hint=f"{hint}; then rotate the credential or purge it from git history",
        secret=True,
    )
