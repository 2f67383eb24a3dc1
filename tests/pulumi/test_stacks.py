"""Stacks of a change, with the real engine against the real control plane: what pipelines do."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import DirTree
from avactl.workbench.scaffold import template_files
from tests.diff.repository import Repository as GitRepository
from tests.pulumi.conftest import Repository
from tests.pulumi.test_engine import run, uid
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

ROOT = Path(__file__).parents[2]


def stacks(*arguments: str) -> list[str]:
    code, text = run("stacks", *arguments, "--format", "json")
    assert code == 0, text
    found: list[str] = json.loads(text.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["serve", "train"])
def test_a_change_to_one_team_is_that_teams_stack_and_no_other(cluster: str, backend: Path, tmp_path: Path) -> None:
    """examples/ava by stack: all of it once, then one team's change by the stacks that it touches."""
    git = GitRepository(tmp_path / "ava")
    shutil.copytree(ROOT / "examples" / "ava", git.root, dirs_exist_ok=True)
    base = git.commit()
    root = str(git.root)
    with ControlPlane(controller_manager=True) as plane, plane.client() as kube:
        for manifest in compile_tree(DirTree(git.root)).manifests:
            if manifest.patch and manifest.cluster == cluster:
                kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": manifest.name}})
        everything = [name for name in stacks(root) if name.partition(".")[0] == cluster]
        where = [root, "--kubeconfig", str(plane.kubeconfig), "--context", f"{cluster}=avactl"]
        asked = [word for name in everything for word in ("--stack", name)]
        code, text = run("up", "--yes", *where, *asked)
        assert code == 0, text
        serving = git.root / "teams" / "vision" / ("serving.yaml" if cluster == "serve" else "workspaces.yaml")
        documents = serving.read_text().split("\n---\n")
        documents[0] = documents[0].replace("metadata: {", "metadata: {annotations: {note: changed}, ", 1)
        serving.write_text("\n---\n".join(documents))
        git.commit()
        touched = stacks(root, "--base", base)
        assert touched == [f"{cluster}.vision"]
        code, text = run("preview", "--exit-code", *where, *asked)
        assert code == 4
        changed = [part.partition(" ")[0] for part in text.split("stack ")[1:] if "  no changes: " not in part]
        assert changed == touched
        code, text = run("up", "--yes", *where, "--stack", *touched)
        assert code == 0, text
        code, text = run("preview", "--refresh", "--exit-code", *where, *asked)
        assert (code, text.count("  no changes: ")) == (0, len(everything)), text


@pytest.mark.slow
def test_the_pipelines_own_steps(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply and drift, as the workflow that `avactl init` writes has them."""
    workflow = yaml.safe_load(template_files()[".github/workflows/avactl-stack.yml"])
    steps = {
        step["name"]: step["run"] for step in workflow["jobs"]["stack"]["steps"] if "name" in step and "run" in step
    }
    monkeypatch.setenv("STACK", f"main.{repository.team}")
    monkeypatch.setenv("KUBECONFIG", str(repository.plane.kubeconfig))

    def step(name: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", steps[name]],
            cwd=repository.root,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout

    code, text = step("Apply")
    assert (code, "new;" in text) == (0, True), text
    assert step("Drift")[0] == 0
    repository.kube.delete("v1", "Service", "detector", repository.team)
    code, text = step("Drift")
    assert (code, f"::error title=Drift in main.{repository.team}::" in text) == (4, True), text
    code, text = step("Apply")
    assert code == 0, text
    assert step("Drift")[0] == 0


@pytest.mark.slow
def test_the_operators_stacks_let_go_of_data_and_take_it_back(repository: Repository) -> None:
    """The operator runs the program alone: nobody leaves protected objects out for it."""
    platform = (repository.root / "platform.yaml").read_text()
    (repository.root / "platform.yaml").write_text(
        platform.replace("spec:\n  images:", "spec:\n  reconcile: {mode: pulumiOperator}\n  images:")
    )
    where = [
        str(repository.root),
        "--stack",
        f"main.{repository.team}",
        "--kubeconfig",
        str(repository.plane.kubeconfig),
    ]
    code, text = run("up", "--yes", *where)
    assert (code, "the operator in the cluster applies" in text) == (2, True), text
    stack = repository.program()
    stack.up()
    home = repository.live("PersistentVolumeClaim", "anna-home")
    work = (repository.root / "work.yaml").read_text()
    (repository.root / "work.yaml").write_text(work.partition("---")[2])
    stack.up()
    assert repository.kube.find("apps/v1", "StatefulSet", "anna", repository.team) is None
    kept = repository.kube.get("v1", "PersistentVolumeClaim", "anna-home", repository.team)
    assert (uid(kept), "deletionTimestamp" in kept["metadata"]) == (uid(home), False)
    (repository.root / "work.yaml").write_text(work)
    stack.up()
    assert uid(repository.live("PersistentVolumeClaim", "anna-home")) == uid(home)
