"""Limits of patches: never the identity and owner of an object, and for teams only what the team may do itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from avactl.compiler.patches.pods import pod_refusals
from avactl.contracts.foreign_keys import key_owner
from avactl.kinds.team.names import team_namespaces
from avactl.program import registry
from avactl.program.manifest import Body, Manifest, templates_of
from avactl.program.program import Item, Program
from avactl.spec.schema.base import OF_CONTROLLERS
from avactl.spec.schema.pod_settings import of_runtime

FORBIDDEN = frozenset(
    (
        "Namespace",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "ServiceAccount",
        "Secret",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "CustomResourceDefinition",
    )
)
"""Kinds that decide who may do what."""
OF_TEAMS = frozenset(
    (
        "Job",
        "CronJob",
        "Deployment",
        "StatefulSet",
        "Service",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "ConfigMap",
        "PersistentVolumeClaim",
    )
)
"""Kinds that patches of a team's specs may change, in the team's namespaces: those that its members may write."""
_COUNT_FIELDS = {
    "replicas": "replicas",
    "minReplicas": "replicas",
    "maxReplicas": "replicas",
    "parallelism": "workers.replicas",
    "completions": "workers.replicas",
}
_IDENTITY_FIELDS = ("selector", "serviceName", "managedBy", "manualSelector", "scaleTargetRef")


class PatchRefusal(NamedTuple):
    """A change that is not allowed."""

    path: tuple[str, ...]
    message: str
    hint: str


def target_refusal(item: Item, program: Program, manifest: Manifest) -> str:
    """Return why the object may not be patched at all; "" if it may."""
    if manifest.kind in FORBIDDEN:
        return f"a {manifest.kind} decides who may do what"
    if item.team is None:
        return ""
    if manifest.kind not in OF_TEAMS:
        return f"specs of teams do not patch a {manifest.kind}"
    if manifest.namespace not in team_namespaces(program.team(item.team)):
        return f"it is in namespace {manifest.namespace}, which is not the team's"
    return ""


def refusals(item: Item, program: Program, manifest: Manifest, new: Body) -> Iterator[PatchRefusal]:
    """Yield the changes of one object that are not allowed."""
    old = manifest.body
    for key in ("apiVersion", "kind", "status"):
        if old.get(key) != new.get(key):
            yield PatchRefusal((key,), f"patches do not change `{key}`", "remove the key")
    yield from _metadata_refusals(old.get("metadata") or {}, new.get("metadata") or {}, ("metadata",))
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if isinstance(before, dict) and isinstance(after, dict):
        for key in _IDENTITY_FIELDS:
            if before.get(key) != after.get(key) and manifest.kind != "Service":
                yield PatchRefusal(("spec", key), f"`{key}` binds the object to its pods", "remove the key")
        runs = registry.get_lifecycle(item.kind) is not None
        for key, own in _COUNT_FIELDS.items() if runs else ():
            if before.get(key) != after.get(key):
                hint = f"write `{own}` in `spec`, which counts in quotas and capacity"
                yield PatchRefusal(("spec", key), f"patches do not change `{key}`", hint)
        yield from _of_kind(item, program, manifest.kind, before, after)
        if manifest.kind == "CronJob":
            one, other = ((each.get("jobTemplate") or {}).get("metadata") or {} for each in (before, after))
            yield from _metadata_refusals(one, other, ("spec", "jobTemplate", "metadata"))
    becomes = dict(templates_of(new))
    for path, before in templates_of(old):
        if path not in becomes:
            continue
        after = becomes[path]
        yield from _metadata_refusals(before.get("metadata") or {}, after.get("metadata") or {}, (*path, "metadata"))
        for refusal in pod_refusals(item, program, before.get("spec") or {}, after.get("spec") or {}):
            yield PatchRefusal((*path, "spec", *refusal[0]), refusal[1], refusal[2])


def _metadata_refusals(old: Body, new: Body, path: tuple[str, ...]) -> Iterator[PatchRefusal]:
    for key in {**old, **new}:
        if old.get(key) == new.get(key):
            continue
        if key not in ("labels", "annotations"):
            yield PatchRefusal((*path, key), f"patches do not change `{key}` of the metadata", "remove the key")
            continue
        one, other = old.get(key) or {}, new.get(key) or {}
        for name in {**one, **other}:
            owner = "container runtimes" if key == "annotations" and of_runtime(name) else key_owner(name)
            if key == "labels" and name in OF_CONTROLLERS:
                owner = "Kubernetes"
            if one.get(name) != other.get(name) and owner:
                hint = "use a prefix of your own"
                yield PatchRefusal((*path, key, name), f"`{name}` belongs to {owner}", hint)


def _of_kind(item: Item, program: Program, kind: str, old: Body, new: Body) -> Iterator[PatchRefusal]:
    """Yield what the admission policies refuse of Services and claims."""
    if item.team is None:
        return
    if kind == "Service":
        types = program.team(item.team).spec.service_types
        if new.get("type", "ClusterIP") not in types:
            hint = f"add it to `serviceTypes` of Team {item.team}"
            yield PatchRefusal(("spec", "type"), f"the Team does not allow `type: {new['type']}`", hint)
        for key in ("externalIPs", "externalName", "clusterIP", "clusterIPs"):
            if old.get(key) != new.get(key):
                yield PatchRefusal(("spec", key), f"`{key}` can divert traffic of others", "remove the key")
    if kind == "PersistentVolumeClaim":
        for key in ("volumeName", "dataSource", "dataSourceRef"):
            if old.get(key) != new.get(key):
                yield PatchRefusal(("spec", key), f"`{key}` can bind a volume of someone else", "remove the key")
