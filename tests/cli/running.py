"""Running the command line in this process and in one of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import forked

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def avactl(tmp_path: Path) -> Run:
    """`avactl(*args, cwd=…, env=…)`: the command in a process of its own, with an empty home."""

    def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "AVACTL_CACHE_DIR", "AVACTL_DEBUG")}
        clean |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "100", **env}
        return forked.run(args, cwd=cwd or tmp_path, env=clean)

    return run


def write(directory: Path, **files: str) -> Path:
    """Files of a repository; `__` in a name stands for `/`, and `.yaml` is added."""
    for name, text in files.items():
        path = directory / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory
