"""Changes of files that decide what specs may do, or what CI runs: each is told in diff and comment."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.change.diff.revisions import changed_settings
from avactl.spec.repository.checkout import CommitTree
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import DirTree
from tests.diff.repository import Repository

_POLICY = """from avactl.policy import policy
from lib.limits import MOST
import near

ALLOWED = open("lib/allowed.txt").read()

@policy("few", kinds=["TrainingJob"])
def few(spec): return []
"""
_WORKFLOW = """
jobs: {x: {steps: [{run: "sh scripts/deploy.sh"}, {uses: ./actions/mine}, {run: "pip install -r ci/packages.txt"}]}}
"""
_GITLAB = "include: [{local: /ci/jobs.yml}, {local: 'ci/more-*.yml'}]\n"
FILES = {
    "avactl.yaml": "include: [teams]\npython: {allow: true}\n",
    "teams/x.yaml": "a: 1\n",
    "README.md": "x",
    "policies/few.py": _POLICY,
    "policies/near.py": "from below import x\n",
    "policies/below/__init__.py": "x = 1\n",
    "policies/data.json": "{}",
    "lib/limits.py": "from lib import deeper\n",
    "lib/__init__.py": "",
    "lib/other.py": "",
    "lib/deeper.py": "",
    "lib/allowed.txt": "x",
    "CODEOWNERS": "* @a\n",
    ".github/CODEOWNERS": "* @a\n",
    ".github/workflows/avactl.yml": _WORKFLOW,
    ".gitlab-ci.yml": _GITLAB,
    ".gitlab/stack.yml": "x: {}\n",
    "ci/jobs.yml": "y: {script: [python tools/run.py]}\n",
    "ci/more-1.yml": "z: {}\n",
    "ci/unused.yml": "z: {}\n",
    "scripts/deploy.sh": ". scripts/common.sh\n",
    "scripts/common.sh": "",
    "scripts/unused.sh": "",
    "tools/run.py": "",
    "actions/mine/action.yml": "x: 1\n",
    "actions/mine/index.js": "",
    "ci/packages.txt": "a==1\n",
    "requirements.lock": "a==1\n",
    "pyproject.toml": "",
    "stacks/Pulumi.yaml": "name: x\n",
    "stacks/__main__.py": "",
    "stacks/requirements.txt": "",
    "train/requirements.txt": "",
}
HARMLESS = {
    "README.md",
    "teams/x.yaml",
    "lib/other.py",
    "ci/unused.yml",
    "scripts/unused.sh",
    "train/requirements.txt",
}
OF_SPECS = {path for path in FILES if path.startswith(("policies/", "lib/"))} | {
    "avactl.yaml",
    "CODEOWNERS",
    ".github/CODEOWNERS",
}


@pytest.mark.parametrize("prefix", ["", "below/specs/"])
def test_each_change_is_told(tmp_path: Path, prefix: str) -> None:
    forge = (".github", ".gitlab")
    named = {path: path if path.startswith(forge) else f"{prefix}{path}" for path in FILES}
    files = {
        named[path]: text.replace("/ci/jobs", f"/{prefix}ci/jobs")
        .replace("'ci/", f"'{prefix}ci/")
        .replace("./actions", f"./{prefix}actions")
        for path, text in FILES.items()
    }
    repository = Repository(tmp_path)
    repository.commit(files)
    repository.commit({path: f"{text}\n" if path.endswith(".json") else f"{text}# \n" for path, text in files.items()})
    root = tmp_path / prefix
    up = "../../" if prefix else ""
    expected = {f"{up}{path}" if path.startswith(forge) else path for path in FILES.keys() - HARMLESS}
    for head in (GitTree(root, "HEAD"), DirTree(root), CommitTree(root)):
        found = {d.span.file: d.message for d in changed_settings(GitTree(root, "HEAD~1"), head)}
        assert (expected - found.keys(), found.keys() - expected) == (set(), set()), type(head)
        for path, message in found.items():
            decides = "what specs may do" if path.removeprefix(up) in OF_SPECS else "what CI runs"
            assert message == f"{path} decides {decides}: changed"
    assert changed_settings(GitTree(root, "HEAD"), DirTree(root)) == []


def test_a_module_that_is_imported_by_a_computed_name(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    policy = "import importlib\nx = importlib.import_module('l' + 'ib')\n"
    repository.commit({"avactl.yaml": "{}\n", "policies/a.py": policy, "lib.py": "", "a/b/c.py": ""})
    repository.commit({"lib.py": "x = 1\n", "a/b/c.py": "x = 1\n"})
    found = changed_settings(GitTree(tmp_path, "HEAD~1"), GitTree(tmp_path, "HEAD"))
    assert [d.span.file for d in found] == ["a/b/c.py", "lib.py"]
