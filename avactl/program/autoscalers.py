"""Autoscalers among the manifests of specs: they own the `replicas` of the workloads that they scale.

Only those that write the workload matter here. A VerticalPodAutoscaler changes pods as they are admitted, never their
templates.
"""

from __future__ import annotations

from functools import partial

from avactl.base.object_identity import ObjectKey
from avactl.program import registry
from avactl.program.manifest import Body
from avactl.program.program import Item, Program

_GROUPS = {"HorizontalPodAutoscaler": "autoscaling", "ScaledObject": "keda.sh"}
_DEFAULT_API = "apps/v1"
"""KEDA's default for the API version of a target."""
REPLICAS = "spec.replicas"


def scale_target(body: Body, namespace: str) -> ObjectKey | None:
    """Return the workload that an object in a namespace scales; None if it is no autoscaler."""
    if _GROUPS.get(body["kind"]) != body["apiVersion"].rpartition("/")[0]:
        return None
    match body.get("spec"):
        case {"scaleTargetRef": {"name": str(name), **target}}:
            group = str(target.get("apiVersion") or _DEFAULT_API).rpartition("/")[0]
            return ObjectKey(group, str(target.get("kind") or "Deployment"), namespace, name)
    return None


def find_autoscaler(program: Program, cluster: str, workload: ObjectKey, replicas: object) -> str:
    """Return the manifest that scales a workload declared with `replicas`, such as `ScaledObject web`, or "".

    A HorizontalPodAutoscaler leaves a workload with zero replicas alone: this is how people switch it off.
    """
    scaler = program.memo("autoscalers of workloads", partial(_collect_autoscalers, program)).get((cluster, workload))
    return "" if scaler is None or (replicas == 0 and scaler[0] == "HorizontalPodAutoscaler") else " ".join(scaler)


def _collect_autoscalers(program: Program) -> dict[tuple[str, ObjectKey], tuple[str, str]]:
    return {
        (cluster, ObjectKey(*target)): (kind, name)
        for written in registry.written_kinds()
        for item in program.of(written)
        for kind, name, target in program.derive(item, scaled_workloads)
        for cluster in item.clusters
    }


def scaled_workloads(item: Item, program: Program) -> list[tuple[str, str, tuple[str, str, str, str]]]:
    """Return the autoscalers among a spec's manifests: kind, name, and key of the workload."""
    return [
        (each.body["kind"], each.body["metadata"]["name"], (target.group, target.kind, target.namespace, target.name))
        for each in registry.get_kind(item.kind).written(item, program)
        if (target := scale_target(each.body, each.namespace)) is not None
    ]
