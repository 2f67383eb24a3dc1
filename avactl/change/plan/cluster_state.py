"""A cluster as plain Kubernetes objects: from a snapshot, or from the specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from avactl.base.quantity import parse_quantity
from avactl.contracts import names
from avactl.contracts.document import load
from avactl.contracts.scheduling import PlacementPolicy
from avactl.kinds.cluster.devices import device_selector
from avactl.kinds.node_pool.lower import node_labels
from avactl.program.lowering.gpu_request import device_class, shares_nics
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program, pool_size
from avactl.spec.platform.node_pool import NodePoolSpec

_PODS_PER_NODE = "110"
"""Pods per machine. Source: the kubelet's default of maxPods."""
_PLENTIFUL_MEMORY = "1Pi"
"""Ephemeral storage per machine, which specs do not declare."""
_PLENTIFUL_COUNT = "1000000"
OTHERS = "(others)"
"""Name of a placeholder for all machines without GPUs, which are not declared."""
_PLENTIFUL_NICS = "1000"
"""RDMA device slots per machine whose pods share the NICs."""

Objects = Mapping[str, Sequence[Body]]
"""Objects by the name of their resource, such as `nodes`."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The objects of a cluster at one time."""

    cluster: str
    policy: PlacementPolicy
    objects: Objects = field(default_factory=dict)
    taken: str = ""
    """Time of the snapshot, RFC 3339; empty: built from specs."""


def policy_of(manifests: Iterable[Manifest], cluster: str) -> PlacementPolicy:
    """Return a cluster's compiled placement policy. Raises LookupError."""
    for manifest in manifests:
        if manifest.cluster == cluster and manifest.kind == "ConfigMap" and manifest.name == names.POLICY:
            return load(PlacementPolicy, manifest.body["data"][names.POLICY_KEY])
    raise LookupError(cluster)


def configured_objects(manifests: Iterable[Manifest], cluster: str) -> dict[str, list[Body]]:
    """Return the compiled objects that the scheduler reads: pools, quotas, namespaces, classes."""
    found: dict[str, list[Body]] = {"configmaps": [], "namespaces": [], "deviceclasses": []}
    for manifest in manifests:
        if manifest.cluster != cluster:
            continue
        if manifest.kind == "ConfigMap":
            if names.CONFIG_LABEL in manifest.body["metadata"]["labels"]:
                found["configmaps"].append(manifest.body)
        elif manifest.kind == "Namespace":
            labels = {"kubernetes.io/metadata.name": manifest.name, **(manifest.body["metadata"].get("labels") or {})}
            found["namespaces"].append({"metadata": {"name": manifest.name, "labels": labels}})
        elif manifest.kind == "DeviceClass":
            found["deviceclasses"].append(manifest.body)
    return found


def declared_machines(program: Program, cluster: str) -> dict[str, list[Body]]:
    """Return the declared nodes, pools at their largest size and empty, and the ResourceSlices of their GPUs.

    The device class of a GPU model selects the GPUs of all pools that declare the model.
    """
    nodes: list[Body] = []
    slices: list[Body] = []
    classes: dict[str, Body] = {}
    driver = program.cluster_spec(cluster).gpu_driver
    for pool in program.pools(cluster):
        machine = program.machine(pool)
        for name in machine_names(pool):
            nodes.append(_make_node(name, pool, program))
            if machine.gpus is not None and pool.spec.allocation == "dra":
                slices.append(_make_slice(name, driver, machine.gpus.model, machine.gpus.count))
        if machine.gpus is not None and pool.spec.allocation == "dra":
            name = device_class(machine.gpus.model)
            expression = device_selector(driver, machine.gpus.model)
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            classes[name] = {"metadata": {"name": name}, "spec": spec}
    if has_only_reserved_pools(program, cluster):
        amounts = {
            "cpu": _PLENTIFUL_COUNT,
            "memory": _PLENTIFUL_MEMORY,
            "pods": _PLENTIFUL_COUNT,
            "ephemeral-storage": _PLENTIFUL_MEMORY,
        }
        nodes.append({"metadata": {"name": OTHERS}, "spec": {}, "status": {"allocatable": amounts}})
    return {"nodes": nodes, "resourceslices": slices, "deviceclasses": list(classes.values())}


def has_only_reserved_pools(program: Program, cluster: str) -> bool:
    """Return whether all pools have taints that pods must tolerate, so that other machines must exist."""
    return not program.unreserved_pools(cluster)


def machine_names(pool: Item[NodePoolSpec]) -> list[str]:
    """Return the names of a pool's machines, as declared or numbered."""
    if pool.spec.nodes is not None:
        return list(pool.spec.nodes)
    return [f"{pool.name}-{number:04}" for number in range(pool_size(pool))]


def _make_node(name: str, pool: Item[NodePoolSpec], program: Program) -> Body:
    machine, spec = program.machine(pool), pool.spec
    amounts = {
        "cpu": str(parse_quantity(machine.cpu)) if isinstance(machine.cpu, int) else str(machine.cpu),
        "memory": str(int(parse_quantity(machine.memory))),
        "pods": _PODS_PER_NODE,
        "ephemeral-storage": _PLENTIFUL_MEMORY,
    }
    if machine.gpus is not None and spec.allocation == "devicePlugin":
        amounts[spec.resource_name] = str(machine.gpus.count)
    if spec.rdma_resource:
        nics = sum(nic.rdma for nic in machine.nics)
        amounts[spec.rdma_resource] = _PLENTIFUL_NICS if shares_nics(pool) or not nics else str(nics)
    labels = {
        **pool.resource.metadata.labels,
        **node_labels(pool, program),
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in spec.all_taints]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints} if taints else {},
        "status": {"allocatable": amounts},
    }


def _make_slice(node: str, driver: str, model: str, count: int) -> Body:
    """Return a ResourceSlice with the attributes of NVIDIA's and the example driver; see `device_selector`."""
    product = f"NVIDIA {model}"
    attributes = {"type": {"string": "gpu"}, "productName": {"string": product}, "model": {"string": product}}
    devices = [
        {"name": f"gpu-{index}", "attributes": {**attributes, "index": {"int": index}}} for index in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"nodeName": node, "driver": driver, "pool": pool, "devices": devices},
    }


def declared_state(program: Program, manifests: Iterable[Manifest], cluster: str) -> ClusterState:
    """Return an empty cluster as its specs declare it. Raises LookupError for an undeclared one."""
    known = list(manifests)
    objects = configured_objects(known, cluster)
    # Machines last: their device classes replace the declared ones, whose selectors cannot be evaluated here.
    return ClusterState(cluster, policy_of(known, cluster), {**objects, **declared_machines(program, cluster)})
