"""The real engine against the real control plane."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi import automation

from avactl.apply.pulumi.engine import EngineOptions, PulumiEngineError, Session, StackName, WrongUseError, stack_names
from avactl.compiler import compile_tree
from avactl.spec.repository.tree import DirTree
from tests.pulumi.conftest import Repository, require_python_host
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

ROOT = Path(__file__).parents[2]


def uid(found: dict[str, Any] | None) -> str:
    assert found is not None
    return str(found["metadata"]["uid"])


def run(*arguments: str) -> tuple[int, str]:
    """Run the command in a process of its own: a run of the engine that fails leaves its program behind."""
    command = [sys.executable, "-m", "avactl.cli.main", *arguments]
    done = subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


@pytest.fixture
def engine_log(backend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the arguments of each run of the engine."""
    log, program = tmp_path / "engine.log", tmp_path / "logged" / "pulumi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {shutil.which("pulumi")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return log


def test_up_changes_what_the_specs_change(repository: Repository, engine_log: Path) -> None:
    """One stack from its first preview to renamed specs."""
    session = repository.session()
    declared = len(session.manifests)
    assert session.preview().counts == {"new": declared}
    assert set(repository.versions().values()) == {""}
    assert session.up().counts == {"new": declared}
    before = repository.versions()
    assert "" not in before.values()
    again = repository.session().up()
    assert (again.counts, again.same) == ({}, declared)
    assert repository.versions() == before
    # Each run of the engine loads the whole state.
    runs = engine_log.read_text()
    assert (" up " in runs, "stack output" in runs) == (True, False), runs
    # One spec changed: only its objects.
    repository.write(("metadata: {name: anna,", "metadata: {labels: {cost: low}, name: anna,"))
    changed = repository.session().up()
    of_spec = {m.name for m in repository.compile().manifests if m.item.spec_name == "anna"}
    assert changed.counts == {"changed": len([m for m in session.manifests if m.name in of_spec])}
    after = repository.versions()
    assert {name.partition(" ")[2] for name in after if after[name] != before[name]} == of_spec
    # A renamed spec with the names of its objects: none.
    repository.write(("metadata: {name: anna,", "metadata: {labels: {cost: low}, name: anna-b, objectName: anna,"))
    session = repository.session()
    assert list(session.renamed) == [("Workspace", repository.team, "anna-b")]
    assert session.up().counts == {}
    assert repository.versions() == after
    assert repository.session().renamed == {}  # the stack knows it by its new name
    # A rename that would leave data behind is refused.
    home = uid(repository.live("PersistentVolumeClaim", "anna-home"))
    repository.write(("metadata: {name: anna,", "metadata: {labels: {cost: low}, name: annette,"))
    with pytest.raises(PulumiEngineError, match=r"an empty .*annette-home would replace it") as caught:
        repository.session().up()
    assert "objectName: anna`" in caught.value.hint
    assert uid(repository.live("PersistentVolumeClaim", "anna-home")) == home


@pytest.mark.slow
def test_the_platform_comes_before_its_teams(backend: Path, tmp_path: Path) -> None:
    """All kinds, both stacks, by the command; on a plane of its own, because the platform's names are fixed."""
    with ControlPlane(controller_manager=True) as plane, plane.client() as kube:
        for name in ("gpu-a", "gpu-b"):
            kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        repository = Repository(tmp_path / "repository", "vision", plane, kube)
        where = [str(repository.root), "--kubeconfig", str(plane.kubeconfig)]
        code, text = run("up", "--yes", *where)
        assert code == 0, text
        assert text.index("stack main ·") < text.index("stack main.vision ·")
        assert kube.get("v1", "Node", "gpu-a")["metadata"]["labels"]["avactl.dev/pool"] == "v100"
        code, text = run("preview", *where, "--refresh", "--exit-code")
        assert (code, text.count("  no changes: ")) == (0, 2), text
        without_tier(repository)
        code, text = run("up", "--yes", *where, "--stack", "main")
        assert code == 0, text
        assert "StatefulSet avactl-cache/read-master: its spec was deleted; it holds data and is kept" in text
        assert kube.find("apps/v1", "StatefulSet", "read-master", "avactl-cache") is not None
        assert kube.find("v1", "ConfigMap", "read-alluxio", "avactl-cache") is not None  # without it, it could not run
        assert kube.find("apps/v1", "DaemonSet", "read-worker", "avactl-cache") is None
        repository.write(("{user: anna@example.com,", "{user: anna@example.com, running: false,"))
        code, text = run("preview", *where, "--exit-code", "--stack", "main.vision")
        assert code == 4
        assert "~ Workspace vision/anna\n" in text
        assert "StatefulSet vision/anna  spec.replicas 1 → 0\n" in text


def without_tier(repository: Repository) -> None:
    """Take the cache tier, its dataset and the use of that out of the repository."""
    documents = (repository.root / "platform.yaml").read_text().split("---")
    left = [text for text in documents if "kind: CacheTier" not in text and "kind: Dataset" not in text]
    (repository.root / "platform.yaml").write_text("---".join(left))
    work = (repository.root / "work.yaml").read_text()
    (repository.root / "work.yaml").write_text(work.replace("  datasets: [{name: imagenet, mount: /data}]\n", ""))


@pytest.mark.slow
def test_drift_is_found_and_put_back_and_an_ended_job_does_not_run_again(repository: Repository) -> None:
    repository.session().up()
    team, kube = repository.team, repository.kube
    by_hand = {"apiVersion": "v1", "metadata": {"namespace": team}}
    kube.patch(
        {
            **by_hand,
            "kind": "ConfigMap",
            "metadata": {"name": "resnet-rendezvous", "namespace": team},
            "data": {"x": "1"},
        },
        field_manager="kubectl-edit",
    )
    (rendezvous,) = [
        m for m in repository.compile().manifests if m.kind == "ConfigMap" and m.item.spec_name == "resnet"
    ]
    key = next(iter(rendezvous.body["data"]))
    kube.patch(
        {
            **by_hand,
            "kind": "ConfigMap",
            "metadata": {"name": rendezvous.name, "namespace": team},
            "data": {key: "wrong"},
        },
        field_manager="kubectl-edit",
    )
    kube.delete("v1", "Service", "detector", team)
    kube.delete("batch/v1", "Job", "resnet-worker", team)  # as its time to live does
    kube.wait_gone("batch/v1", "Job", "resnet-worker", team)
    session = repository.session()
    session.refresh()
    found = session.preview()
    assert {(change.operation, change.urn.rpartition("::")[2]) for change in found.changes.values()} == {
        ("update", f"{team}/resnet-rendezvous"),
        ("create", f"{team}/detector"),
    }
    session.up()
    assert kube.get("v1", "ConfigMap", rendezvous.name, team)["data"][key] == rendezvous.body["data"][key]
    assert kube.find("v1", "Service", "detector", team) is not None
    assert kube.find("batch/v1", "Job", "resnet-worker", team) is None


@pytest.mark.slow
def test_a_job_that_changes_begins_anew_under_its_name(repository: Repository) -> None:
    repository.session().up()
    first = uid(repository.live("Job", "resnet-worker"))
    repository.write(("[python, train.py]", '[python, train.py, --epochs, "9"]'))
    found = repository.session().up()
    assert {change.operation for change in found.changes.values()} <= {"replace", "update"}
    assert uid(repository.live("Job", "resnet-worker")) != first


@pytest.mark.slow
def test_a_renamed_spec_without_data_is_replaced_as_one(repository: Repository) -> None:
    repository.session().up()
    repository.write(("metadata: {name: detector", "metadata: {name: finder"))
    found = repository.session().up()
    objects = [m for m in repository.compile().manifests if m.item.spec_name == "finder"]
    assert found.counts == {"replaced": len(objects)}
    assert repository.live("Deployment", "detector") is None
    assert repository.live("Deployment", "finder") is not None


def test_what_holds_data_outlives_its_spec_and_its_stack(repository: Repository) -> None:
    repository.session().up()
    team, kube = repository.team, repository.kube
    work = (repository.root / "work.yaml").read_text()
    (repository.root / "work.yaml").write_text(work.partition("---")[2])
    session = repository.session()
    assert [entry.urn.rpartition("::")[2] for entry in session.kept] == [f"{team}/anna-home"]
    session.up()
    assert kube.find("apps/v1", "StatefulSet", "anna", team) is None
    home = kube.get("v1", "PersistentVolumeClaim", "anna-home", team)
    assert "deletionTimestamp" not in home["metadata"]
    destroy = ("destroy", "--yes", "--stack", f"main.{team}")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        repository.pulumi(repository.project(), *destroy)
    assert "protected" in caught.value.stdout
    repository.pulumi(repository.project(), *destroy, "--exclude-protected")
    left = {f"{m.kind} {m.name}" for m in repository.compile().manifests if m.item.team and m.holds_data}
    assert {name for name, version in repository.versions().items() if version} == left
    assert uid(kube.get("v1", "PersistentVolumeClaim", "anna-home", team)) == uid(home)
    # The spec comes back, and with it the home that it had.
    (repository.root / "work.yaml").write_text(work)
    repository.session().up()
    assert uid(kube.get("v1", "PersistentVolumeClaim", "anna-home", team)) == uid(home)
    # Who says so may delete it.
    repository.write(("storage: 20Gi}", "storage: 20Gi, deletionPolicy: delete}"))
    repository.session().up()
    (repository.root / "work.yaml").write_text(work.partition("---")[2])
    repository.session().up()
    kube.wait_gone("v1", "PersistentVolumeClaim", "anna-home", team)


@pytest.mark.slow
def test_replicas_belong_to_the_autoscaler(repository: Repository) -> None:
    repository.session().up()
    scaled = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "detector", "namespace": repository.team},
        "spec": {"replicas": 3},
    }
    repository.kube.patch(scaled, field_manager="autoscaler")
    repository.write(('version: "3"', 'version: "4"'))
    session = repository.session()
    session.refresh()
    assert session.up().counts
    live = repository.live("Deployment", "detector")
    assert live is not None
    assert live["spec"]["replicas"] == 3


def test_what_is_there_already_is_refused_or_adopted(repository: Repository) -> None:
    """Before anything is written, also with a provider that knows no refusal: those before 4.29 take objects over."""
    there = {"name": "resnet-rendezvous", "namespace": repository.team}
    repository.kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": there, "data": {"x": "1"}})
    before = repository.versions()
    where = [str(repository.root), "--stack", f"main.{repository.team}"]
    code, text = run("up", "--yes", *where)
    refused = f"stack main.{repository.team}: ConfigMap {repository.team}/resnet-rendezvous already exists"
    assert (code, refused in text, "`--adopt` takes over" in text) == (3, True, True), text
    assert "Traceback" not in text
    assert repository.versions() == before
    code, text = run("up", "--yes", "--adopt", *where)
    assert code == 0, text
    live = repository.live("ConfigMap", "resnet-rendezvous")
    assert live is not None
    assert set(live["data"]) > {"x"}
    assert repository.session().preview().counts == {}  # now they are this stack's own


def test_a_cluster_that_does_not_answer_is_one_clear_word(repository: Repository, tmp_path: Path) -> None:
    nowhere = tmp_path / "kubeconfig"
    config = json.loads(repository.plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    nowhere.write_text(json.dumps(config))
    code, text = run(
        "up", "--yes", str(repository.root), "--stack", f"main.{repository.team}", "--kubeconfig", str(nowhere)
    )
    assert code == 3
    assert "Traceback" not in text
    assert "https://127.0.0.1:1" in text
    assert "is it running?" in text


def test_up_asks_first_and_no_means_no(repository: Repository, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"n\n")
    where = [
        str(repository.root),
        "--stack",
        f"main.{repository.team}",
        "--kubeconfig",
        str(repository.plane.kubeconfig),
    ]
    try:
        command = [sys.executable, "-m", "avactl.cli.main", "up", *where]
        environment = {**os.environ, "TMPDIR": str(scratch)}
        done = subprocess.run(command, stdin=terminal, check=False, text=True, capture_output=True, env=environment)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert (done.returncode, "apply? [y/N]" in done.stdout) == (0, True), done.stderr
    assert set(repository.versions().values()) == {""}
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_team_without_specs_loses_its_objects(repository: Repository) -> None:
    repository.session().up()
    (repository.root / "work.yaml").unlink()
    team, _, _ = (repository.root / "team.yaml").read_text().partition("---")
    (repository.root / "team.yaml").write_text(team)
    session = repository.session()
    assert session.manifests == []
    kept = {entry.urn.rpartition("::")[2] for entry in session.kept}
    assert session.up().counts["deleted"] > 10
    assert {name.rpartition("/")[2] for name in kept} == {"anna-home", "resnet-checkpoint"}
    with pytest.raises(WrongUseError, match=r"unknown stack `main\.nobody`"):
        Session(repository.compile(), StackName("main", "nobody"), session.options)


def test_two_clusters_want_to_be_told_apart(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.write(("  members:", "  clusters: [main]\n  members:"))
    (repository.root / "east.yaml").write_text("{apiVersion: avactl.dev/v1, kind: Cluster, metadata: {name: east}}")
    kubeconfig = str(repository.plane.kubeconfig)
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    code, text = run("preview", str(repository.root), "--stack", "east")
    assert code == 2
    assert "--context east=NAME" in text
    code, text = run("preview", str(repository.root), "--stack", "east", "--adopt", "--context", "east=avactl")
    assert (code, "+ Cluster east" in text) == (0, True), text
    code, text = run("preview", str(repository.root), "--context", "avactl")
    assert (code, "name the cluster" in text) == (2, True)
    # The settings of the stack's project say it too.
    (repository.project() / "Pulumi.east.yaml").write_text("config: {avactl:context: avactl}\n")
    assert Session(repository.compile(), StackName("east", None), EngineOptions(repository.root)).context == "avactl"


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["serve", "train"])
def test_a_whole_platform_is_applied_once(cluster: str, backend: Path) -> None:
    """examples/ava: nothing in it comes back from the API server in another form than it was sent."""
    root = ROOT / "examples" / "ava"
    compilation = compile_tree(DirTree(root))
    with ControlPlane(controller_manager=True) as plane, plane.client() as kube:
        options = EngineOptions(root, plane.kubeconfig, {cluster: "avactl"})
        for manifest in compilation.manifests:
            if manifest.patch and manifest.cluster == cluster:
                kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": manifest.name}})
        names = [name for name in stack_names(compilation) if name.cluster == cluster]
        assert len(names) > 1
        for name in names:
            Session(compilation, name, options).up()
        for name in names:
            session = Session(compilation, name, options)
            session.refresh()
            assert session.up().changes == {}


@pytest.mark.slow
def test_the_project_s_program_is_the_same_stack(repository: Repository) -> None:
    repository.session().up()
    stack = repository.program()
    stack.preview(expect_no_changes=True)
    repository.write(("metadata: {name: anna,", "metadata: {labels: {cost: low}, name: anna,"))
    objects = [m for m in repository.compile().manifests if m.item.spec_name == "anna"]
    assert stack.preview().change_summary[automation.OpType.UPDATE] == len(objects)


def test_by_hand_it_is_the_same_stack(repository: Repository) -> None:
    require_python_host()
    stack = ("--stack", f"main.{repository.team}")
    repository.session().up()
    repository.pulumi(repository.project(), "preview", "--expect-no-changes", *stack)
    repository.write(("metadata: {name: anna,", "metadata: {labels: {cost: low}, name: anna,"))
    objects = [m for m in repository.compile().manifests if m.item.spec_name == "anna"]
    assert f"~ {len(objects)} to update" in repository.pulumi(repository.project(), "preview", *stack)


def start_by_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program on PATH, as of any plugin that is installed."""
    plugin = folder / "bin" / "pulumi-resource-avactl"
    plugin.parent.mkdir()
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "components"} "$@"\n')
    plugin.chmod(0o755)
    monkeypatch.setenv("PATH", f"{plugin.parent}{os.pathsep}{os.environ['PATH']}")
    return ""


def start_by_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of the components; the engine asks for a virtual environment in it, which has what this one has."""
    require_python_host()
    plugin = folder / "components"
    shutil.copytree(ROOT / "components", plugin, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(plugin / "venv")], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(plugin / "venv")}))
    (site / "this.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return "plugins: {providers: [{name: avactl, path: ../components}]}\n"


class RemoteWorkspace(pulumi.ComponentResource):
    """What a program in any language sends to the engine: a remote component of the package."""

    objects: pulumi.Output[list[str]]

    def __init__(self, repository: Repository, **spec: object) -> None:
        arguments = {
            "metadata": {"team": repository.team},
            "platform": str(repository.root),
            "spec": {"user": "anna", "image": "registry.example.com/jupyter:1", **spec},
            "objects": None,
        }
        super().__init__("avactl:index:Workspace", "anna", arguments, remote=True)


@pytest.mark.parametrize("start", [pytest.param(start_by_program, marks=pytest.mark.slow), start_by_project])
def test_components_are_there_for_other_languages(
    start: Callable[[Path, pytest.MonkeyPatch], str],
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ways to start the provider of the components."""
    (repository.root / "work.yaml").unlink()
    project = tmp_path / "program"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: own\nruntime: python\n" + start(tmp_path, monkeypatch))
    monkeypatch.setenv("KUBECONFIG", str(repository.plane.kubeconfig))
    settings = automation.LocalWorkspaceOptions(work_dir=str(project))

    def export_objects() -> None:
        pulumi.export("objects", RemoteWorkspace(repository, cpu=2).objects)

    stack = automation.create_stack("dev", "own", export_objects, opts=settings)
    assert f"StatefulSet {repository.team}/anna" in stack.up().outputs["objects"].value
    assert repository.kube.find("apps/v1", "StatefulSet", "anna", repository.team) is not None

    def misspell_cpu() -> None:
        RemoteWorkspace(repository, cpus=2)

    wrong = automation.select_stack("dev", "own", misspell_cpu, opts=settings)
    with pytest.raises(automation.CommandError, match=r"did you mean `cpu`\?"):
        wrong.preview()
