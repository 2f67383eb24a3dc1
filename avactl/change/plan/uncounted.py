"""GPUs of objects whose controllers a plan does not know, such as RayJobs: they are named, because it leaves them out.

Pods are counted where an object has a pod template, as often as the fields around it say. The names of these fields
are those of KubeRay, JobSet, Kubeflow's trainer and operators, and Kubernetes' own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from avactl.base.terminal import count_text
from avactl.change.plan.workloads import KINDS
from avactl.program.manifest import Body, Manifest

MAX_NAMED = 3
"""Objects that the sentence names."""
_COUNTS = ("replicas", "parallelism", "numOfHosts", "numNodes")
_RUNTIMES = ("ClusterTrainingRuntime", "TrainingRuntime")
"""Templates of TrainJobs: they have no pods of their own."""
_MAX_PODS = 1_000_000
_MAX_DEPTH = 24


def describe_uncounted(manifests: Iterable[Manifest], resources: Collection[str]) -> str:
    """Return a sentence about the GPUs of objects that a plan leaves out; empty if there are none.

    `resources`: extended resources that are GPUs.
    """
    bodies = [each.body for each in manifests]
    runtimes = {_name(body): body for body in bodies if body["kind"] in _RUNTIMES}
    found: list[tuple[str, int]] = []
    for body in bodies:
        spec = body.get("spec")
        known = KINDS.get(body["kind"]) == _group(body) or (body["kind"], _group(body)) == ("CronJob", "batch")
        if known or body["kind"] in _RUNTIMES or not isinstance(spec, Mapping) or spec.get("suspend") is True:
            continue
        gpus = _train_job(body, runtimes, resources) if body["kind"] == "TrainJob" else _gpus(spec, resources)
        if gpus:
            found.append((f"{body['kind']} {_place(body)}", gpus))
    if not found:
        return ""
    named = ", ".join(name for name, _ in found[:MAX_NAMED])
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    total = count_text(sum(gpus for _, gpus in found), "GPU")
    return f"not counted, here and in quotas: {total} of {named}{more}, whose controllers avactl does not know"


def _group(body: Body) -> str:
    return str(body.get("apiVersion", "")).rpartition("/")[0]


def _name(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def _place(body: Body) -> str:
    metadata = body["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


def _train_job(body: Body, runtimes: Mapping[tuple[str, str], Body], resources: Collection[str]) -> int:
    """Return the GPUs of a TrainJob: its own, or those of its runtime, on each of its nodes."""
    spec = body["spec"]
    trainer, reference = _part(spec.get("trainer")), _part(spec.get("runtimeRef"))
    runtime = runtimes.get((str(reference.get("kind", _RUNTIMES[0])), str(reference.get("name"))), {})
    given = _part(runtime.get("spec"))
    nodes = trainer.get("numNodes", _part(given.get("mlPolicy")).get("numNodes", 1))
    each = _devices({"resources": trainer.get("resourcesPerNode")}, resources)
    return (each or _gpus(_part(given.get("template")), resources)) * _number(nodes)


def _gpus(value: Any, resources: Collection[str], depth: int = 0) -> int:
    """Return the GPUs of all pods below a value."""
    if depth > _MAX_DEPTH:
        return 0
    if isinstance(value, list):
        return sum(_gpus(each, resources, depth + 1) for each in value)
    if not isinstance(value, Mapping):
        return 0
    containers = value.get("containers")
    if isinstance(containers, list):
        return sum(_devices(each, resources) for each in containers if isinstance(each, Mapping))
    gpus = sum(_gpus(each, resources, depth + 1) for each in value.values())
    for key in _COUNTS:
        gpus *= _number(value.get(key, value.get("minReplicas", 1) if key == "replicas" else 1))
    if "parallelism" in value and _number(value["parallelism"]) > _number(value.get("completions", _MAX_PODS)):
        gpus = gpus // _number(value["parallelism"]) * _number(value["completions"])
    return min(gpus, _MAX_PODS)


def _devices(container: Mapping[str, Any], resources: Collection[str]) -> int:
    given = _part(container.get("resources"))
    amounts = {**_part(given.get("requests")), **_part(given.get("limits"))}
    return sum(_number(amounts[name]) for name in resources if name in amounts)


def _number(value: Any) -> int:
    text = str(value)
    return min(int(text), _MAX_PODS) if text.isdecimal() and len(text) < 10 else 1


def _part(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
