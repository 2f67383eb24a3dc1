"""GitHub workflows, ours and those that `avactl init` writes, pass actionlint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster_fixtures import building
from tests.test_layout import ROOT
from tools.actionlint import lint

TEMPLATE = ROOT / "avactl" / "forges" / "github" / "template" / "dot-github"


def copy(source: Path, root: Path) -> Path:
    """Copy workflows into a repository of their own, which actionlint knows by `.git`."""
    (root / ".git").mkdir()
    shutil.copytree(source / "workflows", root / ".github" / "workflows")
    return root / ".github" / "workflows"


@pytest.mark.parametrize("source", [ROOT / ".github", TEMPLATE], ids=["ours", "template"])
def test_workflows_are_valid(source: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assert len(list(copy(source, tmp_path).iterdir())) >= 2
    with building(request):
        assert lint(tmp_path) == ""


def test_mistakes_are_found(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ci = copy(ROOT / ".github", tmp_path) / "ci.yml"
    ci.write_text(ci.read_text().replace("github.ref }}", "github.reff }}").replace("runs-on:", "run-on:"))
    with building(request):
        found = lint(tmp_path)
    assert 'property "reff" is not defined' in found
    assert 'unexpected key "run-on"' in found
