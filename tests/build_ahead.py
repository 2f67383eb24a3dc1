"""Builds that begin with the tests: those of a group need them at the end, and must not hold up the others.

The builder has a low priority, and still ends before the other tests do on two cores: with the lowest one, the engine
of Pulumi was built after them. Tests of the group wait for it, as for any other build of the same program, and
build themselves if it was cut off or failed: so that they say why, it says nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from tests.conftest import BUILDERS
from tools.controlplane import process

LOW_PRIORITY = "5"
_BUILDERS = pytest.StashKey[dict[str, subprocess.Popen[bytes]]]()


class Worker(Protocol):
    """A worker of pytest-xdist, which has no types."""

    config: pytest.Config


def pytest_configure(config: pytest.Config) -> None:
    """Begin without builders."""
    config.stash[_BUILDERS] = {}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Worker, ids: Sequence[str]) -> None:
    """Start the builders of the groups that are run; with one process, tests build in their turn."""
    builders = node.config.stash[_BUILDERS]
    groups = {test.rpartition("@")[2] for test in ids}
    for group in groups & BUILDERS.keys() - builders.keys():
        builders[group] = start_builder(BUILDERS[group])


def start_builder(program: str) -> subprocess.Popen[bytes]:
    """Start `python -m PROGRAM --optional` beside everything else. It ends with this process, in whatever way."""
    nice = shutil.which("nice") or "/usr/bin/nice"
    command = [nice, "-n", LOW_PRIORITY, sys.executable, "-m", program, "--optional"]
    return process.spawn(command, Path(os.devnull), os.environ)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what still builds, as Ctrl-C does: nothing is left half done."""
    for builder in config.stash[_BUILDERS].values():
        process.terminate(builder, process.STOP_GRACE)
