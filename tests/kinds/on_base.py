"""One spec compiled together with the base platform of the invalid fixtures, and its objects on a control plane."""

from __future__ import annotations

import textwrap
from typing import Any

from avactl.compiler import Compilation, compile_tree
from avactl.diagnostics import Diagnostic
from avactl.program.manifest import templates_of
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

Objects = dict[tuple[str, str], dict[str, Any]]


def compile_spec(text: str, base: bool = True) -> Compilation:
    """Compile `spec.yaml` of this text, beside the base platform."""
    files = dict(BASE) if base else {}
    return compile_tree(MemoryTree({**files, "spec.yaml": textwrap.dedent(text)}))


def objects(text: str, base: bool = True) -> Objects:
    """The objects of the specs in `text` by kind and name; warnings are fine, errors fail the test."""
    result = compile_spec(text, base)
    errors = [d for d in result.diagnostics if d.severity == "error"]
    assert not errors, errors
    return {(m.kind, m.name): m.body for m in result.manifests if m.item.doc.file == "spec.yaml"}


def problems(text: str, base: bool = True) -> list[Diagnostic]:
    """What is wrong with the specs in `text`."""
    return list(compile_spec(text, base).diagnostics)


def api_server_says(found: Objects, kube: KubeClient, namespace: str) -> list[str]:
    """The warnings of the real API server on the objects, and on a pod of each template in a `restricted` namespace.

    Raises ApiError where it refuses one.
    """
    level = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": level}},
        field_manager="pod-security",
    )
    warnings: list[str] = []
    for body in found.values():
        placed = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
        warnings += kube.apply(placed).warnings
        for _, template in templates_of(body):
            # What the platform's own specs bring along is not in this namespace.
            spec = {k: v for k, v in template["spec"].items() if k not in ("priorityClassName", "serviceAccountName")}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "trial", "namespace": namespace},
                "spec": spec,
            }
            warnings += kube.create(pod, dry_run=True).warnings
    return warnings
