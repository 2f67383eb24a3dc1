"""Rules that a NodePool must keep, alone and beside the other pools of its cluster."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.program import Item, Program

_SIZES = ("count", "nodes", "autoscaling")

RESERVED = {
    "node.kubernetes.io": "Kubernetes",
    "node-role.kubernetes.io": "Kubernetes",
    "node.cloudprovider.kubernetes.io": "the cloud provider",
    "feature.node.kubernetes.io": "node feature discovery",
    "nvidia.com": "NVIDIA's GPU operator",
    "resource.nvidia.com": "NVIDIA's DRA driver",
}
"""Prefixes of labels and taints that others set and put back. Pods may select such labels on nodes that avactl does
not label, so they are refused only where the pool names its nodes.

Source: https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

_TAINTS_OF_OTHERS = ("node.kubernetes.io", "node.cloudprovider.kubernetes.io")
"""Prefixes of taints that controllers add and remove as a node's state changes. `nvidia.com/gpu` is a usual taint."""


def check(item: Item, program: Program) -> Iterator[Diagnostic]:
    """The problems of one pool."""
    yield from _size(item)
    yield from _labels(item)
    yield from _taints(item)


def _size(item: Item) -> Iterator[Diagnostic]:
    spec = item.spec
    given = [key for key in _SIZES if getattr(spec, key) is not None]
    if not given:
        yield Diagnostic(
            "missing-key",
            "`spec` needs one of `count`, `nodes`, `autoscaling`: how many machines the pool has",
            item.span("spec", key=True),
            hint="add `count: …`; or `nodes: […]` to have avactl label and taint them",
        )
    elif len(given) > 1:
        yield Diagnostic(
            "conflicting-keys",
            f"`{given[0]}` and `{given[1]}` both say how many machines the pool has",
            item.span("spec", given[1], key=True),
            hint=f"remove one: {_SIZE_HINTS[given[0], given[1]]}",
            notes=(Note(item.span("spec", given[0], key=True), f"`{given[0]}`"),),
        )
    scaling = spec.autoscaling
    if scaling is not None and scaling.min > scaling.max:
        yield Diagnostic(
            "invalid-value",
            f"spec.autoscaling: min {scaling.min} is above max {scaling.max}",
            item.span("spec", "autoscaling", "min"),
            hint=f"write `min: {scaling.max}` or less",
        )


_SIZE_HINTS = {
    ("count", "nodes"): "the names are counted by themselves",
    ("count", "autoscaling"): "a pool that scales itself has bounds instead of a count",
    ("nodes", "autoscaling"): "nodes that come and go cannot be named",
}


def _labels(item: Item) -> Iterator[Diagnostic]:
    for key in item.spec.labels:
        owner = RESERVED.get(key.partition("/")[0]) if "/" in key else None
        if owner is not None and item.spec.nodes is not None:
            yield Diagnostic(
                "reserved-label",
                f"label `{key}` is set by {owner}",
                item.span("spec", "labels", key, key=True),
                hint="remove it: nodes have it without avactl; for marks of your own choose another prefix",
            )


def _taints(item: Item) -> Iterator[Diagnostic]:
    seen: dict[tuple[str, str], int] = {}
    for index, taint in enumerate(item.spec.taints):
        path = ("spec", "taints", index, "key")
        if taint.key.partition("/")[0] in _TAINTS_OF_OTHERS and "/" in taint.key:
            yield Diagnostic(
                "reserved-label",
                f"taint `{taint.key}` is set by Kubernetes as the state of a node changes",
                item.span(*path),
                hint="choose a prefix of your own",
            )
        before = seen.setdefault((taint.key, taint.effect), index)
        if before != index:
            yield Diagnostic(
                "duplicate-entry",
                f"taint `{taint.key}` with effect {taint.effect} stands twice in `taints`",
                item.span(*path),
                label="second time",
                hint="a node has one value for a key and effect: remove one of the two",
                notes=(Note(item.span("spec", "taints", before, "key"), "first time"),),
            )


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Nodes that are named twice in one cluster: the labels of two pools would fight over them."""
    claimed: dict[tuple[str, str], tuple[Item, int]] = {}
    # Files in the order of their names: of two claims the later one is told.
    for pool in sorted(program.of("NodePool"), key=lambda item: (item.doc.file, item.doc.index)):
        for index, name in enumerate(pool.spec.nodes or ()):
            key = (pool.spec.cluster, name)
            other, place = claimed.setdefault(key, (pool, index))
            if (other, place) != (pool, index):
                where = "twice in the pool" if other is pool else f"in pool {other.name} already"
                yield Diagnostic(
                    "duplicate-node",
                    f"node `{name}` of cluster {pool.spec.cluster} is {where}",
                    pool.span("spec", "nodes", index),
                    hint="a node belongs to one pool: remove it from one of the two",
                    notes=(Note(other.span("spec", "nodes", place), "first time"),),
                )
