"""A repository of specs with the two nodes as its cluster, which `avactl reconcile` applies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.realnode import RealNode

PLATFORM = """\
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: lab}
spec:
  daemons: {scheduler: true, serving: true}
  images: {avactl: "AVACTL", kubectl: "KUBECTL"}
  storageClasses: {checkpoint: shared, classes: [{name: shared, accessModes: [ReadWriteMany]}]}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: t4}
spec: {cluster: lab, machineType: t4, nodes: [node-0, node-1]}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
spec: {members: {groups: [vision]}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {name: gpus, team: vision}
spec: {gpus: [{gpu: T4, guaranteed: 2}]}
"""


class Repository(NamedTuple):
    """A git repository, and the nodes that it describes."""

    path: Path
    node: RealNode

    def create(self, avactl: str, kubectl: str) -> None:
        """Make the repository, with the platform; the arguments are references of images."""
        self.path.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")
        self.write("platform.yaml", PLATFORM.replace("AVACTL", avactl).replace("KUBECTL", kubectl))

    def write(self, name: str, specs: str) -> None:
        """Commit a file, and apply the repository until everything is healthy."""
        (self.path / name).write_text(specs)
        self._apply()

    def remove(self, name: str) -> None:
        """Remove a file, and all objects of its specs."""
        (self.path / name).unlink()
        self._apply()

    def change(self, name: str, specs: str) -> None:
        """Commit a file, and apply the repository, healthy or not."""
        (self.path / name).write_text(specs)
        self._apply("--no-wait")

    def _apply(self, *more: str) -> None:
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message=change")
        command = [sys.executable, "-m", "avactl.cli.main", "reconcile", str(self.path)]
        options = ["--kubeconfig", str(self.node.kubeconfig), "--timeout=5m", *more]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _git(self, *arguments: str) -> None:
        author = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        subprocess.run(["git", "-C", str(self.path), *author, *arguments], check=True, capture_output=True)
