"""Checks of a NodePool, alone and together with the other pools of its cluster."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.contracts.names import GPU_RESOURCES
from avactl.diagnostics import Diagnostic, Note
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.node_pool import NodePoolSpec

_SIZE_KEYS = ("count", "nodes", "autoscaling")

RESERVED = {
    "node.kubernetes.io": "Kubernetes",
    "node-role.kubernetes.io": "Kubernetes",
    "node.cloudprovider.kubernetes.io": "the cloud provider",
    "feature.node.kubernetes.io": "node feature discovery",
    "nvidia.com": "NVIDIA's GPU operator",
    "resource.nvidia.com": "NVIDIA's DRA driver",
}
"""Prefixes of labels and taints that other controllers set and restore. Pods may select such labels on nodes that
avactl does not label, so they are rejected only if the pool names its nodes.

Source: https://kubernetes.io/docs/reference/labels-annotations-taints/
"""

_TAINTS_OF_OTHERS = ("node.kubernetes.io", "node.cloudprovider.kubernetes.io")
"""Prefixes of taints that controllers add and remove with node conditions. `nvidia.com/gpu` is an ordinary taint."""


def check(item: Item[NodePoolSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one pool."""
    yield from _check_size(item)
    yield from _check_labels(item)
    yield from _check_taints(item)
    paths = (disk.path.rstrip("/") for disk in item.spec.disks)
    yield from _check_spot(item, program)
    yield from _check_gpu_keys(item, program)
    yield from _check_device_choice(item, program)
    yield from _check_faults(item, program)
    yield from _check_preemptions(item, program)
    yield from check_duplicates(item, ("spec", "disks"), paths, "disk", key="path")


def _check_size(item: Item[NodePoolSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    given = [key for key in _SIZE_KEYS if getattr(spec, key) is not None]
    if not given:
        yield Diagnostic(
            "missing-key",
            "`spec` needs one of `count`, `nodes` and `autoscaling`, which set the pool's size",
            item.span("spec", key=True),
            hint="add `count: …`; or `nodes: […]` to let avactl label and taint them",
        )
    elif len(given) > 1:
        yield Diagnostic(
            "conflicting-keys",
            f"`{given[0]}` and `{given[1]}` exclude each other: both set the pool's size",
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


def _check_preemptions(item: Item[NodePoolSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield keys about preemptions that nobody reads."""
    scaling = item.spec.autoscaling
    if scaling is None:
        return
    scheduler = program.cluster_spec(item.cluster).daemons.scheduler
    if scaling.preempt_after is not None and not scheduler:
        yield Diagnostic(
            "without-effect",
            f"spec.autoscaling.preemptAfter is for avactl's scheduler, which Cluster {item.cluster} does not run",
            item.span("spec", "autoscaling", "preemptAfter", key=True),
            severity="warning",
            hint=f"add `daemons: {{scheduler: true}}` to Cluster {item.cluster}, or remove the key",
        )
    if scaling.node_groups and scaling.preempt_after is None:
        yield Diagnostic(
            "without-effect",
            "spec.autoscaling.nodeGroups is for preemptions that wait for machines",
            item.span("spec", "autoscaling", "nodeGroups", key=True),
            severity="warning",
            hint="add `preemptAfter: 10m`, or remove the key",
        )
    path = ("spec", "autoscaling", "nodeGroups")
    yield from check_duplicates(item, path, scaling.node_groups, "node group", key=None)


def _check_spot(item: Item[NodePoolSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield keys that have no effect: a notice of machines that stay, a price without a currency."""
    if "reclaim_notice" in item.spec.model_fields_set and not item.spec.is_spot:
        yield Diagnostic(
            "without-effect",
            "spec.reclaimNotice is for `capacity: spot`",
            item.span("spec", "reclaimNotice", key=True),
            severity="warning",
            hint="add `capacity: spot`, or remove the key",
        )
    if item.spec.price is not None and program.cluster_spec(item.cluster).prices is None:
        yield Diagnostic(
            "without-effect",
            f"spec.price has no currency: cluster {item.cluster} has no `prices`",
            item.span("spec", "price"),
            severity="warning",
            hint=f"add `prices: {{currency: EUR}}` to Cluster {item.cluster}",
        )


def _check_gpu_keys(item: Item[NodePoolSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield keys about GPUs on machines without them, and misspelt resources."""
    name = item.spec.resource_name
    near = next((each for each in GPU_RESOURCES if name.lower().rstrip("s") == each.rstrip("s") and each != name), None)
    if near is not None:
        yield Diagnostic(
            "invalid-value",
            f"spec.resourceName: no device plugin has `{name}`",
            item.span("spec", "resourceName"),
            hint=f"did you mean `{near}`?",
        )
    if program.lacks_machines or program.machine(item).gpus is not None:
        return
    for name, key in (
        ("allocation", "allocation"),
        ("devices_chosen_by", "devicesChosenBy"),
        ("resource_name", "resourceName"),
        ("price", "price"),
    ):
        if name in item.spec.model_fields_set:
            yield Diagnostic(
                "without-effect",
                f"spec.{key} is about GPUs, and machines of type {item.spec.machine_type} have none",
                item.span("spec", key, key=True),
                severity="warning",
                hint="remove the key; CPU and memory have prices in the Cluster: `prices: {cpu: …, memory: …}`"
                if key == "price"
                else "remove the key",
            )


def _check_device_choice(item: Item[NodePoolSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield a choice of devices that cannot be: with DRA, with plugins of others, and without avactl's scheduler."""
    spec = item.spec
    if spec.devices_chosen_by is None or program.lacks_machines or program.machine(item).gpus is None:
        return
    if spec.allocation == "dra":
        yield Diagnostic(
            "conflicting-keys",
            "`devicesChosenBy` is about device plugins: with `allocation: dra` the scheduler chooses",
            item.span("spec", "devicesChosenBy", key=True),
            hint="remove the key",
            notes=(Note(item.span("spec", "allocation"), "`allocation: dra`"),),
        )
    elif spec.devices_chosen_by == "scheduler" and spec.kubelet_chooses:
        yield Diagnostic(
            "invalid-value",
            f"spec.devicesChosenBy: the device plugin of {spec.resource_name} hands out what the kubelet chose",
            item.span("spec", "devicesChosenBy"),
            hint="remove the key, or use `allocation: dra`",
        )
    elif spec.devices_chosen_by == "scheduler" and not program.cluster_spec(item.cluster).daemons.scheduler:
        yield Diagnostic(
            "conflicting-keys",
            f"spec.devicesChosenBy: Cluster {item.cluster} does not run avactl's scheduler, so the kubelet chooses",
            item.span("spec", "devicesChosenBy"),
            hint=f"remove the key, or add `daemons: {{scheduler: true}}` to Cluster {item.cluster}",
        )


def _check_faults(item: Item[NodePoolSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield keys about faults that nobody reads, and conditions whose status `True` is no fault."""
    spec = item.spec
    for name, key in (
        ("on_fault", "onFault"),
        ("fault_conditions", "faultConditions"),
        ("on_failed_pods", "onFailedPods"),
    ):
        if name in spec.model_fields_set and not program.cluster_spec(item.cluster).daemons.scheduler:
            yield Diagnostic(
                "without-effect",
                f"spec.{key} is for avactl's scheduler, which Cluster {item.cluster} does not run",
                item.span("spec", key, key=True),
                severity="warning",
                hint=f"add `daemons: {{scheduler: true}}` to Cluster {item.cluster}, or remove the key",
            )
    for index, kind in enumerate(spec.fault_conditions):
        if kind.endswith(_GOOD_ENDINGS):
            yield Diagnostic(
                "invalid-value",
                f"spec.faultConditions: `{kind}` is `True` while the machine works",
                item.span("spec", "faultConditions", index),
                hint="name conditions that are `True` because of a fault",
            )
    yield from check_duplicates(item, ("spec", "faultConditions"), spec.fault_conditions, "condition", key=None)


_GOOD_ENDINGS = ("Ready", "Healthy", "Matches")
_SIZE_HINTS = {
    ("count", "nodes"): "avactl counts the names",
    ("count", "autoscaling"): "an autoscaled pool has bounds instead of a count",
    ("nodes", "autoscaling"): "autoscaled nodes cannot be named",
}


def _check_labels(item: Item[NodePoolSpec]) -> Iterator[Diagnostic]:
    for key in item.spec.labels:
        owner = RESERVED.get(key.partition("/")[0]) if "/" in key else None
        if owner is not None and item.spec.nodes is not None:
            yield Diagnostic(
                "reserved-label",
                f"label `{key}` is set by {owner}",
                item.span("spec", "labels", key, key=True),
                hint="remove it: nodes get it without avactl; use another prefix for your own labels",
            )


def _check_taints(item: Item[NodePoolSpec]) -> Iterator[Diagnostic]:
    seen: dict[tuple[str, str], int] = {}
    for index, taint in enumerate(item.spec.taints):
        path = ("spec", "taints", index, "key")
        if taint.key.partition("/")[0] in _TAINTS_OF_OTHERS and "/" in taint.key:
            yield Diagnostic(
                "reserved-label",
                f"taint `{taint.key}` is managed by Kubernetes as node conditions change",
                item.span(*path),
                hint="choose a prefix of your own",
            )
        near = next((each for each in GPU_RESOURCES if taint.key.lower().rstrip("s") == each != taint.key), None)
        if near is not None:
            yield Diagnostic(
                "invalid-value",
                f"`{taint.key}` is not the taint of GPU nodes, which pods with GPUs tolerate",
                item.span(*path),
                hint=f"did you mean `{near}`?",
            )
        before = seen.setdefault((taint.key, taint.effect), index)
        if before != index:
            yield Diagnostic(
                "duplicate-entry",
                f"duplicate taint `{taint.key}` with effect {taint.effect} in `taints`",
                item.span(*path),
                label="duplicate",
                hint="a node has one value per key and effect: remove one of them",
                notes=(Note(item.span("spec", "taints", before, "key"), "first occurrence"),),
            )


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield what conflicts between the pools of a cluster: nodes listed twice, and who chooses their GPUs."""
    yield from _check_nodes(program)
    yield from _check_same_choice(program)


def _check_same_choice(program: Program) -> Iterator[Diagnostic]:
    """Yield pools of one resource whose GPUs are chosen in two ways: a pod has one environment for all of them."""
    if program.lacks_machines:
        return
    first: dict[tuple[str, str], Item[NodePoolSpec]] = {}
    for pool in sorted(program.pools(), key=lambda item: (item.doc.file, item.doc.index)):
        if program.machine(pool).gpus is None or pool.spec.allocation == "dra":
            continue
        other = first.setdefault((pool.spec.cluster, pool.spec.resource_name), pool)
        if other.spec.kubelet_chooses != pool.spec.kubelet_chooses:
            chosen = pool if pool.spec.kubelet_chooses else other
            yield Diagnostic(
                "mixed-allocation",
                f"the GPUs of pool {chosen.name} are chosen by the kubelet, those of pool "
                f"{(other if chosen is pool else pool).name} are not, and both are {pool.spec.resource_name}",
                pool.span("spec", "devicesChosenBy") if pool.spec.devices_chosen_by else pool.span("spec", key=True),
                hint="write the same `devicesChosenBy` in all pools of the resource, or `allocation: dra`",
                notes=(Note(other.span("spec", key=True), f"pool {other.name}"),),
            )


def _check_nodes(program: Program) -> Iterator[Diagnostic]:
    """Yield nodes listed twice in one cluster: the labels of two pools would conflict."""
    claimed: dict[tuple[str, str], tuple[Item, int]] = {}
    # Files in name order: the later of two claims is reported.
    for pool in sorted(program.pools(), key=lambda item: (item.doc.file, item.doc.index)):
        for index, name in enumerate(pool.spec.nodes or ()):
            key = (pool.spec.cluster, name)
            other, place = claimed.setdefault(key, (pool, index))
            if (other, place) != (pool, index):
                where = "listed twice in the pool" if other is pool else f"already in pool {other.name}"
                yield Diagnostic(
                    "duplicate-node",
                    f"node `{name}` of cluster {pool.spec.cluster} is {where}",
                    pool.span("spec", "nodes", index),
                    hint="a node belongs to one pool: remove one of the entries",
                    notes=(Note(other.span("spec", "nodes", place), "first occurrence"),),
                )
