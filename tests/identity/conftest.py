"""Two real clusters, to which the Clusters `alpha` and `beta` of one repository were applied."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import forked
from tests.diff.repository import Repository
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import patience

CLUSTER = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: NAME}
spec: {reconcile: {mode: builtin}}
"""
TEAM = """\
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: NAME}
spec: {clusters: [CLUSTER], members: {groups: [NAME]}}
"""
JOB = """\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {name: train, team: TEAM}
spec:
  cluster: CLUSTER
  image: registry.example.com/train@sha256:5fc197963c82353a79543c56348ccfa631c386c5b9c4eb50de4fc9bcca31ceee
  command: [python, train.py]
  workers: {cpu: "1", memory: 1Gi}
"""
POOL = """\
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: NAME}
spec: {cluster: NAME, machineType: a10, count: 1}
"""


@dataclass(frozen=True)
class Clusters:
    """The planes by context, a kubeconfig with both, whose current context is alpha, and the repository."""

    planes: Mapping[str, ControlPlane]
    kubeconfig: Path
    repository: Path
    folder: Path

    def run(self, *words: str, kubeconfig: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command line, with the kubeconfig in $KUBECONFIG."""
        left = {k: v for k, v in os.environ.items() if "TOKEN" not in k and k != "NO_COLOR"}
        left |= {"KUBECONFIG": str(kubeconfig or self.kubeconfig), "HOME": str(self.folder)}
        left |= {"XDG_CACHE_HOME": str(self.folder / "cache"), "COLUMNS": "200", **env}
        return forked.run(words, cwd=self.repository, env=left, timeout=patience())

    def kube(self, name: str) -> KubeClient:
        """A client of a plane; close it."""
        return self.planes[name].client()

    def objects(self, name: str) -> list[str]:
        """What a run in the wrong cluster would create: namespaces and their roles, ConfigMaps, Leases and Jobs."""
        kinds = (
            ("v1", "Namespace"),
            ("v1", "ConfigMap"),
            ("coordination.k8s.io/v1", "Lease"),
            ("batch/v1", "Job"),
            ("rbac.authorization.k8s.io/v1", "Role"),
            ("rbac.authorization.k8s.io/v1", "RoleBinding"),
            ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        )
        with self.kube(name) as kube:
            found = [(kind, body["metadata"]) for api, kind in kinds for body in kube.list(api, kind)]
        return sorted(f"{kind} {metadata.get('namespace', '')}/{metadata['name']}" for kind, metadata in found)


def merged(path: Path, planes: Mapping[str, ControlPlane], current: str, user: str = "") -> Path:
    """Write a kubeconfig with one context for each plane."""
    whole: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": current}
    for name, plane in planes.items():
        plane.write_kubeconfig(path, plane.token(user) if user else plane.token())
        data = yaml.safe_load(path.read_text())
        for key in ("clusters", "users"):
            whole.setdefault(key, []).append(data[key][0] | {"name": name})
        whole.setdefault("contexts", []).append({"name": name, "context": {"cluster": name, "user": name}})
    path.write_text(yaml.safe_dump(whole))
    return path


@pytest.fixture(scope="package")
def clusters(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    folder = tmp_path_factory.mktemp("clusters")
    repository = folder / "repository"
    files = {"avactl.yaml": "include: [.]\n"}
    for name, team in (("alpha", "vision"), ("beta", "nlp")):
        files[f"{name}.yaml"] = CLUSTER.replace("NAME", name)
        files[f"{name}-pool.yaml"] = POOL.replace("NAME", name)
        files[f"{team}.yaml"] = TEAM.replace("NAME", team).replace("CLUSTER", name)
    Repository(repository).commit(files)
    (repository / "job.yaml").write_text(JOB.replace("TEAM", "nlp").replace("CLUSTER", "beta"))
    with ControlPlane(users={"member": ("nlp",)}) as alpha, ControlPlane(users={"member": ("nlp",)}) as beta:
        planes = {"alpha": alpha, "beta": beta}
        made = Clusters(planes, merged(folder / "kubeconfig", planes, "alpha"), repository, folder)
        for name in planes:
            done = made.run("reconcile", "--once", "--no-wait", "--cluster", name)
            assert done.returncode == 0, done.stdout + done.stderr
        yield made
