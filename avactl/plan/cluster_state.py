"""What the scheduler sees of a cluster, as plain objects: of the live one (a snapshot), or as the specs declare it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from avactl import names
from avactl.kinds.cluster.daemons import POLICY
from avactl.kinds.cluster.devices import selector
from avactl.kinds.lowering.pods import device_class
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.node_pool.lower import node_labels
from avactl.kinds.program import Item, Program, pool_size
from avactl.quantity import quantity
from avactl.scheduler.objects.config import Policy

_PODS = "110"
"""Pods of a machine. Source: the kubelet's default of maxPods."""
_PLENTY = "1Pi"
"""Of what specs do not declare: ephemeral storage."""
_MANY = "1000000"
OTHERS = "(others)"
"""Stands for all machines without GPUs, which nobody declares."""
_NICS = "1000"
"""RDMA NICs of a machine to its pods: they are shared."""

Objects = Mapping[str, Sequence[Body]]
"""Objects by their resource's name, such as `nodes`."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster at one moment."""

    cluster: str
    policy: Policy
    objects: Objects = field(default_factory=dict)
    taken: str = ""
    """When, as Kubernetes writes times; empty: this is what specs declare."""


def policy_of(manifests: Iterable[Manifest], cluster: str) -> Policy:
    """The placement policy that a cluster compiles to. Raises LookupError."""
    for manifest in manifests:
        if manifest.cluster == cluster and manifest.kind == "ConfigMap" and manifest.name == POLICY:
            return Policy.parse(manifest.body["data"]["policy.json"])
    raise LookupError(cluster)


def configured(manifests: Iterable[Manifest], cluster: str) -> dict[str, list[Body]]:
    """What the specs themselves put into a cluster for the scheduler to read: pools, quotas, namespaces, classes."""
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


def machines(program: Program, cluster: str) -> dict[str, list[Body]]:
    """The machines of the declared pools, each at its largest and empty, and the GPUs that DRA drivers would publish.

    What the device class of a GPU model selects are the GPUs of the pools that declare the model.
    """
    nodes: list[Body] = []
    slices: list[Body] = []
    classes: dict[str, Body] = {}
    driver = program.cluster_spec(cluster).gpu_driver
    for pool in program.pools(cluster):
        machine = program.machine(pool)
        for name in machine_names(pool):
            nodes.append(_node(name, pool, program))
            if pool.spec.allocation == "dra":
                slices.append(_slice(name, driver, machine.gpus.model, machine.gpus.count))
        if pool.spec.allocation == "dra":
            name = device_class(machine.gpus.model)
            expression = selector(driver, machine.gpus.model)
            spec = {"selectors": [{"cel": {"expression": expression}}]}
            classes[name] = {"metadata": {"name": name}, "spec": spec}
    if reserved(program, cluster):
        amounts = {"cpu": _MANY, "memory": _PLENTY, "pods": _MANY, "ephemeral-storage": _PLENTY}
        nodes.append({"metadata": {"name": OTHERS}, "spec": {}, "status": {"allocatable": amounts}})
    return {"nodes": nodes, "resourceslices": slices, "deviceclasses": list(classes.values())}


def reserved(program: Program, cluster: str) -> bool:
    """Whether all pools keep pods away that do not tolerate a taint: then there must be other machines for those."""
    return all(any(taint.effect != "PreferNoSchedule" for taint in pool.spec.taints) for pool in program.pools(cluster))


def machine_names(pool: Item) -> list[str]:
    """The machines of a pool: as it names them, or numbered."""
    if pool.spec.nodes is not None:
        return list(pool.spec.nodes)
    return [f"{pool.name}-{number:04}" for number in range(pool_size(pool))]


def _node(name: str, pool: Item, program: Program) -> Body:
    machine, spec = program.machine(pool), pool.spec
    amounts = {
        "cpu": str(quantity(machine.cpu)) if isinstance(machine.cpu, int) else str(machine.cpu),
        "memory": str(int(quantity(machine.memory))),
        "pods": _PODS,
        "ephemeral-storage": _PLENTY,
    }
    if spec.allocation == "devicePlugin":
        amounts[spec.resource_name] = str(machine.gpus.count)
    if spec.rdma_resource:
        amounts[spec.rdma_resource] = _NICS
    labels = {
        **pool.resource.metadata.labels, **node_labels(pool, program),
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
    }  # fmt: skip
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in spec.taints]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints} if taints else {},
        "status": {"allocatable": amounts},
    }


def _slice(node: str, driver: str, model: str, count: int) -> Body:
    """Attributes as NVIDIA's driver and the example driver name them; see `cluster.devices.selector`."""
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


def declared(program: Program, manifests: Iterable[Manifest], cluster: str) -> ClusterState:
    """A cluster as its specs declare it, with nothing running. Raises LookupError for one that is not declared."""
    known = list(manifests)
    objects = configured(known, cluster)
    # Machines last: their own device classes take the place of declared ones, which select what nobody can tell here.
    return ClusterState(cluster, policy_of(known, cluster), {**objects, **machines(program, cluster)})
