"""README and docs/pulumi.md show what `avactl preview` and `avactl up` print, with the real engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from avactl.compiler import compile_tree
from avactl.contracts.names import POLICY
from avactl.program.manifest import Manifest
from avactl.spec.repository.tree import DirTree
from tests import console
from tests.pulumi.conftest import ROOT
from tests.pulumi.test_engine import run
from tools.controlplane import ControlPlane, KubeClient

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

README, PAGE = ROOT / "README.md", ROOT / "docs" / "pulumi.md"


NEEDED = {"Namespace", "PriorityClass", "ServiceAccount"}
"""Objects of the platform that a team's pods need: without them, the stacks report what the controllers complain of."""


@pytest.fixture
def ava(
    backend: Path, engine_plane: ControlPlane, engine_kube: KubeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of examples/ava whose stack `train.vision` was applied, to the context `train`."""
    kubeconfig = json.loads(engine_plane.kubeconfig.read_text())
    kubeconfig["contexts"][0]["name"] = kubeconfig["current-context"] = "train"
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    root = tmp_path / "ava"
    shutil.copytree(ROOT / "examples" / "ava", root)
    platform = [m for m in compile_tree(DirTree(root)).manifests if m.cluster == "train" and not m.item.team]
    for manifest in sorted(platform, key=lambda manifest: manifest.kind != "Namespace"):
        if manifest.kind in NEEDED and engine_kube.find(*identity(manifest)) is None:
            engine_kube.create(manifest.body)
    (policy,) = [manifest for manifest in platform if manifest.name == POLICY]
    engine_kube.create(policy.body)  # it says which cluster this is
    code, text = run("up", "--yes", "--stack", "train.vision", str(root))
    assert code == 0, text
    yield root
    engine_kube.delete(*identity(policy))  # to the other tests, it is another cluster


def identity(manifest: Manifest) -> tuple[str, str, str, str | None]:
    return manifest.body["apiVersion"], manifest.kind, manifest.name, manifest.namespace


def normalise(text: str) -> str:
    """Leave out the warning of the version that tools/pulumi builds, and sort what `up` did at the same time."""
    text = re.sub(r"^  warning: resource plugin kubernetes is expected .*\n", "", text, flags=re.MULTILINE)
    objects = r"(?<=\n)(?:  [+~±-] [A-Z]\w+ \S+/\S+  .*\n)+"
    return re.sub(rf"^stack .*\n{objects}", sort_lines, text, flags=re.MULTILINE)


def sort_lines(matched: re.Match[str]) -> str:
    first, *objects = matched[0].splitlines(True)
    return "".join([first, *sorted(objects)])


def test_console_blocks_print_what_they_say(ava: Path, tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    """The last block of the README, after its change to `resnet50`, and then those of the page, on the same stack."""
    program = tmp_path / "bin" / "avactl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m avactl.cli.main "$@"\n')
    program.chmod(0o755)
    settings = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    jobs = ava / "teams" / "vision" / "jobs.yaml"
    changed = jobs.read_text().replace("{replicas: 4, gpus: 8,", "{replicas: 6, gpus: 8,", 1)
    assert changed != jobs.read_text()
    jobs.write_text(changed)
    for document, first in ((README, -1), (PAGE, 0)):
        golden(document, normalise(console.run(document.read_text(), ava, settings, first=first)))
