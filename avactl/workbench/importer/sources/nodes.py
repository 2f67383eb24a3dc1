"""Nodes → NodePools and MachineTypes."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.contracts.names import GPU_RESOURCES
from avactl.contracts.scheduling import MAX_GPUS
from avactl.hardware import library
from avactl.hardware.plugin_sharing import find_plugin_sharing
from avactl.spec.documents.yaml import load_yaml
from avactl.workbench.importer.gpus import ANY_MODELS, NVIDIA, gpu_memory, gpu_model
from avactl.workbench.importer.model import (
    Body,
    GivenValue,
    ImportedSpec,
    ImportOutcome,
    ImportReader,
    ImportResult,
    spec_name,
)
from avactl.workbench.importer.sources.pods import GPU_LABELS

_SYSTEM_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "node-role.kubernetes.io/")
_LEAST_AMOUNTS = {"cpu": 1, "memory": "1Gi"}
"""Amounts of a node that says none."""
_KNOWN_RESOURCES = ("nvidia.com/", "rdma/", "kubernetes.io/")
"""Prefixes of resources that a pool counts, or that the sharing of GPUs explains."""
_INSTANCE_LABEL = "node.kubernetes.io/instance-type"


def convert_nodes(nodes: list[GivenValue], cluster: str) -> tuple[list[ImportedSpec], list[ImportOutcome]]:
    """Return pools and machine types of the nodes, and the nodes that belong to no pool."""
    groups: dict[tuple[Any, ...], list[GivenValue]] = {}
    left: list[ImportOutcome] = []
    # Machines with GPUs are told apart by them, those without by their cores.
    for node in nodes:
        labels: Body = node.get("metadata", "labels") or {}
        try:
            gpus, resource = _node_gpus(node)
            sharing = find_plugin_sharing(labels, _node_amounts(node))
            if sharing is not None and sharing.gpus is None:
                note = f"its GPUs are divided by {sharing.way}, and its labels do not say how many it has"
                left.append(ImportOutcome(node, ImportResult.left_out, note=f"{note}: {sharing.remedy}"))
                continue
            if sharing is not None and sharing.gpus is not None:
                gpus, resource = min(sharing.gpus, MAX_GPUS), GPU_RESOURCES[0]
            cores = 0 if gpus else _node_cores(node)
            own = node.get("status", "allocatable") or {}
            for amount in (own.get("cpu", 1), own.get("memory", 1), own.get(resource, 0)):
                parse_quantity(amount)
        except (AttributeError, TypeError, ValueError):
            left.append(ImportOutcome(node, ImportResult.left_out, note="its amounts are not quantities"))
            continue
        if any(key.startswith("node-role.kubernetes.io/control-plane") for key in labels):
            left.append(ImportOutcome(node, ImportResult.left_out, note="it runs the control plane"))
        else:
            product = next((str(labels[key]) for key in GPU_LABELS if key in labels), "")
            model = (gpu_model(product) if product else _unlabelled_model(resource, labels)) if gpus else ""
            kept = tuple(sorted(tuple(sorted(each.items())) for each in _node_taints(node)))
            memory = _gpu_memory(model, labels) if gpus else ""
            key = model, gpus, resource, str(labels.get(_INSTANCE_LABEL, "")), kept, memory, cores
            groups.setdefault(key, []).append(node)
    made: list[ImportedSpec] = []
    names: set[str] = set()
    for (model, gpus, resource, instance, *_, cores), own in sorted(groups.items(), key=lambda each: str(each[0])):
        name = base = spec_name(instance.replace("_", "-") or (f"{model}-{gpus}" if gpus else f"cpu-{cores}"), 40)
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.add(name)
        machine = _make_machine_type(name, model, gpus, resource, own)
        pool: Body = {"cluster": cluster, "machineType": name, "nodes": sorted(each.name for each in own)}
        taints = _node_taints(own[0])
        if taints:
            pool["taints"] = taints
        if resource not in ("", NVIDIA):
            pool["resourceName"] = resource
        rdma = next((key for key in own[0].get("status", "allocatable") or {} if key.startswith("rdma/")), None)
        if rdma:
            pool["rdmaResource"] = rdma
        spec = ImportedSpec("NodePool", name, None, pool, list(own))
        _note_unschedulable(spec, own)
        _note_sharing(spec, own)
        _note_amounts(spec, machine, resource, own)
        made += [machine, spec]
    return made, left


def declared_models(specs: list[ImportedSpec]) -> dict[str, str]:
    """Return the GPU models of pools and their machine types, and the extended resources of each."""
    resources = {spec.name: str(spec.spec.get("resourceName") or NVIDIA) for spec in specs if spec.kind == "NodePool"}
    types = [spec for spec in specs if spec.kind == "MachineType" and "gpus" in spec.spec]
    return {str(spec.spec["gpus"]["model"]): resources[spec.name] for spec in types}


def _node_amounts(node: GivenValue) -> Body:
    found = node.get("status", "capacity") or node.get("status", "allocatable")
    return found if isinstance(found, dict) else {}


def _node_gpus(node: GivenValue) -> tuple[int, str]:
    amounts = _node_amounts(node)
    for name in GPU_RESOURCES:
        if name in amounts:
            return min(int(parse_quantity(amounts[name])), MAX_GPUS), name
    return 0, ""


def _unlabelled_model(resource: str, labels: Body) -> str:
    """Return the model of GPUs that no label names: Gaudi by the instance type, else a placeholder."""
    found = re.search("gaudi[-_]?([23])", str(labels.get(_INSTANCE_LABEL)).lower())
    return f"GAUDI{found[1]}" if found and resource == "habana.ai/gaudi" else ANY_MODELS.get(resource, "GPU")


def _node_cores(node: GivenValue) -> int:
    return int(parse_quantity(_node_amounts(node).get("cpu", 1)))


def _node_taints(node: GivenValue) -> list[Body]:
    return [
        {key: each[key] for key in ("key", "value", "effect") if each.get(key)}
        for each in node.get("spec", "taints") or ()
        if isinstance(each, dict) and each.get("key") and not str(each["key"]).startswith(_SYSTEM_TAINTS)
    ]


def _note_unschedulable(spec: ImportedSpec, nodes: list[GivenValue]) -> None:
    for node in nodes:
        if node.get("spec", "unschedulable"):
            reader = ImportReader(node)
            reader.losses = spec.losses
            reader.lose(("spec", "unschedulable"), "a pool counts its cordoned machines, too", "uncordon or remove it")


def _note_sharing(spec: ImportedSpec, nodes: list[GivenValue]) -> None:
    for node in nodes:
        sharing = find_plugin_sharing(node.get("metadata", "labels") or {}, _node_amounts(node))
        if sharing is not None:
            reader = ImportReader(node)
            reader.losses = spec.losses
            amounts = ", ".join(f"{value} {key}" for key, value in _node_amounts(node).items() if "nvidia.com/" in key)
            words = f"the device plugin shares its GPUs ({sharing.way}) as {amounts}; the machine has {sharing.gpus}"
            reader.note(("status", "capacity"), words, sharing.remedy)


def _note_amounts(spec: ImportedSpec, machine: ImportedSpec, resource: str, nodes: list[GivenValue]) -> None:
    """Record nodes that have more than their machine type says, and GPUs that the device plugin does not offer."""
    for node in nodes:
        reader = ImportReader(node)
        reader.losses = spec.losses
        own = node.get("status", "allocatable") or {}
        for key, shown in (("cpu", _whole_cores), ("memory", _whole_memory)):
            said, has = machine.spec[key], shown(own.get(key, _LEAST_AMOUNTS[key]))
            if has != said:
                reader.note(
                    ("status", "allocatable", key), f"the machine has {has}; its type says {said}, the least", ""
                )
        for key in own:
            if "/" in key and key != resource and not key.startswith(_KNOWN_RESOURCES):
                reader.note(("status", "allocatable", key), f"pools do not count {key}: specs cannot request it", "")
        offered, total = own.get(resource), node.get("status", "capacity", resource)
        if None not in (offered, total) and parse_quantity(offered) < parse_quantity(total):
            why = f"the device plugin offers {offered} of {total} GPUs: the others may be broken"
            reader.note(("status", "allocatable", resource), why, "repair the machine, or take it out of the pool")


def _make_machine_type(name: str, model: str, gpus: int, resource: str, nodes: list[GivenValue]) -> ImportedSpec:
    """Return the machine type of equal nodes: what they say, and the topology of a shipped type that fits."""
    first = nodes[0]
    labels: Body = first.get("metadata", "labels") or {}
    amounts = [each.get("status", "allocatable") or {} for each in nodes]
    comments = []
    body: Body = {}
    product = " ".join(str(labels[key]) for key in GPU_LABELS if key in labels).upper()
    # Shipped types of other vendors are boards on which all cards are linked.
    nvidia = resource == NVIDIA
    shipped = _find_shipped_type(model, gpus, not nvidia or "SXM" in product) if gpus else None
    if shipped is not None:
        body = copy.deepcopy(shipped[1])
        how = "`nvidia-smi topo -m` (docs/hardware.md)" if nvidia else "the machine"
        comments.append(f"Topology of the shipped type {shipped[0]}: compare it with {how}.")
    elif gpus > 1:
        how = (
            "run `nvidia-smi topo -m` on a machine, and `avactl topo` (docs/hardware.md)"
            if nvidia
            else "add `switches` and `nvlink` (docs/pools-and-quotas.md)"
        )
        comments.append(f"The topology is not known: {how}.")
    if gpus:
        body["gpus"] = {"model": model, "count": gpus, "memory": _gpu_memory(model, labels)}
    for key, shown in (("cpu", _whole_cores), ("memory", _whole_memory)):
        body[key] = shown(min((each.get(key, _LEAST_AMOUNTS[key]) for each in amounts), key=parse_quantity))
    order = [key for key in ("gpus", "cpu", "memory") if key in body]
    spec = ImportedSpec(
        "MachineType", name, None, {key: body[key] for key in (*order, *(k for k in body if k not in order))}
    )
    spec.given, spec.comments = [], comments
    return spec


def _whole_cores(amount: Any) -> str:
    return str(int(parse_quantity(amount)) or 1)


def _whole_memory(amount: Any) -> str:
    size = int(parse_quantity(amount))
    return format_quantity(size // 2**30 * 2**30 or size)


def _gpu_memory(model: str, labels: Body) -> str:
    size = str(labels.get("nvidia.com/gpu.memory") or "")
    product = next((str(labels[key]) for key in GPU_LABELS if key in labels), "")
    return f"{size}Mi" if re.fullmatch("[0-9]{1,8}", size) else gpu_memory(model, product)


@cache
def _shipped_types() -> dict[str, Body]:
    return {name: load_yaml(name, library.read(name))[0][0].value["spec"] for name in library.shipped_names()}


def _find_shipped_type(model: str, gpus: int, wants_links: bool) -> tuple[str, Body] | None:
    for name, spec in _shipped_types().items():
        linked = bool((spec.get("nvlink") or {}).get("nvswitchLinks") or (spec.get("nvlink") or {}).get("pairs"))
        if "gpus" not in spec:
            continue
        same = (spec["gpus"]["model"], spec["gpus"]["count"]) == (model, gpus)
        if same and (gpus == 1 or linked == wants_links):
            return name, spec
    return None
