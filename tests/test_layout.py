"""Promises of the source tree: no open ends, docstrings, one version, pinned workflows."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks, and new ones that it does not ignore."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in out.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_members_named_in_documents_are_of_classes_that_exist() -> None:
    """`KIND.member` in backticks: a class that was renamed leaves its old name behind."""
    classes = {name for path in tracked("avactl/**/*.py") for name in re.findall(r"(?m)^class (\w+)", _text(path))}
    named = {
        (path.name, match[1])
        for path in (
            ROOT / "CONTRIBUTING.md",
            *tracked("docs/architecture.md", "docs/decisions/*.md", "docs/glossary.md"),
        )
        for match in re.finditer(r"`([A-Z][a-z]\w*)\.[a-zA-Z_]+`", _text(path))
    }
    assert {each for each in named if each[1] not in classes} == set()


def test_no_open_ends() -> None:
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [str(p) for p in tracked("avactl", "components", "stacks", "tools") if words.search(_text(p))]
    assert found == []


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def test_prose_is_wrapped() -> None:
    """Lines of prose have at most 120 characters; tables, code, and targets of links may be longer."""
    too_long = []
    for path in tracked(":(glob)*.md", "docs/*.md", "avactl/*.md", "worker/*.md", "client/*.md"):
        text = re.sub(r"^( *)```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), _text(path), flags=re.M | re.S)
        for number, line in enumerate(text.splitlines(), start=1):
            if len(re.sub(r"\]\([^)]*\)", "]", line)) > 120 and not re.match(r"\s*(\||`[^`]*`\.?$)", line):
                too_long.append(f"{path.relative_to(ROOT)}:{number}")
    assert too_long == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found, seen = [], 0
    for path in tracked("avactl/*.py", "avactl/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    seen += 1
                    if re.match(r"(What|Whether|Who|Whoever)\b", text.strip()):
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno} {text.strip()[:60]}")
    assert seen > 1000
    assert found == []


def test_all_distributions_have_one_version() -> None:
    import avactl_client
    import avactl_worker

    import avactl

    assert {avactl_worker.__version__, avactl_client.__version__} == {avactl.__version__}


def test_the_repository_has_one_url() -> None:
    from avactl.program.explain.explain import REPOSITORY_URL

    project = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]
    contact = _text(ROOT / ".github/ISSUE_TEMPLATE/config.yml")
    assert project["urls"] == {"Repository": REPOSITORY_URL}
    assert f"url: {REPOSITORY_URL}/security/policy" in contact


@pytest.mark.parametrize("file", [path.relative_to(ROOT) for path in tracked(".github/workflows/*.yml")], ids=str)
def test_workflows_pin_actions_and_rights(file: Path) -> None:
    workflow = yaml.safe_load((ROOT / file).read_text())
    assert workflow["permissions"] == {"contents": "read"}
    # A job is a list of steps, or a workflow of this repository.
    steps = [step for job in workflow["jobs"].values() for step in job.get("steps", [job])]
    uses = [step["uses"] for step in steps if "uses" in step]
    assert uses
    allowed = r"[\w-]+/[\w-]+@[0-9a-f]{40}|\./\.github/workflows/[\w-]+\.yml"
    assert [each for each in uses if not re.fullmatch(allowed, each)] == []
