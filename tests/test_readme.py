"""The README's examples are run: console blocks print what they say, Python runs, links lead somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl.compiler.validate import validate_document
from avactl.spec.documents.yaml import load_yaml
from tests import console

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def ava(tmp_path: Path) -> Path:
    """A copy of examples/ava in a git repository of its own."""
    copy = tmp_path / "ava"
    shutil.copytree(ROOT / "examples" / "ava", copy)
    for args in (["init", "-q"], ["add", "."], [*IDENTITY, "commit", "-q", "-m", "ava"]):
        subprocess.run(["git", *args], cwd=copy, check=True)
    return copy


def test_console_blocks_print_what_they_say(ava: Path, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    """All but the first, the installation, and the last, which needs a cluster: `tests/install` and `tests/pulumi`."""
    program = tmp_path / "bin" / "avactl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m avactl.cli.main "$@"\n')
    program.chmod(0o755)
    text = README.read_text()
    blocks = console.commands(text)
    assert blocks[0][-1].startswith("cd platform && git init")
    assert len(blocks) >= 4
    assert all(blocks)
    settings = {
        "HOME": str(tmp_path),
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    golden(README, console.run(text, ava, settings, first=1, end=-1))


def test_yaml_is_valid() -> None:
    (block,) = blocks("yaml")
    (document,), problems = load_yaml("README.md", block.encode())
    assert problems == []
    assert not isinstance(validate_document(document), list)


def test_python_runs() -> None:
    (block,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Job vision fold-4" in done.stdout


def test_links_lead_somewhere() -> None:
    docs = sorted((ROOT / "docs").rglob("*.md"))
    linked = set()
    for document in [README, ROOT / "CONTRIBUTING.md", *docs]:
        for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
            linked.add((document.parent / link).resolve())
    assert docs
    assert set(docs) <= linked, "a page that no other page links to"
