"""Path patterns of CODEOWNERS files. A module of its own: the models of `owners` take long to import."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache

_Part = Callable[[str], object]


@lru_cache(maxsize=16_384)
def _compile_parts(pattern: str) -> tuple[_Part | None, ...]:
    """Compile the parts of a CODEOWNERS pattern; None stands for any number of directories.

    Source: https://docs.github.com/en/repositories/managing-your-repositorys-settings-and-features/customizing-your-repository/about-code-owners
    """
    names = pattern.removeprefix("/").split("/")
    if not pattern.startswith("/") and not any(names[1:]):
        names = ["**", *names]  # a single name matches at any depth
    if names[-1] in ("", "**"):
        names[-1:] = ["*", "**"]  # what is in the directory, but not a file of its name
    elif names[-1] != "*" or names[:-1] == ["**"]:
        names.append("**")
    return tuple(None if name == "**" else re.compile(fnmatch.translate(name)).match for name in names)


def matches_pattern(pattern: str, path: str) -> bool:
    """Return True if a pattern of a CODEOWNERS file covers a file, in at most the product of their lengths."""
    parts, names = _compile_parts(pattern), path.split("/")
    part = name = 0
    resume, taken = -1, 0  # the last `**`, and the directories before its end
    while name < len(names):
        match = parts[part] if part < len(parts) else None
        if part < len(parts) and match is None:
            resume, taken = part, name
            part += 1
        elif match is not None and match(names[name]):
            part, name = part + 1, name + 1
        elif resume >= 0:
            taken += 1
            part, name = resume + 1, taken
        else:
            return False
    return not any(parts[part:])
