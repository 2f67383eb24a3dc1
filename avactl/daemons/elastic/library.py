"""A copy of the worker library, for pods whose image does not have it."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

_RUN_SCRIPT = """\
import runpy
import sys

# python DIRECTORY MODULE [arguments]
runpy.run_module(f"avactl_worker.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
"""


def copy_library(directory: Path) -> None:
    """Copy the library into a directory, so that `python DIRECTORY MODULE` runs one of its modules. Raises OSError."""
    found = find_spec("avactl_worker")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the package avactl_worker is not installed")
    (source,) = found.submodule_search_locations
    shutil.copytree(
        source, directory / "avactl_worker", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    (directory / "__main__.py").write_text(_RUN_SCRIPT)
