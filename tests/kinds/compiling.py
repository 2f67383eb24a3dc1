"""What the tests of kinds share: specs as text to objects, and those objects onto a control plane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics.text import render_text
from avactl.program.manifest import Manifest
from avactl.spec.repository.tree import MemoryTree
from tools.controlplane import KubeClient

DIGEST = "@sha256:" + "a" * 64


def compiled(text: str) -> Compilation:
    """Compile documents whose `apiVersion` is left out. Fails on any diagnostic."""
    result = unchecked(text)
    assert not result.diagnostics, render_text(result.diagnostics, lambda path: text)
    return result


def unchecked(text: str) -> Compilation:
    """As `compiled`, with problems and all."""
    return compile_tree(MemoryTree({"platform.yaml": complete(text).encode()}))


def complete(text: str) -> str:
    """Documents with the `apiVersion` that was left out."""
    return "---\n".join(f"apiVersion: avactl.dev/v1\n{part.strip()}\n" for part in text.split("\n---\n"))


def body(result: Compilation, kind: str, name: str, namespace: str = "", cluster: str = "main") -> dict[str, Any]:
    """The object of that kind and name."""
    found = [
        manifest.body
        for manifest in result.manifests
        if (manifest.kind, manifest.name, manifest.namespace, manifest.cluster) == (kind, name, namespace, cluster)
    ]
    assert len(found) == 1, f"{len(found)} × {kind} {namespace}/{name} among {[str(m.id) for m in result.manifests]}"
    return found[0]


def names(result: Compilation, kind: str, cluster: str = "main") -> list[str]:
    """The names of all objects of a kind, with their namespaces."""
    return [
        f"{manifest.namespace}/{manifest.name}" if manifest.namespace else manifest.name
        for manifest in result.manifests
        if manifest.kind == kind and manifest.cluster == cluster
    ]


def codes(result: Compilation) -> list[str]:
    """The codes of all problems, in order."""
    return [problem.code for problem in result.diagnostics]


def apply(kube: KubeClient, manifests: Iterable[Manifest]) -> list[dict[str, Any]]:
    """Server-side apply with strict validation, in the given order. Fails on any warning, and on no manifests."""
    applied = []
    for manifest in manifests:
        reply = kube.apply(manifest.body, field_manager="avactl")
        assert not reply.warnings, f"{manifest.id}: {reply.warnings}"
        applied.append(reply.body)
    assert applied, "nothing was applied"
    return applied


def cached_path(result: Compilation, volume: str) -> str:
    """The directory in its tier's namespace that a PersistentVolume shows, by the list that its machine follows."""
    source = body(result, "PersistentVolume", volume)["spec"]["hostPath"]
    assert source["type"] == "Directory"
    directory, _, name = source["path"].rpartition("/")
    base, _, tier = directory.rpartition("/")
    assert base == "/mnt/avactl/.volumes"
    lines = body(result, "ConfigMap", f"{tier}-volumes", "avactl-cache")["data"]["volumes"].splitlines()
    (found,) = (path for known, path in (line.split(" ", 1) for line in lines) if known == name)
    return f"{tier}:{found}"
