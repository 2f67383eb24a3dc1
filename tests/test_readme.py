"""The README's examples are run: console blocks print what they say, Python runs, links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl.compiler.validate import validate_document
from avactl.source.yaml import load_yaml
from tests.cli.running import Run

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


def test_console_blocks_print_what_they_say(ava: Path, avactl: Run, golden: Callable[[Path, str], None]) -> None:
    text = README.read_text()
    shown_blocks = blocks("console")
    assert len(shown_blocks) >= 3
    for block in shown_blocks:
        shown = ""
        lines = re.findall(r"^\$ avactl (.*)$", block, re.MULTILINE)
        assert len(lines) == block.count("$ ") > 0, block
        for line in lines:
            done = avactl(*line.split(), cwd=ava, COLUMNS="120")
            shown += f"$ avactl {line}\n{done.stdout}{done.stderr}"
        subprocess.run(["git", "checkout", "-q", "."], cwd=ava, check=True)
        text = text.replace(f"```console\n{block}```", f"```console\n{shown}```")
    golden(README, text)


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
    docs = sorted((ROOT / "docs").glob("*.md"))
    linked = set()
    for document in [README, ROOT / "CONTRIBUTING.md", *docs]:
        for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
            linked.add((document.parent / link).resolve())
    assert docs
    assert set(docs) <= linked, "a page that no other page links to"
