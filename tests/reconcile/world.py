"""A cluster, a git repository, and the command between them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml

from avactl.apply.reconcile import command
from avactl.apply.reconcile.command import ReconcileRequest
from avactl.apply.reconcile.desired import INVENTORY, Wanted
from avactl.apply.reconcile.live_state import ALWAYS
from avactl.apply.reconcile.reconciler import reconcile_once
from avactl.apply.reconcile.reporting.report import StepResult
from avactl.compiler import compile_tree
from avactl.kube import access
from avactl.kube.client import Client
from avactl.spec.repository.tree import DirTree
from tests import forked
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import patience

ROOT = Path(__file__).parents[2]
AVA = ROOT / "examples" / "ava"
Key = tuple[str, str, str, str]

PLATFORM = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: lab}
spec:
  systemNamespace: NAME-system
  reconcile: {mode: builtin}
  images: {fetch: registry.example.com/rclone@sha256:5fc197963c82353a79543c56348ccfa631c386c5b9c4eb50de4fc9bcca31ceee}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: a10}
spec: {cluster: lab, machineType: a10, count: 4}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {namespaces: [{name: NAME-vision}], members: {groups: [vision]}, deletionPolicy: delete}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: A10, guaranteed: 4}]}
"""


class World:
    """One plane, on which tests take turns: each with clusters, teams and namespaces of its own."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, folder: Path) -> None:
        self.plane, self.kube, self.folder = plane, kube, folder
        self.name = f"t{uuid.uuid4().hex[:6]}"
        """Part of the names of the test's namespaces: those of the test before may still be going."""
        self.repository = folder / "repository"
        self.kubeconfig = plane.kubeconfig
        self.running: list[forked.Process] = []

    def end(self) -> None:
        """Nothing that has a mark is left; namespaces go by themselves."""
        for process in self.running:
            process.kill()
            process.wait()
        for gvk in sorted(ALWAYS):
            for body in self.kube.list(*gvk, label_selector=INVENTORY):
                version, kind, namespace, name = key_of(body)
                with suppress(ApiError):
                    self.kube.delete(version, kind, name, namespace or None)
        for body in self.kube.list("v1", "ConfigMap", label_selector="app.kubernetes.io/name=reconcile"):
            with suppress(ApiError):
                self.kube.delete("v1", "ConfigMap", body["metadata"]["name"], body["metadata"]["namespace"])

    def specs(self, *more: str) -> str:
        """The specs of a small platform: cluster `lab`, team `vision`, and more documents."""
        return PLATFORM.replace("NAME", self.name) + "".join(f"---\n{text}\n" for text in more)

    # -- git --------------------------------------------------------------------------------------------------------

    def git(self, *arguments: str) -> str:
        """Run git in the repository."""
        author = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        command = ["git", "-C", str(self.repository), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit_objects(self, bodies: Iterable[dict[str, Any]]) -> None:
        """Commit the platform, and these objects of team vision."""
        spec = {
            "apiVersion": "avactl.dev/v1",
            "kind": "KubernetesObjects",
            "metadata": {"name": "front", "team": "vision"},
            "spec": {"objects": list(bodies)},
        }
        self.commit({"platform.yaml": self.specs(), "front.yaml": yaml.safe_dump(spec)})

    def commit(self, files: Mapping[str, str | None] | None = None, *, example: Path | None = None) -> str:
        """Commit files (None: removed) and return the commit's name."""
        if not self.repository.exists():
            if example is not None:
                shutil.copytree(example, self.repository)
            self.repository.mkdir(exist_ok=True)
            self.git("init", "--quiet", "--initial-branch=main")
        for name, text in (files or {}).items():
            path = self.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")

    def replace(self, name: str, old: str, new: str) -> str:
        """Commit a change of one text in a file."""
        text = (self.repository / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        return self.commit({name: text.replace(old, new)})

    # -- the command ------------------------------------------------------------------------------------------------

    def command(self, *arguments: str, path: str = "") -> list[str]:
        """The words of a run of the command line, after `avactl`."""
        return ["reconcile", path or str(self.repository), "--kubeconfig", str(self.kubeconfig), *arguments]

    def environment(self) -> dict[str, str]:
        """Nothing of this machine's forges and caches."""
        left = {k: v for k, v in os.environ.items() if "TOKEN" not in k and k not in ("KUBECONFIG", "NO_COLOR")}
        return {**left, "XDG_CACHE_HOME": str(self.folder / "cache")}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return forked.run(self.command(*arguments), env=self.environment(), timeout=patience(300))

    def start(self, *arguments: str, log: str = "log", path: str = "") -> forked.Process:
        """Start the command; it is killed after the test."""
        with (self.folder / log).open("ab") as output:
            process = forked.start(self.command(*arguments, path=path), log=output, env=self.environment())
        self.running.append(process)
        return process

    def _request(self, **options: Any) -> ReconcileRequest:
        return command.ReconcileRequest(
            path=self.repository, connect=partial(access.find, self.kubeconfig, ""), **options
        )

    def once(self, cluster: str = "", **options: Any) -> StepResult:
        """One run in this process."""
        options.setdefault("timeout", 20.0)
        request = self._request(cluster=cluster, **options)
        declared = command.compile_revision(request, command.source_of(request).newest())
        assert declared.ok, declared.compilation.diagnostics

        async def go() -> StepResult:
            async with Client(request.connect(declared.cluster)) as client:
                return (await reconcile_once(client, declared.options, declared.wanted))[0]

        return asyncio.run(go())

    def wanted(self, cluster: str = "") -> tuple[Wanted, ...]:
        """What git declares."""
        request = self._request(cluster=cluster)
        return command.compile_revision(request, command.source_of(request).newest()).wanted

    # -- the cluster ------------------------------------------------------------------------------------------------

    def owned(self, inventory: str, wanted: tuple[Wanted, ...]) -> dict[Key, dict[str, Any]]:
        """Everything with the mark of an inventory, of the kinds that git declares."""
        found: dict[Key, dict[str, Any]] = {}
        for gvk in {each.gvk for each in wanted}:
            for body in self.kube.list(*gvk, label_selector=f"{INVENTORY}={inventory}"):
                found[key_of(body)] = body
        return found

    def want_state_of_git(self, inventory: str, cluster: str = "") -> None:
        """The cluster holds exactly what git declares: no object too many or too few, every field as it says."""
        wanted = self.wanted(cluster)
        live = self.owned(inventory, wanted)
        declared = {key_of(each.body): each for each in wanted if not each.manifest.patch}
        here = {key for key, body in live.items() if not body["metadata"].get("deletionTimestamp") and key[1] != "Node"}
        assert declared
        assert here == set(declared)
        for key, each in declared.items():
            answer = self.kube.apply(each.body, field_manager="avactl", force=True, dry_run=True).body
            assert content(answer) == content(live[key]), key


def key_of(body: Mapping[str, Any]) -> Key:
    """What an object is called."""
    metadata = body["metadata"]
    return body["apiVersion"], body["kind"], metadata.get("namespace", ""), metadata["name"]


_SERVERS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")


def content(body: Mapping[str, Any]) -> dict[str, Any]:
    """An object without what the API server and controllers write."""
    metadata = {key: value for key, value in body["metadata"].items() if key not in _SERVERS}
    notes = {k: v for k, v in metadata.get("annotations", {}).items() if not k.startswith(_CONTROLLERS)}
    metadata["annotations"] = notes
    plain: dict[str, Any] = orjson.loads(orjson.dumps({**body, "metadata": metadata, "status": None}))
    if plain["kind"] == "Job":
        plain["spec"].pop("selector", None)
        for labels in (metadata.get("labels", {}), plain["spec"]["template"]["metadata"].get("labels", {})):
            for name in [name for name in labels if name.endswith(("controller-uid", "job-name"))]:
                del labels[name]
        plain["metadata"], plain["spec"]["template"] = metadata, plain["spec"]["template"]
    if plain["kind"] == "PersistentVolume":
        for name in ("uid", "resourceVersion"):
            (plain["spec"].get("claimRef") or {}).pop(name, None)
    if plain["kind"] in ("PersistentVolumeClaim", "PersistentVolume"):
        plain["metadata"].pop("finalizers", None)
        plain["spec"].pop("volumeName", None)
    if plain["kind"] == "Service":
        for name in ("clusterIP", "clusterIPs"):
            if plain["spec"].get("clusterIP") != "None":
                plain["spec"].pop(name, None)
    return plain


_CONTROLLERS = ("deployment.kubernetes.io/", "pv.kubernetes.io/", "deprecated.daemonset", "volume.")


def objects(path: Path, cluster: str) -> int:
    """How many objects a repository compiles to."""
    return sum(m.cluster == cluster for m in compile_tree(DirTree(path)).manifests)
