"""Semantic difference of source objects and the objects that their specs compile to."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from avactl.base.object_identity import ObjectKey
from avactl.change.diff import phrases
from avactl.change.diff.fields import Steps, ValueChange, field_differences, object_differences
from avactl.change.diff.model import ABSENT
from avactl.change.diff.objects import field_changes
from avactl.compiler import Compilation
from avactl.contracts import names
from avactl.contracts.names import GPU_RESOURCES
from avactl.program.manifest import Manifest
from avactl.workbench.importer.cleaning import clean_object, clean_pod
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec
from avactl.workbench.importer.sources.pods import GPU_LABELS
from avactl.workbench.importer.sources.services import server_container
from avactl.workbench.importer.sources.workspaces import is_editor

_POD_TEMPLATES = {
    "Job": (("spec", "template"),),
    "Deployment": (("spec", "template"),),
    "StatefulSet": (("spec", "template"),),
}
_OWN_LABELS = (names.MANAGED_BY, names.TEAM_LABEL)


class ComparedLine(NamedTuple):
    """One difference, in words: `~`, `+` or `-`, and the text."""

    sign: str
    text: str


class Compared(NamedTuple):
    """Differences of one spec's objects from their source."""

    spec: ImportedSpec
    lines: list[ComparedLine]
    added: list[str]
    """Values that avactl adds to pods, by name."""
    objects: list[str]
    """Objects that the source does not have."""


def compare(specs: Iterable[ImportedSpec], compilation: Compilation) -> list[Compared]:
    """Return the differences of every spec with a source."""
    by_file: dict[str, list[Manifest]] = {}
    for manifest in compilation.manifests:
        by_file.setdefault(manifest.item.doc.file, []).append(manifest)
    found = []
    for spec in specs:
        if not spec.given:
            continue
        try:
            found.append(_compare(spec, by_file.get(spec.file, [])))
        except (AttributeError, KeyError, TypeError, ValueError):
            told = "the source has values of other types than its kind, and cannot be compared"
            found.append(Compared(spec, [ComparedLine("~", told)], [], []))
    return found


def _compare(spec: ImportedSpec, made: list[Manifest]) -> Compared:
    if spec.raw:
        return Compared(spec, _compare_manifest(spec, made[0]) if made else [], [], [])
    sources = {each.key: each for each in spec.given}
    new: list[str] = []
    lines: list[ComparedLine] = []
    added: list[str] = []
    for manifest in made:
        given = sources.get(manifest.id.key)
        if given is None:
            new.append(f"{manifest.kind} {manifest.name}")
    if spec.kind in ("TrainingJob", "ServingDeployment", "Workspace"):
        lines, added = _compare_workload(spec, made)
    elif spec.kind == "Quota":
        lines = _compare_quota(spec, made)
    elif spec.kind == "Team":
        lines, added = _compare_labels(sources, made)
    return Compared(spec, lines, added, new)


def _compare_manifest(spec: ImportedSpec, manifest: Manifest) -> list[ComparedLine]:
    given = spec.given[0]
    before, after = clean_object(given.value), without_marks(manifest.body)
    before["metadata"].pop("namespace", None)
    after["metadata"].pop("namespace", None)
    return _change_lines(object_differences(before, after))


def without_marks(body: Body) -> Body:
    """Return an object without the labels and annotations that avactl adds to every object."""
    made = clean_object(body)
    metadata = made["metadata"]
    for key in ("labels", "annotations"):
        kept = {
            name: value
            for name, value in (metadata.get(key) or {}).items()
            if name not in _OWN_LABELS
            and not name.startswith((f"{names.GROUP}/", "pulumi.com/", "argocd.argoproj.io/"))
        }
        metadata[key] = kept
        if not kept:
            del metadata[key]
    return made


def _is_amount(path: Steps) -> bool:
    """Return whether a value in a view of pods or quotas is a quantity."""
    return path[0] in ("requests", "limits", "hard")


def _change_lines(changes: Iterable[ValueChange]) -> list[ComparedLine]:
    found = []
    for change in field_changes(changes):
        sign = {"added": "+", "removed": "-"}.get(change.op, "~")
        found.append(ComparedLine(sign, phrases.show_field(change)))
    return found


_PROGRAM_FIELDS = ("image", "command", "args")
_SOURCE_ROLES = {
    "PS": "server",
    "Ps": "server",
    "ps": "server",
    "server": "server",
    "Evaluator": "evaluator",
    "evaluator": "evaluator",
    "Launcher": "launcher",
    "mpimaster": "launcher",
    "launcher": "launcher",
}


def _compare_workload(spec: ImportedSpec, made: list[Manifest]) -> tuple[list[ComparedLine], list[str]]:
    before, after = source_roles(spec.given[0]), _compiled_roles(made)
    if any(each.kind == "Deployment" and "replicas" not in each.body["spec"] for each in made):
        for each in (*before.values(), *after.values()):
            each.pop("replicas", None)  # the autoscaler chooses them
    if "launcher" in after:
        # Workers of MPI run mpirun's daemons.
        worker = before.get("worker", {})
        before.setdefault("launcher", {key: worker[key] for key in _PROGRAM_FIELDS if key in worker})
        before["worker"] = {key: value for key, value in worker.items() if key not in _PROGRAM_FIELDS[1:]}
        after["worker"] = {key: value for key, value in after["worker"].items() if key not in _PROGRAM_FIELDS[1:]}
    lines: list[ComparedLine] = []
    added: list[str] = []
    for role in {**before, **after}:
        if role not in before:
            continue
        one, other = before[role], after.get(role)
        if other is None:
            lines.append(ComparedLine("-", f"{role}: its pods"))
            continue
        for change in field_differences(one, other, is_quantity=_is_amount):
            if change.op == "added" and change.path[0] not in ("command", "args"):
                added.append(change.path[-1] if change.path[0] in ("env", "volumes") else change.path[0])
                continue
            text = _change_lines([change])[0]
            lines.append(ComparedLine(text.sign, f"{role}: {text.text}" if len(before) > 1 else text.text))
    return lines, sorted(set(added))


def source_roles(given: GivenValue) -> dict[str, Body]:
    """Return the pods of a source by role: replicas, and what the main container gets."""
    found: dict[str, Body] = {}

    def add(role: str, replicas: Any, template: Any, main: tuple[str, ...] = ()) -> None:
        view = pod_view(template, main)
        count = replicas if isinstance(replicas, int) else 1
        if role in found:
            count += found[role]["replicas"]
            view = view if count - found[role]["replicas"] > found[role]["replicas"] else found[role]
        found[role] = {**view, "replicas": count}

    for key in ("pytorchReplicaSpecs", "tfReplicaSpecs", "mpiReplicaSpecs"):
        for role, part in (given.get("spec", key) or {}).items():
            add(
                _SOURCE_ROLES.get(role, "worker"), part.get("replicas"), part.get("template"), ("pytorch", "tensorflow")
            )
    for task in given.get("spec", "tasks") or ():
        several = len(given.get("spec", "tasks")) > 1
        role = _SOURCE_ROLES.get(str(task.get("name")), "worker") if several else "worker"
        add(role, task.get("replicas"), task.get("template"))
    for each in given.get("spec", "replicatedJobs") or ():
        job = (each.get("template") or {}).get("spec") or {}
        add("worker", job.get("parallelism"), job.get("template"))
    trainer = given.get("spec", "trainer")
    if isinstance(trainer, dict):
        container = {key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer}
        container["resources"] = trainer.get("resourcesPerNode") or {}
        add("worker", trainer.get("numNodes"), {"spec": {"containers": [container]}})
        if not trainer.get("numNodes"):
            del found["worker"]["replicas"]  # the runtime tells them
    if given.kind in ("Job", "Deployment", "StatefulSet", "Rollout") and given.get("spec", "template"):
        replicas = given.get("spec", "parallelism" if given.kind == "Job" else "replicas")
        own = "worker" if given.kind == "Job" else "workspace" if is_editor(given) else "server"
        add(own, replicas, given.get("spec", "template"), (server_container(given),) if own == "server" else ())
    return found


def _compiled_roles(made: list[Manifest]) -> dict[str, Body]:
    found: dict[str, Body] = {}
    for manifest in made:
        if manifest.kind not in _POD_TEMPLATES:
            continue
        labels = manifest.body["metadata"].get("labels") or {}
        role = labels.get("app.kubernetes.io/component", "worker")
        role = "worker" if role == "chief" else role
        spec = manifest.body["spec"]
        view = pod_view(spec["template"], (role, "worker", "chief", "server"))
        count = spec.get("parallelism", spec.get("replicas", 1))
        if role in found:
            count += found[role]["replicas"]
        found[role] = {**view, "replicas": count}
    scaled = next((each.body["spec"] for each in made if each.kind == "HorizontalPodAutoscaler"), None)
    if scaled and "server" in found:
        found["server"]["replicas"] = scaled.get("minReplicas", 1)
    return found


def pod_view(template: Any, main: tuple[str, ...]) -> Body:
    """Return what matters of a pod template, in one form for all kinds: lists become mappings by name."""
    spec = copy.deepcopy((template or {}).get("spec") or {})
    clean_pod(spec)
    containers = spec.get("containers") or [{}]
    inits = spec.get("initContainers") or []
    # Pods that follow others have their program as a sidecar.
    follows = any(each.get("name") == names.FOLLOWER for each in containers)
    container = next((each for each in (inits if follows else containers) if each.get("name") in main), containers[0])
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    limits = resources.get("limits") or {}
    view: Body = {
        "image": container.get("image"),
        "command": container.get("command"),
        "args": container.get("args"),
        "env": {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env") or ()},
        "envFrom": container.get("envFrom"),
        "workingDir": container.get("workingDir"),
        "requests": {key: str(value) for key, value in requests.items() if key in ("cpu", "memory", *GPU_RESOURCES)},
        "limits": {key: str(value) for key, value in limits.items() if key not in GPU_RESOURCES},
        "nodeSelector": spec.get("nodeSelector"),
        "serviceAccountName": spec.get("serviceAccountName"),
        "tolerations": {f"{each.get('key')}": each.get("effect", "") for each in spec.get("tolerations") or ()},
        "mounts": _mounted_volumes(spec, container),
        "hostNetwork": spec.get("hostNetwork"),
        "containers": {}
        if follows
        else {each.get("name"): each.get("image") for each in containers if each is not container},
        "initContainers": {each.get("name"): each.get("image") for each in inits if each is not container},
        "labels": ((template or {}).get("metadata") or {}).get("labels"),
        "annotations": ((template or {}).get("metadata") or {}).get("annotations"),
    }
    if any(name in requests for name in GPU_RESOURCES):
        # `gpu` of the spec says the model; pods with GPUs tolerate the taint of their resource.
        selector = view["nodeSelector"] or {}
        view["nodeSelector"] = {key: value for key, value in selector.items() if key not in GPU_LABELS}
        view["tolerations"] = {key: value for key, value in view["tolerations"].items() if key not in GPU_RESOURCES}
    return {key: value for key, value in view.items() if value not in (None, {}, [], False)}


def _mounted_volumes(spec: Body, container: Body) -> dict[str, str]:
    """Return what is mounted where: the volume's type, and the name of what it refers to."""
    volumes = {each.get("name"): each for each in spec.get("volumes") or ()}
    found: dict[str, str] = {}
    for mount in container.get("volumeMounts") or ():
        volume = volumes.get(mount.get("name")) or {}
        kind = next((key for key in volume if key != "name"), "emptyDir" if volume else "")
        source = volume.get(kind) or {}
        name = next(
            (source[key] for key in ("claimName", "secretName", "name", "driver", "path", "medium") if key in source),
            "",
        )
        found[str(mount.get("mountPath"))] = " ".join(filter(None, (kind, str(name), mount.get("subPath"))))
    return found


def _compare_quota(spec: ImportedSpec, made: list[Manifest]) -> list[ComparedLine]:
    before: Body = {}
    for given in spec.given:
        if given.kind == "ResourceQuota":
            for key, value in (given.get("spec", "hard") or {}).items():
                # `cpu` of a ResourceQuota is that of the requests.
                before[f"requests.{key}" if key in ("cpu", "memory") else key] = str(value)
    after: Body = {}
    for manifest in made:
        if manifest.kind == "ResourceQuota":
            after |= manifest.body["spec"].get("hard") or {}
    changes = field_differences({"hard": before}, {"hard": after}, is_quantity=_is_amount)
    return _change_lines(change for change in changes if change.old is not ABSENT)


def _compare_labels(sources: dict[ObjectKey, GivenValue], made: list[Manifest]) -> tuple[list[ComparedLine], list[str]]:
    lines = []
    added: list[str] = []
    for manifest in made:
        given = sources.get(manifest.id.key)
        if given is None or manifest.kind != "Namespace":
            continue
        before = clean_object(given.value)["metadata"].get("labels") or {}
        after = manifest.body["metadata"].get("labels") or {}
        for change in field_differences({"labels": before}, {"labels": after}):
            if change.op == "added":
                added.append(change.path[-1])
                continue
            line = _change_lines([change])[0]
            lines.append(ComparedLine(line.sign, f"Namespace {manifest.name}: {line.text}"))
    return lines, sorted(set(added))
