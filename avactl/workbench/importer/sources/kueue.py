"""Queues of Kueue → Quotas of teams."""

from __future__ import annotations

from typing import Any

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.contracts.names import GPU_RESOURCES
from avactl.workbench.importer.gpus import gpu_model
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader, spec_name
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.jobs import take_common
from avactl.workbench.importer.sources.pods import GPU_LABELS

GROUP = "kueue.x-k8s.io"
KINDS = ("ClusterQueue", "LocalQueue", "ResourceFlavor")
_POLICY_NOTES = {
    "preemption": ("guaranteed GPUs are reclaimed from teams that have borrowed them", ""),
    "flavorFungibility": ("a workload names its GPU model", ""),
    "queueingStrategy": ("jobs that do not fit let smaller ones pass", ""),
    "namespaceSelector": ("the namespaces of the team use its quota", ""),
    "admissionChecks": ("avactl's scheduler has no such checks", ""),
    "admissionChecksStrategy": ("avactl's scheduler has no such checks", ""),
    "stopPolicy": ("a quota is always in force", "set the quota to 0"),
    "admissionScope": ("teams share idle GPUs by their `weight`", ""),
}


def is_queue(given: GivenValue) -> bool:
    """Return True for an object of Kueue that quotas take the place of."""
    return given.group == GROUP and given.kind in KINDS


def join_namespaces(context: Context, objects: list[GivenValue]) -> None:
    """Make the namespaces that share a queue those of one team."""
    for name, spaces in _namespaces_by_queue(objects).items():
        if len(spaces) > 1:
            for space in spaces:
                context.queues.setdefault(space, spec_name(name))


def _namespaces_by_queue(objects: list[GivenValue]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in objects:
        if each.kind == "LocalQueue":
            spaces = found.setdefault(str(each.get("spec", "clusterQueue")), [])
            if each.namespace not in spaces:
                spaces.append(each.namespace)
    return found


def convert_queues(
    context: Context, objects: list[GivenValue], models: list[str], made: dict[str, ImportedSpec]
) -> dict[GivenValue, str]:
    """Add the Quotas of all queues to `made`, by team; return the objects that stay manifests, with the reason."""
    flavors = {each.name: each for each in objects if each.kind == "ResourceFlavor"}
    spaces = _namespaces_by_queue(objects)
    raw: dict[GivenValue, str] = {}
    used: dict[str, ImportedSpec] = {}
    queues = [each for each in objects if each.kind == "ClusterQueue"]
    for queue in queues:
        own = spaces.get(queue.name)
        if not own:
            raw[queue] = "no LocalQueue uses it, so it belongs to no team"
            continue
        team = context.team(own[0])
        for space in own[1:]:
            context.team(space)
        spec = made.setdefault(team, ImportedSpec("Quota", "quota", team, {}))
        reader = ImportReader(queue)
        reader.losses = spec.losses
        spec.given.append(queue)
        take_common(reader)
        for name in _convert_queue(reader, queue, queues, flavors, models, spec.spec):
            used.setdefault(name, spec)
    for each in objects:
        if each.kind == "LocalQueue":
            team = context.team(each.namespace)
            quota, name = made.get(team), each.get("spec", "clusterQueue")
            if quota is None or not any(given.name == name for given in quota.given):
                raw[each] = f"its ClusterQueue {name} is not imported"
            else:
                quota.given.append(each)
        elif each.kind == "ResourceFlavor":
            if each.name in used:
                used[each.name].given.append(each)
            else:
                raw[each] = "no imported ClusterQueue uses it"
    return raw


def _convert_queue(
    reader: ImportReader,
    queue: GivenValue,
    queues: list[GivenValue],
    flavors: dict[str, GivenValue],
    models: list[str],
    body: Body,
) -> list[str]:
    """Add a ClusterQueue to a Quota; return the names of its flavors."""
    cohort = queue.get("spec", "cohort") or queue.get("spec", "cohortName")
    reader.take("spec", "cohort")
    reader.take("spec", "cohortName")
    names: list[str] = []
    sums: dict[str, Any] = {}
    for i, group in enumerate(queue.get("spec", "resourceGroups") or ()):
        reader.take("spec", "resourceGroups", i, "coveredResources")
        for j, flavor in enumerate(group.get("flavors") or ()):
            at = ("spec", "resourceGroups", i, "flavors", j)
            name = str(reader.take(*at, "name"))
            names.append(name)
            for k, resource in enumerate(flavor.get("resources") or ()):
                place = (*at, "resources", k)
                kind = reader.take(*place, "name")
                nominal, limit = resource.get("nominalQuota"), resource.get("borrowingLimit")
                for key in ("nominalQuota", "borrowingLimit"):
                    reader.take(*place, key)
                if resource.get("lendingLimit") is not None:
                    reader.lose((*place, "lendingLimit"), "idle GPUs of a guarantee are lent out, and reclaimed", "")
                if kind in GPU_RESOURCES:
                    model = _flavor_model(flavors.get(name), name, models)
                    if model is None:
                        reader.lose(place, "the flavor names no GPU model", "import the nodes, or label the flavor")
                        continue
                    borrow = (
                        int(parse_quantity(limit)) if limit is not None else _cohort_rest(queue, queues, cohort, kind)
                    )
                    entry = {"gpu": model, "guaranteed": int(parse_quantity(nominal)), "borrow": borrow}
                    if limit is None and cohort:
                        why = f"borrowing has no limit; the spec says {borrow}, all of the cohort"
                        reader.lose((*place, "name"), why, "write `borrow`")
                    if not borrow:
                        del entry["borrow"]
                    body.setdefault("gpus", []).append(entry)
                elif kind in ("cpu", "memory", "pods"):
                    sums[kind] = sums.get(kind, 0) + parse_quantity(nominal)
                    if limit is not None:
                        reader.lose((*place, "borrowingLimit"), f"teams do not lend {kind}", f"raise `{kind}`")
                else:
                    reader.lose(place, "a Quota counts GPUs, CPU, memory, storage and pods", "")
    for kind, total in sums.items():
        body[kind] = int(total) if kind == "pods" else format_quantity(total)
    weight = reader.take("spec", "fairSharing", "weight")
    if weight is not None and parse_quantity(weight) >= 1:
        for entry in body.get("gpus") or ():
            entry["weight"] = int(parse_quantity(weight))
    for key, (why, remedy) in _POLICY_NOTES.items():
        if queue.get("spec", key) not in (None, {}, [], "None"):
            reader.lose(("spec", key), why, remedy)
        reader.take("spec", key)
    reader.lose_rest("a Quota has no key for it", "")
    return names


def _flavor_model(flavor: GivenValue | None, name: str, models: list[str]) -> str | None:
    labels = (flavor.get("spec", "nodeLabels") if flavor else None) or {}
    found = next((str(labels[key]) for key in GPU_LABELS if key in labels), None)
    if found is not None:
        return gpu_model(found)
    words = gpu_model(name)
    return words if words in models else models[0] if len(models) == 1 else words if len(words) <= 6 else None


def _cohort_rest(queue: GivenValue, queues: list[GivenValue], cohort: Any, kind: str) -> int:
    """Return what other queues of the cohort are guaranteed."""
    total = 0
    for other in queues:
        if not cohort or other is queue or (other.get("spec", "cohort") or other.get("spec", "cohortName")) != cohort:
            continue
        for group in other.get("spec", "resourceGroups") or ():
            for flavor in group.get("flavors") or ():
                total += sum(
                    int(parse_quantity(each.get("nominalQuota") or 0))
                    for each in flavor.get("resources") or ()
                    if each.get("name") == kind
                )
    return total
