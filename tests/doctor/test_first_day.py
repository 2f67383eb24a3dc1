"""docs/first-day.md: its commands, in their order, on a real control plane with machines and storage."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from avactl import Compilation, compile_tree
from avactl.spec.repository.tree import DirTree
from tests.conftest import ROOT
from tools.controlplane import ControlPlane, KubeClient, build_binaries
from tools.controlplane.build import KUBERNETES_MINOR

PAGE = ROOT / "docs" / "first-day.md"
PLUGIN: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"},
    "spec": {
        "selector": {"matchLabels": {"name": "nvidia-device-plugin"}},
        "template": {
            "metadata": {"labels": {"name": "nvidia-device-plugin"}},
            "spec": {
                "containers": [
                    {
                        "name": "nvidia-device-plugin-ctr",
                        "image": "nvcr.io/nvidia/k8s-device-plugin:v0.18.0",
                        "env": [
                            {"name": "DEVICE_LIST_STRATEGY", "value": "envvar"},
                            {"name": "PASS_DEVICE_SPECS", "value": "false"},
                        ],
                    }
                ]
            },
        },
    },
}
"""As examples/ava/pools/train.yaml says that it is set up."""
CLASSES = {"ceph-rbd": "rbd.csi.ceph.com", "cephfs": "cephfs.csi.ceph.com", "local-ssd": "kubernetes.io/no-provisioner"}


def lines() -> Iterator[str]:
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        yield from block.splitlines()


def prepare(kube: KubeClient, compilation: Compilation) -> None:
    """Machines with device plug-ins, and storage classes, as step 1 asks for them."""
    kube.create(PLUGIN)
    storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
    for name, provisioner in CLASSES.items():
        kube.create({**storage, "metadata": {"name": name}, "provisioner": provisioner})
    for manifest in compilation.manifests:
        if manifest.cluster != "train" or "pool.json" not in manifest.body.get("data", {}):
            continue
        pool = json.loads(manifest.body["data"]["pool.json"])
        named = pool["size"].get("nodes", ())
        count = pool["size"].get("count", len(named))
        resource = {pool["allocation"]["resource"]: str(pool["machine"]["gpus"]["count"])}
        if "rdmaResource" in pool["allocation"]:
            resource[pool["allocation"]["rdmaResource"]] = "8"
        for name in named or [f"{pool['pool']}-{index}" for index in range(count)]:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            kube.create({**node, "metadata": {"name": name, "labels": {} if named else pool["nodeLabels"]}})
            kube.patch({**node, "status": {"allocatable": resource}}, subresource="/status")


def test_its_commands_lead_to_a_platform(new_plane: Callable[..., ControlPlane], tmp_path: Path) -> None:
    plane = new_plane(controller_manager=True)
    kube = plane.client()
    shutil.copytree(ROOT / "examples" / "ava", tmp_path / "ava")
    cluster = tmp_path / "ava" / "clusters" / "train.yaml"
    cluster.write_text(cluster.read_text().replace('"1.36"', f'"{KUBERNETES_MINOR}"'))
    compilation = compile_tree(DirTree(tmp_path / "ava"))
    prepare(kube, compilation)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "kubectl").symlink_to(build_binaries(["kubectl"])["kubectl"])
    (tools / "avactl").write_text(f'#!/bin/sh\nexec {sys.executable} -m avactl.cli.main "$@"\n')
    (tools / "avactl").chmod(0o755)
    (tmp_path / "value").write_text("planted")
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "KUBECONFIG": str(plane.kubeconfig),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path / "ava",
            env=environment,
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout

    doctors: list[tuple[int, str]] = []
    for line in lines():
        code, text = run(line)
        if line.startswith("avactl doctor"):
            doctors.append((code, text))
            continue
        assert code == 0, text
        if line.startswith("avactl secrets"):
            for command in re.findall(r"^  (kubectl .*)$", text, re.MULTILINE):
                code, text = run(command.replace("=FILE", f"={shlex.quote(str(tmp_path / 'value'))}"))
                assert code == 0, text
    (first, before), (last, after) = doctors
    assert (first, "no Secret video/wandb" in before, "nodes" not in _missing(before)) == (5, True, True), before
    assert (last, "nothing is missing" in after, "unknown" in after) == (0, True, False), after
    for manifest in compilation.manifests:
        if manifest.cluster == "train":
            kube.get(manifest.body["apiVersion"], manifest.kind, manifest.name, manifest.namespace or None)


def _missing(text: str) -> set[str]:
    found, check = set(), ""
    for line in text.splitlines():
        check = line.split(" ")[0] or check
        if re.match(r"\S* +missing ", line):
            found.add(check)
    return found
