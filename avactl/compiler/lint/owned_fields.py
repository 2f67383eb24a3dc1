"""Warnings about fields of specs and manifests that a controller writes, so that their values are not applied."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.object_identity import ObjectKey
from avactl.diagnostics import Diagnostic
from avactl.program import registry
from avactl.program.autoscalers import find_autoscaler
from avactl.program.manifest import injected_ca_bundles
from avactl.program.program import Item, Program
from avactl.spec.documents.document import Document, Path

_REPLICAS = ("spec", "replicas")


def owned_fields(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield the warnings for one spec."""
    written = list(registry.get_kind(item.kind).written(item, program))
    for each in written:
        body = each.body
        spec = body.get("spec")
        if isinstance(spec, dict) and spec.get("replicas") is not None:
            key = ObjectKey.of({**body, "metadata": {**body["metadata"], "namespace": each.namespace}})
            yield from _replicas_problem(item, program, key, spec["replicas"], each.doc, (*each.path, *_REPLICAS))
        for path in injected_ca_bundles(body):
            yield _warn(each.doc, (*each.path, *path), "cert-manager injects it")
    replicas = item.doc.get(*_REPLICAS)
    if not written and item.namespace and item.clusters and isinstance(replicas, int):
        for kind, group in (("Deployment", "apps"), ("LeaderWorkerSet", "leaderworkerset.x-k8s.io")):
            key = ObjectKey(group, kind, item.namespace, item.name)
            yield from _replicas_problem(item, program, key, replicas, item.doc, _REPLICAS)


def _replicas_problem(
    item: Item, program: Program, key: ObjectKey, replicas: object, doc: Document, path: Path
) -> Iterator[Diagnostic]:
    scalers = (find_autoscaler(program, cluster, key, replicas) for cluster in item.clusters)
    scaler = next(filter(None, scalers), "")
    if scaler:
        yield _warn(doc, path, f"{scaler} scales {key}")


def _warn(doc: Document, path: Path, why: str) -> Diagnostic:
    message = f"`{path[-1]}` is not applied: {why}"
    return Diagnostic("without-effect", message, doc.span(*path, key=True), severity="warning", hint="remove the key")
