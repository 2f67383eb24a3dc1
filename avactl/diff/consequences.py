"""Consequences of a change, in the terms of the spec's owner."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from avactl.diff import phrases
from avactl.diff.model import Consequence, Disruption, ObjectChange
from avactl.diff.objects import Pair
from avactl.diff.secrets import cover, cover_text
from avactl.kinds import dataset_access, registry
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program
from avactl.kinds.registry import ObjectEffect
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.names import ROLLOUT_ROUTE
from avactl.policy.builtin import pods

WORKLOADS = ("Job", "StatefulSet", "Deployment", "LeaderWorkerSet", "DisaggregatedSet", "DaemonSet", "CronJob", "Pod")

_IN_GENERAL = {
    Disruption.NONE: "none of its objects changes",
    Disruption.METADATA: "labels and annotations only",
    Disruption.IN_PLACE: "updated in place",
    Disruption.POD_RESTART: "pods restart",
}


def data(old: Item | None, new: Item | None, objects: Sequence[ObjectChange]) -> list[Consequence]:
    """Return the consequences for data: loss first, then data that is kept."""
    found = []
    for change in objects:
        if change.disruption == Disruption.DATA_LOSS:
            found.append(Consequence("data", _loss(change), "danger"))
        elif change.op == "kept":
            runs = "  and keeps running" if change.id.kind in WORKLOADS else ""
            text = f"{change.id} is kept{runs}: it holds data and is never deleted"
            found.append(Consequence("data", text, "warning"))
        elif change.op == "renamed" and change.id.kind == "PersistentVolumeClaim" and change.reason:
            found.append(Consequence("data", f"{change.id.kind} {change.reason}", "warning"))
    if found and new is not None and old is not None and new.spec_name != old.spec_name and _may_keep(new):
        text = f"to keep its objects and data, set metadata.objectName: {old.name}"
        found.append(Consequence("data", text))
    return sorted(found, key=lambda consequence: consequence.level != "danger")


def _may_keep(item: Item) -> bool:
    """Return whether a renamed spec could have kept its objects, but does not."""
    return item.resource.SCOPE == "team" and item.resource.metadata.object_name is None


def _loss(change: ObjectChange) -> str:
    if change.op == "deleted":
        return f"deletes {change.id} {change.reason}"
    if change.op == "renamed":
        return change.reason
    worst = [field for field in change.fields if field.disruption == Disruption.DATA_LOSS]
    what = ", ".join(f"{field.path.rpartition('.')[2]} {field.old} → {field.new}" for field in worst)
    return f"{change.id}, {what}: {change.reason}"


def run(old: Item | None, new: Item | None, objects: Sequence[ObjectChange]) -> list[Consequence]:
    """Return the consequences for running pods. A new spec has none."""
    if old is None:
        return []
    if new is None:
        stopped = sorted({change.id.kind for change in objects if change.op == "deleted"} & set(WORKLOADS))
        return [Consequence("run", "its pods are stopped", "warning")] if stopped else []
    if objects and all(change.disruption == Disruption.DATA_LOSS for change in objects):
        return []
    if old.key != new.key and not any(change.op == "renamed" for change in objects):
        return [Consequence("run", "its objects and data are kept")]
    phrase = registry.kind(new.kind).impact(old, new, [_effect(change) for change in objects]) or _generic(objects)
    worst = max((change.disruption for change in objects), default=Disruption.NONE)
    return [Consequence("run", phrase, "warning" if worst >= Disruption.POD_RESTART else "info")]


def _effect(change: ObjectChange) -> ObjectEffect:
    return ObjectEffect(
        kind=change.id.kind,
        name=change.id.name,
        renamed=change.op == "renamed",
        starts_pods=change.disruption >= Disruption.POD_RESTART or change.op == "created",
        loses_data=change.disruption == Disruption.DATA_LOSS,
    )


def _generic(objects: Sequence[ObjectChange]) -> str:
    # Data loss is reported separately and more prominently.
    objects = [change for change in objects if change.disruption != Disruption.DATA_LOSS]
    worst = max((change.disruption for change in objects), default=Disruption.NONE)
    if worst < Disruption.REPLACE:
        if worst == Disruption.NONE and any(change.op in ("created", "kept") for change in objects):
            return "running pods are not affected"
        return _IN_GENERAL[worst]
    if any(change.op == "renamed" for change in objects):
        return "its objects are recreated under the new name"
    kinds = [c.id.kind for c in objects if c.op == "changed" and c.disruption >= Disruption.REPLACE]
    gone = [c.id.kind for c in objects if c.op == "deleted" and c.disruption >= Disruption.REPLACE]
    parts = []
    if kinds:
        parts.append(f"{_list(kinds)} recreated")
    if gone:
        parts.append(f"{_list(gone)} deleted")
    if any(change.disruption == Disruption.POD_RESTART for change in objects):
        parts.append("pods restart")
    return ", ".join(parts)


def _list(words: Sequence[str]) -> str:
    unique = sorted(set(words))
    return unique[0] if len(unique) == 1 else ", ".join(unique[:-1]) + " and " + unique[-1]


def policy(old: Item | None, new: Item | None) -> list[Consequence]:
    """Return the consequence of a changed deletion policy, which takes effect when the spec is deleted."""
    if old is None or new is None:
        return []
    was, now = (getattr(item.spec, "deletion_policy", None) for item in (old, new))
    if was == now:
        return []
    if now == "delete":
        return [Consequence("data", "its data will be deleted together with the spec", "warning")]
    return [Consequence("data", "its data will be kept when the spec is deleted")]


# -- security --------------------------------------------------------------------------------------------------------

_RIGHTS = (
    "runs", "env", "Secrets", "data of", "open to team", "reachable at", "service account", "volumes", "host paths",
    "host network", "privileged", "may", "pod security", "grants", "patches",
)  # fmt: skip
_ENFORCED, _STRICTEST = "pod-security.kubernetes.io/enforce", "restricted"
"""Label of namespaces, and its value in which pods have no access to machines."""
_IN_SPEC = ("runs", "env", "patches")
"""Facts that a changed spec shows as fields anyway."""
_MOST = 12
"""Values shown of one fact."""


def security(old: Item | None, new: Item | None, pairs: Sequence[Pair], program: Program) -> list[Consequence]:
    """Return the rights of a new spec, or the changed rights of another one, on one line: image and command, names of
    variables, Secrets, other teams' data, service accounts, volumes from outside, host directories and networks,
    privileges, namespaces with weaker pod security, subjects of roles."""
    if new is None:
        return []
    now = _rights(new, [pair.new for pair in pairs if pair.new is not None], program)
    before: dict[str, list[str]] = {}
    if old is not None:
        before = _rights(old, [pair.old for pair in pairs if pair.old is not None], program)
    parts = []
    for what in _RIGHTS:
        values = now.get(what, [])
        if old is not None:
            was = before.get(what, [])
            gone = [f"- {each}" for each in was if each not in values]
            values = [] if what in _IN_SPEC else gone + [f"+ {each}" for each in values if each not in was]
        if values:
            parts.append(f"{what} {phrases.names(values, _MOST)}")
    return [Consequence("security", phrases.joined(parts))] if parts else []


def _rights(item: Item, manifests: Sequence[Manifest], program: Program) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    platform = {image for name in item.clusters if (cluster := program.find_cluster(name))
                for image in cluster.spec.images.model_dump().values()}  # fmt: skip
    spec = item.resource.spec.model_dump(by_alias=True)
    given = {*_texts(spec), *_texts([patch.model_dump(by_alias=True) for patch in item.resource.patches])}
    # An image of the platform's that a spec names runs the spec's command.
    platform -= given
    for manifest in manifests:
        for what, value in (*_of_pods(manifest, platform, given), *_of_roles(manifest), *_of_routes(manifest)):
            found.setdefault(what, {})[value] = None
    for number, name in sorted({(each.number, manifest.kind) for manifest in manifests for each in manifest.patched}):
        span = item.span("patches", number)
        found.setdefault("patches", {})[f"{name} ({span.file}:{span.line})"] = None
    if "runs" in found:
        found["env"] = dict.fromkeys(_variables(spec))
    for mount in dataset_access.mounts(item):
        dataset = dataset_access.find(program, item.team, mount.name)
        if dataset is not None and dataset.team not in (None, item.team):
            found.setdefault("data of", {})[f"{dataset.team}/{dataset.spec_name}"] = None
    hooks = registry.kind(item.kind).workload
    if hooks is not None:
        found["open to team"] = dict.fromkeys(hooks.exposed_to(item))
    return {what: list(values) for what, values in found.items() if values}


def _of_pods(manifest: Manifest, platform: Collection[str], given: Collection[str]) -> Iterator[tuple[str, str]]:
    """`platform`: images whose containers run avactl's commands. `given`: texts of the spec."""
    for pod, _ in pods(manifest.body):
        containers = [*pod.get("containers", ()), *pod.get("initContainers", ())]
        for container in containers if manifest.item.team else ():
            image = container.get("image", "")
            words = [*container.get("command", ()), *container.get("args", ())]
            own = container is not containers[0] and words and not any(word in given for word in words)
            if image not in platform and not own:
                command = " ".join(cover(words)) if words else "its default command"
                yield "runs", f"{phrases.show(command)} in {phrases.show(cover_text(image))}"
        for name in _secrets([containers, pod.get("volumes", ())]):
            yield "Secrets", name
        yield from _of_settings(manifest, pod)
        if pod.get("hostNetwork"):
            yield "host network", manifest.name
        for container in containers:
            if (container.get("securityContext") or {}).get("privileged"):
                yield "privileged", container["name"]
            if manifest.item.team:
                yield from _privileges(container)


def _of_settings(manifest: Manifest, pod: Body) -> Iterator[tuple[str, str]]:
    """Yield what pods get by the names of objects that no spec compiles to."""
    account = pod.get("serviceAccountName")
    if manifest.item.team and account and account != RUN_ACCOUNT:
        token = ", with its token" if pod.get("automountServiceAccountToken") else ""
        yield "service account", f"{account}{token}"
    for volume in pod.get("volumes", ()):
        if "hostPath" in volume:
            yield "host paths", volume["hostPath"]["path"]
        if "nfs" in volume:
            yield "volumes", phrases.show(f"{volume['nfs']['server']}:{volume['nfs']['path']}")
        if "csi" in volume:
            yield "volumes", phrases.show(f"of {volume['csi']['driver']}")


def _privileges(container: Body) -> Iterator[tuple[str, str]]:
    security = container.get("securityContext") or {}
    if security.get("allowPrivilegeEscalation"):
        yield "may", f"escalate privileges in {container['name']}"
    for name in (security.get("capabilities") or {}).get("add") or ():
        yield "may", f"{phrases.show(name)} in {container['name']}"


def _of_roles(manifest: Manifest) -> Iterator[tuple[str, str]]:
    if manifest.kind == "ServiceAccount":
        yield "service account", manifest.name
    if manifest.kind == "Namespace":
        level = manifest.body["metadata"].get("labels", {}).get(_ENFORCED, _STRICTEST)
        if level != _STRICTEST:
            yield "pod security", f"{level} in {manifest.name}"
    if manifest.kind in ("RoleBinding", "ClusterRoleBinding"):
        for subject in manifest.body.get("subjects", ()):
            if subject["kind"] != "ServiceAccount" or manifest.kind == "ClusterRoleBinding":
                yield "grants", f"{manifest.body['roleRef']['name']} to {subject['kind']} {subject['name']}"


def _of_routes(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the URLs under which a route is reached from outside of the cluster."""
    spec = _mapping(manifest.body.get("spec"))
    if manifest.kind == "Ingress":
        for rule in _mappings(spec.get("rules")):
            for entry in _mappings(_mapping(rule.get("http")).get("paths")):
                yield "reachable at", phrases.show(f"{rule.get('host') or '*'}{entry.get('path') or '/'}")
    elif manifest.kind in ("HTTPRoute", "GRPCRoute"):
        grpc = manifest.kind == "GRPCRoute"
        matches = [match for rule in _rules(manifest) for match in _mappings(rule.get("matches")) or [{}]]
        if grpc:
            paths = [f"/{_mapping(match.get('method')).get('service') or ''}" for match in matches]
        else:
            paths = [_mapping(match.get("path")).get("value") or "/" for match in matches]
        hosts = spec.get("hostnames")
        for host in hosts if isinstance(hosts, list) and hosts else ("*",):
            for path in paths:
                yield "reachable at", phrases.show(f"{host}{path}") + (" by gRPC" if grpc else "")


def _rules(manifest: Manifest) -> list[Body]:
    """Return the rules of a route; those of a canary are in its annotation."""
    rules = _mappings(_mapping(manifest.body.get("spec")).get("rules"))
    notes = manifest.body["metadata"].get("annotations") or {}
    if rules or ROLLOUT_ROUTE not in notes:
        return rules
    try:
        return _mappings(json.loads(notes[ROLLOUT_ROUTE]))
    except (TypeError, ValueError):  # a patch can have changed it
        return []


def _mapping(value: Any) -> Body:
    """Return a mapping; {} for what a manifest of somebody else has instead."""
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Body]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


_SECRET_KEYS = ("secretKeyRef", "secretRef", "secret", "nodePublishSecretRef")


def _secrets(value: Any) -> Iterator[str]:
    """Yield the names of the Secrets that containers and volumes refer to."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _SECRET_KEYS and isinstance(inner, dict):
                yield inner.get("name") or inner.get("secretName", "")
            else:
                yield from _secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _secrets(inner)


def _variables(value: Any) -> Iterator[str]:
    """Yield the names of the environment variables that a spec sets."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "env" and isinstance(inner, dict):
                yield from inner
            else:
                yield from _variables(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _variables(inner)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value
