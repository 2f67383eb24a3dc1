"""The Dockerfile: everything is pinned, and the commands of its first stage make an avactl that runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.specifiers import SpecifierSet

from avactl import __version__
from avactl.workbench.scaffold import template_files
from avactl.workbench.scaffold.choice import ScaffoldChoice
from tests.conftest import ROOT

LOCK = ROOT / "tools" / "image" / "requirements.lock"


class Step(NamedTuple):
    """An instruction and its words."""

    stage: int
    name: str
    words: str


def steps() -> list[Step]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found, stage = [], 0
    for line in filter(None, text.splitlines()):
        name, _, words = line.partition(" ")
        stage += name == "FROM"
        found.append(Step(stage, name, words))
    return found


def test_the_lock_is_that_of_pipelines(golden: Callable[[Path, str], None]) -> None:
    golden(LOCK, template_files(ScaffoldChoice("none"))["requirements.lock"].decode())


def test_everything_is_pinned_and_no_process_is_root() -> None:
    found = steps()
    bases = [step.words for step in found if step.name in ("ARG", "FROM")]
    assert bases[0].startswith("PYTHON=python:3.")
    assert re.fullmatch(r".*@sha256:[0-9a-f]{64}", bases[0])
    assert bases[1:] == ["${PYTHON} AS build", "${PYTHON}"]
    installs = [step.words for step in found if " install " in step.words and "pip" in step.words]
    assert len(installs) == 3
    for words in installs:
        assert "--require-hashes" in words or "--no-index" in words
    last = [step for step in found if step.stage == 2]
    assert [step.words for step in last if step.name == "USER"] == ["1000:1000"]
    assert [step.words for step in last if step.name == "ENTRYPOINT"] == ['["avactl"]']
    assert not any("build" in step.words for step in last if step.name != "COPY")


def _sent() -> list[str]:
    """The files of the build context: tracked, and not ignored."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    files = [name for name in out.split("\0") if name and os.path.lexists(ROOT / name)]
    return [name for name in files if any(fnmatch(name, f"{path}/*") or fnmatch(name, path) for path in kept)]


@pytest.mark.slow  # it installs all packages
def test_its_first_stage_makes_an_avactl_that_runs(tmp_path: Path) -> None:
    """Its commands run here, with `/opt` and the working directory elsewhere."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path / "index")]
    lock = ROOT / "tools" / "image" / "build.lock"
    if subprocess.run([*pip, "-r", str(lock)], capture_output=True, check=False).returncode != 0:
        pytest.skip("pip reaches no package index and has no cache: the image's packages are not installed")
    tools, source, opt = tmp_path / "bin", tmp_path / "src", tmp_path / "opt"
    for folder in (tools, source):
        folder.mkdir()
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**clean, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    for step in steps():
        if step.stage != 1:
            continue
        if step.name == "COPY":
            *names, target = step.words.split()
            assert target in (".", "./")
            for name in _sent() if names == ["."] else names:
                place = source / (name if names == ["."] else Path(name).name)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place, follow_symlinks=False)
        elif step.name == "RUN":
            command = step.words.replace("/opt/", f"{opt}/")
            done = subprocess.run(
                ["sh", "-c", command], cwd=source, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{step.words}\n{done.stdout}{done.stderr}"
    shutil.rmtree(source)

    def avactl(*words: str) -> str:
        program = str(opt / "avactl" / "bin" / "avactl")
        return subprocess.run(
            [program, *words],
            cwd=tmp_path,
            env={**clean, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert avactl("--version") == f"avactl {__version__}\n"
    avactl("init", "--example", "ava", "specs")
    assert avactl("validate", "specs").startswith("ok: ")
    for command in ("scheduler", "reconcile", "cache run", "elastic master", "top"):
        assert "Usage: avactl" in avactl(*command.split(), "--help")


def test_the_lock_is_for_every_patch_of_python() -> None:
    """README says 3.11; Debian 12 has 3.11.2."""
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if match := re.match(r"([\w.-]+)==", line):
            needed = metadata.metadata(match[1])["Requires-Python"] or ""
            assert "3.11.0" in SpecifierSet(needed), match[0]
