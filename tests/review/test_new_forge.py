"""Forges: one is one package and one line, and no other module names it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from avactl.forges import FORGES, forge_names
from tests.test_layout import ROOT, tracked

ALLOWED = {
    "avactl/forges/forge.py",  # variables of GitHub Actions, which other runners set as well
    "avactl/forges/gitea/__init__.py",
    "avactl/forges/__init__.py",  # the list
    "avactl/program/explain/explain.py",  # the repository of this project
    "avactl/forges/forgejo/__init__.py",  # has the API and the workflows of another one
}
"""Modules that name a forge of another package."""

FAKE = '''
"""Anvil: a forge whose runner sets GitHub's variables, too."""

from avactl.forges.forge import Forge, PipelineRun, StatusRequest


class Comments:
    noun = "change 7"

    def __init__(self, run):
        self.run = run

    def comments(self):
        return iter(())

    def create(self, body):
        print(f"POST {self.run.api} {body.splitlines()[0]}")


class Proposals:
    def __init__(self, *arguments):
        self.arguments = arguments

    def open(self, branch, base, title, text):
        return f"{self.arguments[0]}/{branch}"


def run(env):
    return PipelineRun("anvil", "https://anvil.test/api", "acme/specs", 7, "origin/main", token="t")


FORGE = Forge(
    name="anvil", title="Anvil", marker="ANVIL_CI", hosts=("anvil",), api=lambda env, host: f"https://{host}/api",
    api_default="`https://HOST/api` of Anvil", tokens=("ANVIL_TOKEN",), token_hint="forge one", run=run,
    comment_limit=9_000, comments=lambda run, sleep: Comments(run), proposals=Proposals,
    status=lambda project, token, status: StatusRequest(f"/{project}/{status.commit}", {}, {"s": status.state}),
    project_variable="", pipeline_paths=(".anvil/",),
    pipelines=lambda options: {".anvil/ci.yml": f"run: avactl ci comment  # {options.pulumi}\\n"},
    full_clone="`history: all`", push_rights="a hammer", report=lambda diagnostics: f"{len(diagnostics)} dents\\n",
)
'''
ASK = """
import io, json, os, pathlib, sys
from avactl.apply.publish.target import _push_remedy
from avactl.apply.reconcile.reporting.commit_status import _find_destination
from avactl.change.review.publish import connect, publish
from avactl.cli.common import render_machine
from avactl.compiler import compile_tree
from avactl.compiler.json_schema import kind_schema
from avactl.compiler.policies import deciding_files
from avactl.forges import current_run
from avactl.spec.repository.checkout import is_ci
from avactl.spec.repository.git_tree import _unshallow_hint
from avactl.spec.repository.tree import MemoryTree
from avactl.workbench.scaffold import template_files
from avactl.workbench.scaffold.choice import ScaffoldChoice

env = {"ANVIL_CI": "1", "GITHUB_ACTIONS": "true", "ANVIL_TOKEN": "t"}
os.environ["ANVIL_CI"] = "1"
written = template_files(ScaffoldChoice("none", "anvil"))
destination = _find_destination(env, "https://anvil.test/acme/specs")
run = current_run(env)
specs = compile_tree(MemoryTree({"specs.yaml": sys.stdin.buffer.read()}))
daemon = next(body for body in (each.body for each in specs.manifests) if body["kind"] == "Deployment")
arguments = daemon["spec"]["template"]["spec"]["containers"][0]["args"]
print(json.dumps({
    "run": run.forge,
    "comment": publish(connect(run), "<!-- m -->", "<!-- m -->"),
    "schema": "anvil" in json.dumps(kind_schema("Cluster")),
    "written": [path for path in written if path.startswith(".anvil")],
    "status": destination[1:],
    "ci": is_ci(),
    "deciding": ".anvil/ci.yml".startswith(deciding_files._PIPELINES),
    "hints": [text for text in ("history: all", "a hammer") if text in _unshallow_hint() + _push_remedy("403")],
    "report": render_machine([], "anvil"),
    "daemon": arguments[arguments.index("--forge"):][:4],
}))
"""
SPECS = """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: main}
spec:
  daemons: {delivery: true}
  delivery: {repository: "https://anvil.test/acme/specs", secret: push, rollback: pullRequest}
  images: {avactl: "avactl@sha256:%s"}
"""


def test_another_forge_is_one_package_and_one_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "avactl", tmp_path / "avactl", ignore=shutil.ignore_patterns("__pycache__"))
    package = tmp_path / "avactl" / "forges" / "anvil"
    package.mkdir()
    (package / "__init__.py").write_text(FAKE)
    listed = tmp_path / "avactl" / "forges" / "__init__.py"
    text = listed.read_text()
    assert "GITEA, FORGEJO)" in text
    line = "from avactl.forges.forgejo import FORGE as FORGEJO\n"
    text = text.replace(line, line + line.replace("forgejo", "anvil").replace("FORGEJO", "ANVIL"))
    listed.write_text(text.replace("GITEA, FORGEJO)", "GITEA, FORGEJO, ANVIL)"))

    def ask(*words: str, given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "COLUMNS": "300"},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    posted, answer = ask("-c", ASK, given=SPECS % ("a" * 64)).splitlines()
    assert posted == "POST https://anvil.test/api <!-- m -->"
    assert json.loads(answer) == {
        "run": "anvil",
        "comment": "created",
        "schema": True,
        "written": [".anvil/ci.yml"],
        "status": ["https://anvil.test/api", "acme/specs", "t"],
        "ci": True,
        "deciding": True,
        "hints": ["history: all", "a hammer"],
        "report": "0 dents\n",
        "daemon": ["--forge", "anvil", "--api", "https://anvil.test/api"],
    }
    for words in (["ci", "comment"], ["validate"], ["init"], ["delivery", "run"]):
        assert "anvil" in ask("-m", "avactl.cli.main", *words, "--help"), words
    assert "ANVIL_TOKEN" in ask("-m", "avactl.cli.main", "promote", "--help")


def _named(source: str) -> set[str]:
    """Return the forges in the imports and strings of a module; not those of docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    words: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            words += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            words += [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words.append(node.value)
    names = "|".join([*forge_names(), *(forge.marker.partition("_")[0] for forge in FORGES)])
    return {name.lower() for word in words for name in re.findall(rf"(?i)(?<![a-z])({names})(?![a-z])", word)}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from avactl.forges.gitlab.client import GitLabComments", {"gitlab"}),
        ("if pipeline.forge == 'github': pass", {"github"}),
        ("os.environ.get('GITHUB_TOKEN') or f'on {host} GitLab'", {"github", "gitlab"}),
        ("'''GitHub'''", set()),
    ],
)
def test_a_mention_of_a_forge_is_found(source: str, named: set[str]) -> None:
    assert _named(source) == named


def test_only_a_forge_s_own_package_names_it() -> None:
    found = set()
    for path in tracked("avactl/*.py", "avactl/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        found |= {name for forge in _named(path.read_text()) if f"/forges/{forge}/" not in name}
    assert found == ALLOWED
