"""Queues of Kueue → Quotas of teams."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.contracts.names import GPU_RESOURCES
from avactl.spec.documents.document import Path
from avactl.workbench.importer.gpus import gpu_model, models_of
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader, spec_name
from avactl.workbench.importer.sources.cohorts import CohortTree, parent_of, scaled_weights
from avactl.workbench.importer.sources.context import Context
from avactl.workbench.importer.sources.metadata import take_common
from avactl.workbench.importer.sources.pods import GPU_LABELS

GROUP = "kueue.x-k8s.io"
KINDS = ("ClusterQueue", "LocalQueue", "ResourceFlavor", "Cohort")
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
_FLAVOR_NOTES = {
    "nodeTaints": ("taints are those of the pools", "list them in the NodePool: `taints`"),
    "tolerations": ("pods of the team tolerate the taints of their pool", "set `workers: {pool: …}`"),
    "topologyName": ("the topology is that of the Cluster", "describe it there"),
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
    context: Context, objects: list[GivenValue], models: dict[str, str], made: dict[str, ImportedSpec]
) -> dict[GivenValue, str]:
    """Add the Quotas of all queues to `made`, by team; return the objects that stay manifests, with the reason."""
    flavors = {each.name: each for each in objects if each.kind == "ResourceFlavor"}
    spaces = _namespaces_by_queue(objects)
    raw: dict[GivenValue, str] = {}
    used: dict[str, ImportedSpec] = {}
    queues = [each for each in objects if each.kind == "ClusterQueue"]
    cohorts = [each for each in objects if each.kind == "Cohort"]
    tree = CohortTree(
        queues, cohorts, lambda name, kind: _flavor_model(flavors.get(name), name, models_of(kind, models))
    )
    weights = scaled_weights(queues)
    for queue in queues:
        own = spaces.get(queue.name)
        if not own:
            raw[queue] = "no LocalQueue uses it, so it belongs to no team"
            continue
        limited = tree.limits_between_cohorts(queue)
        if limited:
            raw[queue] = f"cohort {limited} limits what cohorts lend each other, which quotas of teams cannot"
            continue
        team = context.team(own[0])
        for space in own[1:]:
            context.team(space)
        spec = made.setdefault(team, ImportedSpec("Quota", "quota", team, {}))
        reader = ImportReader(queue)
        reader.losses = spec.losses
        spec.given.append(queue)
        take_common(reader)
        for name in _convert_queue(reader, queue, tree, flavors, models, weights, spec.spec):
            used.setdefault(name, spec)
        for cohort in tree.used_cohorts(queue):
            used.setdefault(f"cohort {cohort.name}", spec)
    for each in objects:
        if each.kind == "LocalQueue":
            team = context.team(each.namespace)
            quota, name = made.get(team), each.get("spec", "clusterQueue")
            if quota is None or not any(given.name == name for given in quota.given):
                raw[each] = f"its ClusterQueue {name} is not imported"
            else:
                quota.given.append(each)
                _read_local_queue(each, quota)
        elif each.kind == "ResourceFlavor":
            if each.name in used:
                used[each.name].given.append(each)
                _read_flavor(each, used[each.name])
            else:
                raw[each] = "no imported ClusterQueue uses it"
        elif each.kind == "Cohort":
            if f"cohort {each.name}" in used:
                used[f"cohort {each.name}"].given.append(each)
                _read_cohort(each, used[f"cohort {each.name}"], flavors, models)
            else:
                raw[each] = "no imported ClusterQueue is below it"
    return raw


def _convert_queue(
    reader: ImportReader,
    queue: GivenValue,
    tree: CohortTree,
    flavors: dict[str, GivenValue],
    models: dict[str, str],
    weights: dict[str, int],
    body: Body,
) -> list[str]:
    """Add a ClusterQueue to a Quota; return the names of its flavors."""
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
                    reader.lose(
                        (*place, "lendingLimit"),
                        "idle GPUs of a guarantee are lent out, and reclaimed; `borrow` of the others counts it",
                        "",
                    )
                if kind in GPU_RESOURCES:
                    model = _flavor_model(flavors.get(name), name, models_of(kind, models))
                    if model is None:
                        reader.lose(place, "the flavor names no GPU model", "import the nodes, or label the flavor")
                        continue
                    if not _product(flavors.get(name)):
                        reader.note(
                            (*at, "name"), f"no label of the flavor names its GPU model; the spec says {model}", ""
                        )
                    _add_gpus(reader, queue, tree, model, place, limit, body)
                elif kind in ("cpu", "memory", "pods"):
                    sums[kind] = sums.get(kind, 0) + parse_quantity(nominal)
                    if limit is not None:
                        reader.lose((*place, "borrowingLimit"), f"teams do not lend {kind}", f"raise `{kind}`")
                else:
                    reader.lose(place, "a Quota counts GPUs, CPU, memory, storage and pods", "")
    for kind, total in sums.items():
        body[kind] = int(total) if kind == "pods" else format_quantity(total)
    _read_weight(reader, queue, weights, body)
    for key, (why, remedy) in _POLICY_NOTES.items():
        if queue.get("spec", key) not in (None, {}, [], "None"):
            reader.lose(("spec", key), why, remedy)
        reader.take("spec", key)
    reader.lose_rest("a Quota has no key for it", "")
    return names


def _add_gpus(
    reader: ImportReader, queue: GivenValue, tree: CohortTree, model: str, place: Path, limit: Any, body: Body
) -> None:
    """Add a GPU model to a Quota. Several flavors of a model are one entry."""
    cohort, most = parent_of(queue), tree.borrowable(queue, model)
    known = next((each for each in body.get("gpus") or () if each["gpu"] == model), None)
    if known is not None:
        reader.note((*place, "name"), f"its flavor is {model}, too: their quotas are one", "divide them by `pool`")
        if limit is not None:
            wanted = known.get("borrow", 0) + int(parse_quantity(limit))
            known["borrow"] = min(most, wanted)
            if wanted > most:
                reader.note((*place, "borrowingLimit"), f"the others of its tree lend {most} at most, not {wanted}", "")
        return
    guaranteed = tree.guaranteed(queue, model)
    borrow = most if limit is None else min(most, int(parse_quantity(limit))) if cohort else 0
    if limit is None and cohort:
        why = f"borrowing has no limit; the spec says {borrow}, what the others of its tree lend"
        reader.lose((*place, "name"), why, "write `borrow`")
    elif limit is not None and borrow < int(parse_quantity(limit)):
        reader.note((*place, "borrowingLimit"), f"the others of its tree lend {borrow} at most, not {limit}", "")
    body.setdefault("gpus", []).append(
        {"gpu": model, "guaranteed": guaranteed, **({"borrow": borrow} if borrow else {})}
    )


def _read_weight(reader: ImportReader, queue: GivenValue, weights: dict[str, int], body: Body) -> None:
    """Write the weight of a queue, in whole numbers of the same ratio."""
    own = reader.take("spec", "fairSharing", "weight")
    weight = weights.get(queue.name)
    if weight is not None and (weight > 1 or own is not None):
        for entry in body.get("gpus") or ():
            entry["weight"] = weight
    if own is not None and weight is None:
        why = (
            "its ratio to the others needs weights above 1,000" if parse_quantity(own) > 0 else "no team is always last"
        )
        reader.lose(("spec", "fairSharing", "weight"), f"{why}; the spec says 1", "set `priority: low` in its jobs")
    elif own is not None and Fraction(parse_quantity(own)) != weight:
        reader.note(("spec", "fairSharing", "weight"), f"weights are whole numbers: {weight}, in the same ratio", "")


def _read_local_queue(given: GivenValue, quota: ImportedSpec) -> None:
    reader = ImportReader(given)
    reader.losses = quota.losses
    take_common(reader)
    reader.take("spec", "clusterQueue")
    if given.get("spec", "stopPolicy") in (None, "None"):
        reader.take("spec", "stopPolicy")
    reader.lose_rest("a Quota has no key for it", "")


def _read_flavor(given: GivenValue, quota: ImportedSpec) -> None:
    reader = ImportReader(given)
    reader.losses = quota.losses
    take_common(reader)
    for key, (why, remedy) in _FLAVOR_NOTES.items():
        if given.get("spec", key):
            reader.lose(("spec", key), why, remedy)
    for label in given.get("spec", "nodeLabels") or {}:
        if label in GPU_LABELS:
            reader.take("spec", "nodeLabels", label)
        else:
            reader.lose(("spec", "nodeLabels", label), "a Quota counts GPUs of a model, not of a pool", "")
    reader.lose_rest("a Quota has no key for it", "")


def _read_cohort(
    given: GivenValue, quota: ImportedSpec, flavors: dict[str, GivenValue], models: dict[str, str]
) -> None:
    """Read a cohort, whose GPUs `CohortTree` counts."""
    reader = ImportReader(given)
    reader.losses = quota.losses
    take_common(reader)
    for key in ("parent", "parentName"):
        reader.take("spec", key)
    for i, group in enumerate(given.get("spec", "resourceGroups") or ()):
        reader.take("spec", "resourceGroups", i, "coveredResources")
        for j, flavor in enumerate(group.get("flavors") or ()):
            at = ("spec", "resourceGroups", i, "flavors", j)
            name = str(reader.take(*at, "name"))
            for k, resource in enumerate(flavor.get("resources") or ()):
                kind = resource.get("name")
                if kind in GPU_RESOURCES and _flavor_model(flavors.get(name), name, models_of(kind, models)):
                    reader.take(*at, "resources", k)
    reader.lose_rest("only GPUs of known models are lent between teams", "import the flavors, or write a Quota")


def _product(flavor: GivenValue | None) -> str:
    """Return the GPU product that a label of a flavor names; empty without."""
    labels = (flavor.get("spec", "nodeLabels") if flavor else None) or {}
    return next((str(labels[key]) for key in GPU_LABELS if key in labels), "")


def _flavor_model(flavor: GivenValue | None, name: str, models: list[str]) -> str | None:
    found = _product(flavor)
    if found:
        return gpu_model(found)
    words = gpu_model(name)
    return words if words in models else models[0] if len(models) == 1 else words if len(words) <= 6 else None
