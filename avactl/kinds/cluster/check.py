"""Checks of a Cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cluster import check_reconcile, delivery
from avactl.kinds.cluster.daemons import builtin
from avactl.kinds.cluster.prices import price_problems
from avactl.program.checks.exposure import cluster_problems
from avactl.program.images import require_image
from avactl.program.lowering import namespaces
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.cluster import ClusterSpec

OLDEST = (1, 30)
"""Oldest supported minor version: it has ValidatingAdmissionPolicy (KEP-3488) and node-bound tokens (KEP-4193)."""
NEWEST = (1, 37)
"""Newest minor version whose API has been compared with what avactl compiles."""
DRA = (1, 34)
"""First minor version that serves `resource.k8s.io/v1` (KEP-4381, stable in 1.34)."""


def check(item: Item[ClusterSpec], program: Program) -> Iterable[Diagnostic]:
    """Yield the problems of one cluster."""
    spec = item.spec
    yield from _check_version(item, program)
    yield from price_problems(item, program)
    yield from cluster_problems(item, program)
    yield from namespaces.check_claims(namespaces.of_cluster(item, program), (item.name,), program)
    yield from check_duplicates(
        item, ("spec", "deviceClasses"), (entry.name for entry in spec.device_classes), "device class"
    )
    yield from check_duplicates(item, ("spec", "placement", "levels"), spec.placement.levels, "level", key=None)
    yield from check_duplicates(
        item, ("spec", "placement", "gangs"), (entry.kind for entry in spec.placement.gangs), "gang", key="kind"
    )
    yield from check_reconcile.check_reconcile(item)
    yield from delivery.check_delivery(item)
    if spec.daemons.cache and not program.tiers(item.name) and not program.lacks_tiers:
        yield Diagnostic(
            "without-effect",
            f"`cache` has no effect here: cluster {item.name} has no cache tier",
            item.span("spec", "daemons", "cache", key=True),
            severity="warning",
            hint=f"remove the key, or declare a tier with `cluster: {item.name}`",
        )
    yield from check_duplicates(
        item,
        ("spec", "storageClasses", "classes"),
        (entry.name for entry in spec.storage_classes.classes),
        "storage class",
    )
    on = [
        daemon for daemon in ("scheduler", "topology", "cache", "serving", "delivery") if getattr(spec.daemons, daemon)
    ]
    # All daemons share one image, so report a missing image once.
    if on:
        yield from require_image(item, program, "avactl", ("spec", "daemons", on[0]))
    elif builtin.runs_reconciler(item):
        yield from require_image(item, program, "avactl", ("spec", "reconcile", "repository"))


def _check_version(item: Item[ClusterSpec], program: Program) -> Iterator[Diagnostic]:
    version = item.spec.kubernetes_version
    minor = tuple(int(part) for part in version.split(".")[:2])
    if minor < OLDEST:
        yield Diagnostic(
            "kubernetes-version",
            f"Kubernetes {version} is not supported: avactl requires {_format_version(OLDEST)} or newer",
            item.span("spec", "kubernetesVersion"),
            hint=f'upgrade the cluster and write `kubernetesVersion: "{_format_version(OLDEST)}"` or newer',
        )
        return
    if minor > NEWEST:
        yield Diagnostic(
            "kubernetes-version",
            f"Kubernetes {version} is unknown: avactl knows {_format_version(OLDEST)} to {_format_version(NEWEST)}",
            item.span("spec", "kubernetesVersion"),
            severity="warning",
            hint=f"write the version of the cluster (`kubectl version`), at most {_format_version(NEWEST)}",
        )
    if minor >= DRA:
        return
    dra = next((pool for pool in program.pools(item.name) if pool.spec.allocation == "dra"), None)
    if dra is not None:
        note = Note(dra.span("spec", "allocation"), f"{dra} uses DRA")
        hint = f"upgrade the cluster to {_format_version(DRA)}, or write `allocation: devicePlugin` in the pool"
    elif item.spec.device_classes:
        note = Note(item.span("spec", "deviceClasses", key=True), "device classes require DRA")
        hint = f"upgrade the cluster to {_format_version(DRA)}, or remove `deviceClasses`"
    else:
        return
    yield Diagnostic(
        "kubernetes-version",
        f"Kubernetes {version} does not serve DRA (`resource.k8s.io/v1`), which requires {_format_version(DRA)}",
        item.span("spec", "kubernetesVersion"),
        hint=hint,
        notes=(note,),
    )


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
