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

    def __init__(self, connection, run):
        self.run = run

    def comments(self):
        return iter(())

    def create(self, body):
        print(f"POST {self.run.api} {body.splitlines()[0]}")


class Proposals:
    def __init__(self, connection):
        self.connection = connection

    def open(self, branch, base, title, text):
        return f"{self.connection.api}/{branch}"


def run(env):
    return PipelineRun("anvil", "https://anvil.test/api", "acme/specs", 7, "origin/main", token="t")


FORGE = Forge(
    name="anvil", title="Anvil", marker="ANVIL_CI", hosts=("anvil",), api=lambda env, host: f"https://{host}/api",
    api_default="`https://HOST/api` of Anvil", tokens=("ANVIL_TOKEN",), token_hint="forge one", run=run,
    comment_limit=9_000, comments=Comments, proposals=Proposals, headers=lambda token: {"Anvil-Token": token},
    status=lambda project, status: StatusRequest(f"/{project}/{status.commit}", {"s": status.state}),
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
LACKS = """
import asyncio, io, json, os, sys
from avactl.apply.reconcile.reporting.commit_status import set_status
from avactl.apply.reconcile.source import SourceRevision
from avactl.change.review.publish import connect, publish
from avactl.compiler import compile_tree
from avactl.forges import current_run
from avactl.forges.forge import UnsupportedError
from avactl.forges import find_forge
from avactl.spec.repository.tree import MemoryTree
from avactl.workbench.scaffold.choice import ChoiceError, ScaffoldChoice

os.environ |= {"ANVIL_CI": "1", "ANVIL_TOKEN": "t"}
said = []
for attempt in (
    lambda: ScaffoldChoice("none", "anvil"),
    lambda: find_forge("anvil").connect_proposals("https://anvil.test/api", "acme/specs", "t", print),
):
    try:
        attempt()
    except (ChoiceError, UnsupportedError) as error:
        said.append(str(error))
sys.stderr = io.StringIO()
revision = SourceRevision(MemoryTree({}), "a" * 40, "", "https://anvil.test/acme/specs")
asyncio.run(set_status(revision, "main", "success", "ok"))
specs = sys.stdin.read()
commits = specs.replace("pullRequest", "commit")
proposes, commits = (compile_tree(MemoryTree({"specs.yaml": text.encode()})) for text in (specs, commits))
daemon = next(body for body in (each.body for each in commits.manifests) if body["kind"] == "Deployment")
print(json.dumps({
    "comment": publish(connect(current_run(os.environ)), "<!-- m -->", "<!-- m -->"),
    "said": said,
    "status": sys.stderr.getvalue(),
    "specs": [(each.code, each.message, each.hint) for each in proposes.diagnostics],
    "forge": "--forge" in daemon["spec"]["template"]["spec"]["containers"][0]["args"],
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


class Copy:
    """A copy of avactl with another forge."""

    def __init__(self, folder: Path, forge: str) -> None:
        self._folder = folder
        shutil.copytree(ROOT / "avactl", folder / "avactl", ignore=shutil.ignore_patterns("__pycache__"))
        package = folder / "avactl" / "forges" / "anvil"
        package.mkdir()
        (package / "__init__.py").write_text(forge)
        listed = folder / "avactl" / "forges" / "__init__.py"
        text = listed.read_text()
        assert "GITEA, FORGEJO)" in text
        line = "from avactl.forges.forgejo import FORGE as FORGEJO\n"
        text = text.replace(line, line + line.replace("forgejo", "anvil").replace("FORGEJO", "ANVIL"))
        listed.write_text(text.replace("GITEA, FORGEJO)", "GITEA, FORGEJO, ANVIL)"))

    def run(self, *words: str, given: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self._folder,
            env={"PYTHONPATH": str(self._folder), "COLUMNS": "300"},
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout


def test_another_forge_is_one_package_and_one_line(tmp_path: Path) -> None:
    ask = Copy(tmp_path, FAKE).run
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


def test_a_forge_may_only_have_comments(tmp_path: Path) -> None:
    """Each use of what it lacks is refused with the reason in its record."""
    forge = re.sub(r"proposals=Proposals", 'proposals=Unsupported("its changes are patches")', FAKE)
    forge = re.sub(r"status=lambda.*\n", 'status=Unsupported("its commits have none"),\n', forge)
    forge = re.sub(r"pipelines=lambda.*\n.*\n", "\\g<0>", forge)
    before, _, rest = forge.partition("    pipelines=lambda")
    forge = f'{before}    pipelines=Unsupported("it has no runner"),\n{rest.partition(chr(10))[2]}'
    forge = forge.replace("StatusRequest\n", "StatusRequest, Unsupported\n")
    copy = Copy(tmp_path, forge)
    posted, answer = copy.run("-c", LACKS, given=SPECS % ("a" * 64)).splitlines()
    assert posted == "POST https://anvil.test/api <!-- m -->"
    assert json.loads(answer) == {
        "comment": "created",
        "said": [
            "no pipelines on Anvil: it has no runner; `--forge none` writes the other files",
            "no pull requests on Anvil: its changes are patches",
        ],
        "status": "avactl: note: no commit statuses on Anvil: its commits have none\n",
        "specs": [
            [
                "invalid-value",
                "no pull requests on Anvil: its changes are patches, and roll-backs are proposed by pull requests",
                "write `rollback: commit`",
            ]
        ],
        "forge": False,
    }
    run = (
        "delivery",
        "run",
        "--repo",
        "https://anvil.test/acme/specs.git",
        "--forge",
        "anvil",
        "--cache",
        str(tmp_path),
    )
    for words in (("init", "new", "--forge", "anvil"), run):
        assert " on Anvil: " in copy.run("-m", "avactl.cli.main", *words, code=2)
    assert "ANVIL_TOKEN" not in copy.run("-m", "avactl.cli.main", "promote", "--help")
    assert "anvil" not in copy.run("-m", "avactl.cli.main", "init", "--help")


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
