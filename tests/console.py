"""Runs the console blocks of a document in one shell, and writes what they print in place."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "\x1e"


def commands(text: str) -> list[list[str]]:
    """Return the commands of each console block: its lines after `$ `."""
    return [re.findall(r"^\$ (.*)$", block, re.MULTILINE) for block in _BLOCK.findall(text)]


def run(text: str, cwd: Path, environment: Mapping[str, str], first: int | None = None, end: int | None = None) -> str:
    """Run the console blocks `[first:end]` in one bash; return the text with what they printed.

    Variables, directories and files of a block remain for the next, as for a reader who types them.
    """
    numbers = range(len(commands(text)))[first:end]
    blocks = commands(text)[first:end]
    script = "exec 2>&1\n" + "".join(f"{line}\nprintf '{_END}'\n" for block in blocks for line in block)
    git = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.com", "GIT_COMMITTER_NAME": "t"}
    settings = {**os.environ, **git, "GIT_COMMITTER_EMAIL": "t@example.com", "COLUMNS": "120", **environment}
    for name in ("PYTHONPATH", "NO_COLOR", "AVACTL_CACHE_DIR"):
        if name not in environment:
            settings.pop(name, None)
    done = subprocess.run(["bash", "-c", script], cwd=cwd, env=settings, stdout=subprocess.PIPE, text=True, check=False)
    *printed, rest = done.stdout.split(_END)
    assert len(printed) == sum(map(len, blocks)), rest
    said = iter(printed)
    shown = iter(["".join(f"$ {line}\n{next(said)}" for line in block) for block in blocks])
    seen = iter(range(len(commands(text))))
    return _BLOCK.sub(lambda found: found[0] if next(seen) not in numbers else f"```console\n{next(shown)}```", text)
