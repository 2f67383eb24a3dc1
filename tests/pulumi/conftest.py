"""Fixtures of the tests that drive the real engine against the real control plane."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pulumi import automation

from avactl.apply.pulumi.engine import EngineOptions, Session, StackName
from avactl.apply.pulumi.stack import run as run_program
from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import DirTree
from tests.cluster_fixtures import building
from tests.pulumi.repository import files
from tools.controlplane import BuildError, ControlPlane, KubeClient, UnavailableError
from tools.pulumi import find_engine

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def engine_path(request: pytest.FixtureRequest) -> str:
    """A PATH that begins with the engine. Where it cannot be built: skip, in CI fail."""
    try:
        with building(request):
            return find_engine()
    except BuildError as error:
        raise UnavailableError(f"Pulumi engine unavailable: {error}") from error


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of the engine without plugins, credentials and settings of this machine's user."""
    return tmp_path_factory.mktemp("pulumi-home")


def require_python_host() -> None:
    """Skip where Pulumi's host of Python programs is not on PATH: it is part of no Go module."""
    if shutil.which("pulumi-language-python") is None:
        pytest.skip("not on PATH: pulumi-language-python")


@pytest.fixture(scope="session")
def engine_plane(engine_path: str, control_plane_binaries: None) -> Iterator[ControlPlane]:
    """A plane of these tests' own, because stacks hold objects that have no namespace."""
    with ControlPlane(controller_manager=True) as plane:
        yield plane


@pytest.fixture(scope="session")
def engine_kube(engine_plane: ControlPlane) -> Iterator[KubeClient]:
    """The administrator's client of that plane."""
    with engine_plane.client() as client:
        yield client


@pytest.fixture
def backend(engine_path: str, engine_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of states: a lock that a killed run left behind concerns no other test."""
    store = tmp_path / "state"
    store.mkdir()
    for name in [name for name in os.environ if name.startswith("PULUMI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PULUMI_HOME", str(engine_home))
    monkeypatch.setenv("PULUMI_BACKEND_URL", store.as_uri())
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "test")
    monkeypatch.setenv("PULUMI_SKIP_UPDATE_CHECK", "true")
    monkeypatch.setenv("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "true")
    # The engine starts `python`, which must be this one.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{engine_path}")
    return store


class Repository:
    """A repository on disk, whose team has a name of its own, and its stacks on the plane."""

    def __init__(self, root: Path, team: str, plane: ControlPlane, kube: KubeClient) -> None:
        self.root = root
        self.team = team
        self.plane = plane
        self.kube = kube
        root.mkdir()
        self.write()

    def write(self, *replace: tuple[str, str]) -> None:
        """The specs with some text replaced."""
        for path, text in files(*replace, team=self.team).items():
            (self.root / path).write_text(text)

    def compile(self) -> Compilation:
        compilation = compile_tree(DirTree(self.root))
        assert compilation.ok, compilation.diagnostics
        return compilation

    def session(self) -> Session:
        """The team's stack."""
        return Session(self.compile(), StackName("main", self.team), EngineOptions(self.root))

    def project(self) -> Path:
        """The project of `pulumi` by hand, as `avactl init` writes it; made by the first call."""
        directory = self.root / "stacks"
        if not directory.exists():
            shutil.copytree(ROOT / "stacks", directory)
        return directory

    def program(self) -> automation.Stack:
        """The team's stack with the project's program, run in this process: as `pulumi` by hand, without a host."""
        settings = automation.LocalWorkspaceOptions(work_dir=str(self.project()))
        stack = automation.create_or_select_stack(f"main.{self.team}", "avactl", run_program, opts=settings)
        # The program runs in the directory and with the variables of the tests.
        stack.set_config("path", automation.ConfigValue(str(self.root)))
        return stack

    def live(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object of the team's namespace as it is in the cluster."""
        manifest = next(m for m in self.compile().manifests if m.kind == kind)
        return self.kube.find(manifest.body["apiVersion"], kind, name, self.team)

    def versions(self) -> dict[str, str]:
        """Every object of the team's stack without what controllers report of it; "" of one that does not exist."""
        found = {}
        for manifest in self.compile().manifests:
            if manifest.item.team:
                live = self.kube.find(manifest.body["apiVersion"], manifest.kind, manifest.name, manifest.namespace)
                found[f"{manifest.kind} {manifest.name}"] = _written(live) if live else ""
        return found

    def pulumi(self, directory: Path, *arguments: str) -> str:
        """Run the engine by hand; what it prints. Raises CalledProcessError."""
        done = subprocess.run(
            ["pulumi", "--non-interactive", "--cwd", str(directory), *arguments],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.stdout


def _written(live: dict[str, Any]) -> str:
    """Return an object with the times of its writes, as text, without its status: that is written at any time."""
    metadata = {key: value for key, value in live["metadata"].items() if key != "resourceVersion"}
    metadata["managedFields"] = [entry for entry in metadata["managedFields"] if entry.get("subresource") != "status"]
    return json.dumps({**live, "metadata": metadata, "status": None}, sort_keys=True)


@pytest.fixture
def repository(
    backend: Path,
    tmp_path: Path,
    engine_plane: ControlPlane,
    engine_kube: KubeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> Repository:
    """A fresh repository whose team's namespace is there already, on the plane of KUBECONFIG."""
    monkeypatch.setenv("KUBECONFIG", str(engine_plane.kubeconfig))
    team = f"team-{uuid.uuid4().hex[:8]}"
    for name in (team, "avactl-system"):
        if engine_kube.find("v1", "Namespace", name) is None:
            engine_kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return Repository(tmp_path / "repository", team, engine_plane, engine_kube)
