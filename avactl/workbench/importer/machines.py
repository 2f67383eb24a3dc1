"""Pools that workloads need and nobody has declared: assumed, and marked as such."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

from avactl.base.quantity import MOST, format_quantity, parse_quantity
from avactl.contracts.names import GPU_RESOURCES
from avactl.spec.documents.document import Path
from avactl.spec.platform.node_pool import RESERVED_PREFIXES
from avactl.workbench.importer.gpus import ANY_MODELS, NVIDIA, gpu_memory, models_of, resource_of
from avactl.workbench.importer.model import Body, ImportedSpec, spec_name

_ASSUMED_NOTE = "Assumed from what the workloads request: import the nodes, or describe your machines."
ROLES = ("workers", "servers", "launcher", "evaluator")
"""Keys of a TrainingJob that describe pods."""
_MACHINE_SIZES = (1, 2, 4, 8, 16)


def pod_roles(spec: ImportedSpec) -> list[tuple[int, Body]]:
    """Return the pods of a spec: number and compute of each role."""
    if spec.kind == "ServingDeployment":
        replicas = spec.spec.get("replicas", 1)
        most = replicas["max"] if isinstance(replicas, dict) else replicas
        return [(int(most) + 1, spec.spec.get("resources") or {})]
    if spec.kind == "Workspace":
        return [(1, spec.spec)]
    if spec.kind != "TrainingJob":
        return []
    own = [spec.spec.get(key) for key in ROLES]
    return [(int(each.get("replicas") or 1), each) for each in own if isinstance(each, dict)]


def unused_machines(specs: list[ImportedSpec]) -> list[ImportedSpec]:
    """Return the assumed machine types and pools whose GPUs no spec asks for any more."""
    asked = {compute.get("gpu") for spec in specs for _, compute in pod_roles(spec)}
    asked |= {entry["gpu"] for spec in specs if spec.kind == "Quota" for entry in spec.spec.get("gpus") or ()}
    types = [spec for spec in specs if spec.kind == "MachineType" and spec.comments[:1] == [_ASSUMED_NOTE]]
    gone = {spec.name for spec in types if spec.spec["gpus"]["model"] not in asked}
    return [spec for spec in specs if spec.comments[:1] == [_ASSUMED_NOTE] and spec.name in gone]


def settle_tolerations(specs: list[ImportedSpec], taints: set[str]) -> None:
    """Take out tolerations of GPU taints of the pools, which pods with GPUs have in any case.

    An assumed pool has the GPU taints that its pods tolerate. `taints`: keys of the taints of declared pools.
    """
    assumed = {spec.name: spec for spec in specs if spec.kind == "NodePool" and spec.comments[:1] == [_ASSUMED_NOTE]}
    for spec in specs:
        for place, compute in _pod_settings(spec):
            pool = assumed.get(spec_name(f"assumed-{compute.get('gpu')}"))
            settings: Any = spec.spec
            for step in place:
                settings = settings.get(step) or {}
            listed = settings.get("tolerations") or ()
            for index in reversed(range(len(listed) if compute.get("gpus") else 0)):
                if listed[index]["key"] not in GPU_RESOURCES:
                    continue
                if pool is not None:
                    _add_taint(pool, listed[index])
                if pool is not None or listed[index]["key"] in taints:
                    spec.remove(("spec", *place, "tolerations", index))


def label_pools(specs: list[ImportedSpec]) -> None:
    """Give assumed pools the labels of nodes that all of their pods select; say where pods select different values."""
    assumed = {spec.name: spec for spec in specs if spec.kind == "NodePool" and spec.comments[:1] == [_ASSUMED_NOTE]}
    selected: dict[str, dict[str, set[str]]] = {}
    for spec in specs:
        for place, compute in _pod_settings(spec):
            name = spec_name(f"assumed-{compute.get('gpu')}")
            settings: Any = spec.spec
            for step in place:
                settings = settings.get(step) or {}
            for key, value in (settings.get("nodeSelector") or {}).items():
                if name in assumed and compute.get("gpus") and not key.startswith(RESERVED_PREFIXES):
                    selected.setdefault(name, {}).setdefault(key, set()).add(str(value))
    for name, labels in selected.items():
        pool = assumed[name]
        same = {key: min(values) for key, values in sorted(labels.items()) if len(values) == 1}
        if same:
            pool.spec["labels"] = same
        pool.comments += [
            f"Pods select different values of {key}, {', '.join(sorted(values)[:5])}: describe a pool for each of them."
            for key, values in sorted(labels.items())
            if len(values) > 1
        ]


def _pod_settings(spec: ImportedSpec) -> list[tuple[Path, Body]]:
    """Return the places of `pod` in a spec, with the compute of its pods."""
    if spec.kind == "ServingDeployment":
        return [(("pod",), spec.spec.get("resources") or {})]
    if spec.kind == "Workspace":
        return [(("pod",), spec.spec)]
    roles = [key for key in ROLES if isinstance(spec.spec.get(key), dict)] if spec.kind == "TrainingJob" else []
    if len(roles) == 1:
        return [(("pod",), spec.spec[roles[0]])]
    return [((key, "pod"), spec.spec[key]) for key in roles]


def _add_taint(pool: ImportedSpec, toleration: Body) -> None:
    taint = {"key": toleration["key"], "effect": toleration.get("effect") or "NoSchedule"}
    if toleration.get("value") and toleration.get("operator") != "Exists":
        taint["value"] = str(toleration["value"])
    listed = pool.spec.setdefault("taints", [])
    if taint not in listed:
        listed.append(taint)


def _parse_amount(value: Any) -> Fraction:
    """Return a quantity; 0 for a value that is none, which the compiler refuses."""
    try:
        return min(parse_quantity(value), Fraction(MOST))
    except (TypeError, ValueError):
        return Fraction(0)


def assumed_machines(specs: list[ImportedSpec], cluster: str, models: dict[str, str]) -> list[ImportedSpec]:
    """Return machine types and pools for GPUs that specs ask for and no pool has.

    `models`: GPU models of declared pools → their extended resources. A spec without a model means the only model of
    its vendor, or an unknown one.
    """
    need: dict[str, tuple[int, int, Any, Any]] = {}
    unnamed: list[tuple[Body, str]] = []
    for spec in specs:
        for count, compute in pod_roles(spec):
            gpus = compute.get("gpus") or 0
            if not gpus:
                continue
            model = compute.get("gpu") or ANY_MODELS[NVIDIA]
            if model in ANY_MODELS.values() and model not in models:
                same = models_of(resource_of(model), models)
                if len(same) == 1:
                    model = same[0]
                    compute.pop("gpu", None)
                    unnamed.append((compute, model))
            if model in models:
                continue
            compute["gpu"] = model
            per_pod, total, cpu, memory = need.get(model, (0, 0, 0, 0))
            need[model] = (
                max(per_pod, gpus),
                total + gpus * count,
                max(cpu, _parse_amount(compute.get("cpu", 1)) / gpus),
                max(memory, _parse_amount(compute.get("memory", "2Gi")) / gpus),
            )
    for spec in specs:
        if spec.kind == "Quota":
            for entry in spec.spec.get("gpus") or ():
                if entry["gpu"] not in models:
                    per_pod, total, cpu, memory = need.get(entry["gpu"], (1, 0, 1, 1))
                    need[entry["gpu"]] = (per_pod, total + entry["guaranteed"], cpu, memory)
    if len({*models, *need}) > 1:
        for compute, model in unnamed:
            compute["gpu"] = model
    made: list[ImportedSpec] = []
    for model, (per_pod, total, cpu, memory) in sorted(need.items()):
        size = next(each for each in _MACHINE_SIZES if each >= min(max(per_pod, 8 if total >= 8 else 1), 16))
        name = spec_name(f"assumed-{model}")
        body = {
            "gpus": {"model": model, "count": size, "memory": gpu_memory(model)},
            "cpu": str(ceil(cpu * size) + 4),
            "memory": format_quantity(ceil(memory * size / 2**30 + 16) * 2**30),
        }
        pool = {"cluster": cluster, "machineType": name, "count": max(1, ceil(total / size) + 1)}
        if resource_of(model) != NVIDIA:
            pool["resourceName"] = resource_of(model)
        made += [
            ImportedSpec("MachineType", name, None, body, comments=[_ASSUMED_NOTE]),
            ImportedSpec("NodePool", name, None, pool, comments=[_ASSUMED_NOTE]),
        ]
    return made
