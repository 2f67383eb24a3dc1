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
from avactl.workbench.importer.failures import READ_ERRORS, explain_failure
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
        except READ_ERRORS as error:
            told = f"the source cannot be compared: {explain_failure(spec.given[0], error)}"
            found.append(Compared(spec, [ComparedLine("~", told)], [], []))
    return found


def _compare(spec: ImportedSpec, made: list[Manifest]) -> Compared:
    if spec.raw:
        return Compared(spec, _compare_manifest(spec, made[0]) if made else [], [], [])
    sources = {each.key: each for each in (*spec.given, *spec.acts_as)}
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


_PROGRAM_FIELDS = ("command", "args")
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


class SourceRole(NamedTuple):
    """Pods of a source object."""

    name: str
    """Name in the source: `Master`."""
    role: str
    """Role of the compiled pods that take their place: `worker`."""
    replicas: int | None
    """None if another object says it."""
    view: Body


def _compare_workload(spec: ImportedSpec, made: list[Manifest]) -> tuple[list[ComparedLine], list[str]]:
    before, after = source_roles((spec.acts_as or spec.given)[0]), _compiled_roles(made)
    # Without a number, the autoscaler chooses it.
    scaled = any(each.kind == "Deployment" and "replicas" not in each.body["spec"] for each in made)
    if "launcher" in after:
        # Workers of MPI run mpirun's daemons.
        after["worker"] = {key: value for key, value in after["worker"].items() if key not in _PROGRAM_FIELDS}
        workers = [each for each in before if each.role == "worker"]
        if not any(each.role == "launcher" for each in before) and workers:
            own = {key: workers[0].view[key] for key in ("image", *_PROGRAM_FIELDS) if key in workers[0].view}
            before.append(SourceRole("launcher", "launcher", None, own))
        before = [each._replace(view=_without_program(each.view)) if each.role == "worker" else each for each in before]
    lines: dict[str, dict[ComparedLine, None]] = {}
    added: list[str] = []
    roles = list(dict.fromkeys(each.role for each in before))
    for role in roles:
        counts = [each.replicas for each in before if each.role == role]
        if role in after and not scaled and None not in counts:
            one, other = {"replicas": sum(filter(None, counts))}, {"replicas": after[role].get("replicas")}
            lines.setdefault(role, {}).update(dict.fromkeys(_change_lines(field_differences(one, other))))
    for each in before:
        found = lines.setdefault(each.name if len(before) > 1 else each.role, {})
        if each.role not in after:
            found[ComparedLine("-", "its pods")] = None
            continue
        other = {key: value for key, value in after[each.role].items() if key != "replicas"}
        for change in field_differences(each.view, other, is_quantity=_is_amount):
            if change.op == "added" and change.path[0] not in ("command", "args"):
                added.append(change.path[-1] if change.path[0] in ("env", "mounts") else change.path[0])
                continue
            if change.path == ("container",):
                added.append("name of the container")
                continue
            found[_change_lines([change])[0]] = None
    several = len(before) > 1
    shown = [
        ComparedLine(line.sign, f"{name}: {line.text}" if several else line.text)
        for name, found in lines.items()
        for line in found
    ]
    return shown, sorted(set(added))


def _without_program(view: Body) -> Body:
    return {key: value for key, value in view.items() if key not in _PROGRAM_FIELDS}


def source_roles(given: GivenValue) -> list[SourceRole]:
    """Return the pods of a source by role: replicas, and what they get."""
    found: list[SourceRole] = []

    def add(name: str, role: str, replicas: Any, template: Any, main: tuple[str, ...] = (), **own: Any) -> None:
        view = pod_view(template, main)
        view |= {key: value for key, value in own.items() if value is not None}
        found.append(SourceRole(name, role, replicas if isinstance(replicas, int) else 1, view))

    for key in ("pytorchReplicaSpecs", "tfReplicaSpecs", "mpiReplicaSpecs"):
        for role, part in (given.get("spec", key) or {}).items():
            # The operator gives its own policy to the pods.
            add(
                role,
                _SOURCE_ROLES.get(role, "worker"),
                part.get("replicas"),
                part.get("template"),
                _MAIN_CONTAINERS,
                restartPolicy=part.get("restartPolicy"),
            )
    for task in given.get("spec", "tasks") or ():
        several = len(given.get("spec", "tasks")) > 1
        role = _SOURCE_ROLES.get(str(task.get("name")), "worker") if several else "worker"
        add(str(task.get("name")), role, task.get("replicas"), task.get("template"))
    for each in given.get("spec", "replicatedJobs") or ():
        job = (each.get("template") or {}).get("spec") or {}
        add(str(each.get("name")), "worker", job.get("parallelism"), job.get("template"))
    trainer = given.get("spec", "trainer")
    if isinstance(trainer, dict):
        container = {key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer}
        container["resources"] = trainer.get("resourcesPerNode") or {}
        add("trainer", "worker", trainer.get("numNodes"), {"spec": {"containers": [container]}})
        if not trainer.get("numNodes"):
            found[-1] = found[-1]._replace(replicas=None)  # the runtime tells them
    if given.kind in ("Job", "Deployment", "StatefulSet", "Rollout") and given.get("spec", "template"):
        replicas = given.get("spec", "parallelism" if given.kind == "Job" else "replicas")
        own = "worker" if given.kind == "Job" else "workspace" if is_editor(given) else "server"
        add(own, own, replicas, given.get("spec", "template"), (server_container(given),) if own == "server" else ())
        if given.kind == "Job":
            found[-1].view["job"] = _job_view(given.value)
    return found


def _job_view(body: Body) -> Body:
    """Return the rules of a Job about its pods."""
    spec = clean_object(body)["spec"]
    view = {key: value for key, value in spec.items() if key not in ("template", "selector", "parallelism")}
    # That of a Job with one pod is the same for the pod.
    limit = view.pop("backoffLimit", _DEFAULT_RETRIES)
    view.setdefault("backoffLimitPerIndex", limit)
    return view


_DEFAULT_RETRIES = 6
"""The default of `backoffLimit`."""


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
        if manifest.kind == "Job":
            view["job"] = _job_view(manifest.body)
        count = spec.get("parallelism", spec.get("replicas", 1))
        if role in found:
            count += found[role]["replicas"]
        found[role] = {**view, "replicas": count}
    scaled = next((each.body["spec"] for each in made if each.kind == "HorizontalPodAutoscaler"), None)
    if scaled and "server" in found:
        found["server"]["replicas"] = scaled.get("minReplicas", 1)
    return found


def pod_view(template: Any, main: tuple[str, ...]) -> Body:
    """Return a pod template in one form for all kinds: the main container's values beside the pod's, lists by name."""
    spec = copy.deepcopy((template or {}).get("spec") or {})
    clean_pod(spec)
    containers = spec.pop("containers", None) or [{}]
    inits = spec.pop("initContainers", None) or []
    volumes = {str(each.get("name")): each for each in spec.pop("volumes", None) or ()}
    # Pods that follow others have their program as a sidecar.
    follows = any(each.get("name") == names.FOLLOWER for each in containers)
    container = next((each for each in (inits if follows else containers) if each.get("name") in main), containers[0])
    if follows:
        container.pop("restartPolicy", None)
    security = {**(spec.pop("securityContext", None) or {}), **(container.pop("securityContext", None) or {})}
    if security.get("privileged") is False:
        del security["privileged"]
    metadata = (template or {}).get("metadata") or {}
    view: Body = {
        **spec,
        **_container_view(container, volumes),
        "container": container.get("name"),
        "securityContext": security,
        "containers": {}
        if follows
        else {each.get("name"): _container_view(each, volumes) for each in containers if each is not container},
        "initContainers": {each.get("name"): _container_view(each, volumes) for each in inits if each is not container},
        "labels": metadata.get("labels"),
        "annotations": metadata.get("annotations"),
    }
    mounted = {str(mount.get("name")) for each in (*containers, *inits) for mount in each.get("volumeMounts") or ()}
    view["volumes"] = {name: _volume_source(each) for name, each in volumes.items() if name not in mounted}
    if any(name in view["requests"] for name in GPU_RESOURCES):
        # `gpu` of the spec says the model; pods with GPUs tolerate the taint of their resource.
        selector = view.get("nodeSelector") or {}
        view["nodeSelector"] = {key: value for key, value in selector.items() if key not in GPU_LABELS}
        view["tolerations"] = [each for each in view.get("tolerations") or () if each.get("key") not in GPU_RESOURCES]
    return {key: value for key, value in view.items() if value not in (None, {}, [], False)}


def _container_view(container: Body, volumes: dict[str, Body]) -> Body:
    """Return a container with its variables by name, its amounts in one notation, and its volumes by mount path."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    view = {key: value for key, value in container.items() if key not in _VIEWED_KEYS}
    ports = {each["name"]: each.get("containerPort") for each in container.get("ports") or () if each.get("name")}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        for action in (view.get(probe) or {}).values():
            if isinstance(action, dict) and action.get("port") in ports:
                action["port"] = ports[action["port"]]
    view["env"] = {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env") or ()}
    # A request of other resources is their limit.
    view["requests"] = {
        key: str(value)
        for key, value in {**limits, **requests}.items()
        if key in ("cpu", "memory", "ephemeral-storage", *GPU_RESOURCES) or key not in limits
    }
    view["limits"] = {key: str(value) for key, value in limits.items() if key not in GPU_RESOURCES}
    for key in resources.keys() - {"limits", "requests"}:
        view[key] = resources[key]
    view["mounts"] = {
        str(mount.get("mountPath")): {
            **{key: value for key, value in mount.items() if key not in ("name", "mountPath") and value is not False},
            **_volume_source(volumes.get(str(mount.get("name"))) or {}),
        }
        for mount in container.get("volumeMounts") or ()
    }
    return view


_VIEWED_KEYS = ("name", "env", "resources", "volumeMounts")
_MAIN_CONTAINERS = ("pytorch", "tensorflow", "launcher", "mpi-launcher", "worker", "mpi-worker", "mpi")
"""Names by which operators know the container with the program."""


def _volume_source(volume: Body) -> Body:
    """Return what a volume is made of, and its lists in one order."""
    return {key: value for key, value in volume.items() if key != "name"} or {"emptyDir": {}}


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
