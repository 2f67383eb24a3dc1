"""A Kubernetes object as plain data, with the spec that it was compiled from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from avactl.base.object_identity import ObjectId, ObjectKey

if TYPE_CHECKING:
    from avactl.program.program import Item

Body = dict[str, Any]


def without_nulls(value: Any) -> Any:
    """Return a copy of an object of Kubernetes without keys that are null, which the API server ignores."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


_CA_INJECTORS = ("cert-manager.io/inject-", "service.beta.openshift.io/inject-cabundle")
"""Annotations by which a controller writes the `caBundle` of an object: cert-manager's, and OpenShift's."""
_CA_BUNDLES = {
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): ("webhooks", "*", "clientConfig", "caBundle"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): ("webhooks", "*", "clientConfig", "caBundle"),
    ("apiregistration.k8s.io", "APIService"): ("spec", "caBundle"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): ("spec", "conversion", "webhook", "clientConfig", "caBundle"),
}
"""Paths that they write, by group and kind; `*` is every entry of a list. A schema may have a property of that name."""


def injected_ca_bundles(body: Body) -> list[tuple[str | int, ...]]:
    """Return the paths of an object's certificates that a controller writes."""
    if not any(key.startswith(_CA_INJECTORS) for key in body["metadata"].get("annotations") or {}):
        return []
    steps = _CA_BUNDLES.get((body["apiVersion"].rpartition("/")[0], body["kind"]))
    return list(_find_paths(body, steps)) if steps else []


def _find_paths(value: Any, steps: tuple[str, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths in plain data that match a path with `*`."""
    if not steps:
        yield ()
        return
    first, rest = steps[0], steps[1:]
    if first == "*":
        entries: list[tuple[str | int, Any]] = list(enumerate(value)) if isinstance(value, list) else []
    else:
        entries = [(first, value[first])] if isinstance(value, dict) and first in value else []
    for step, inner in entries:
        yield from ((step, *path) for path in _find_paths(inner, rest))


def without_path(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return a copy of plain data without the value at a path that it has."""
    step, *rest = path
    copy = value.copy()
    if rest:
        copy[step] = without_path(value[step], tuple(rest))
    else:
        del copy[step]
    return copy


def templates_of(body: Body) -> list[tuple[tuple[str, ...], Body]]:
    """Return the paths of an object's pod templates, and the templates: of a LeaderWorkerSet, first the leader's.

    The path in a DisaggregatedSet has the name of the role.
    """
    path: tuple[str, ...] = ()
    value: Any = body
    for step in ("spec", "jobTemplate", "spec", "template"):
        if isinstance(value, dict) and isinstance(value.get(step), dict):
            value = value[step]
            path = (*path, step)
    if path[-1:] == ("template",):
        return [(path, value)]
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return []
    return [
        ((*path, "leaderWorkerTemplate", key), template)
        for path, groups in ((("spec",), spec), *_role_specs(spec))
        if isinstance(pattern := groups.get("leaderWorkerTemplate"), dict)
        for key in ("leaderTemplate", "workerTemplate")
        if isinstance(template := pattern.get(key), dict)
    ]


def _role_specs(spec: Body) -> Iterator[tuple[tuple[str, ...], Body]]:
    """Yield the LeaderWorkerSets of a DisaggregatedSet, with their paths."""
    roles = spec.get("roles")
    for role in roles if isinstance(roles, list) else ():
        groups = role.get("spec") if isinstance(role, dict) else None
        if isinstance(groups, dict):
            yield ("spec", "roles", str(role.get("name", "")), "spec"), groups


def groups_at(body: Body, path: tuple[str, ...]) -> Body:
    """Return the spec of the LeaderWorkerSet to which a template at a path of `templates_of` belongs."""
    spec: Body = body.get("spec") or {}
    return dict(_role_specs(spec)).get(path[:4], spec)


class Patched(NamedTuple):
    """A value that a patch of the spec has set."""

    path: tuple[str, ...]
    """Keys, and names of entries of lists."""
    number: int
    """Index of the patch in its spec."""


class Manifest:
    """One object of one cluster.

    `item` is the spec that it was compiled from (intent and provenance). `holds_data`: deleting it would lose data, so
    it is never deleted unless the spec says `deletionPolicy: delete`. `patch`: the object exists without avactl, which
    owns only the given fields (a Node). `owned`: fields that controllers write afterwards, as paths
    (`spec.replicas`); they are never reverted. `patched`: what patches of the spec have changed.
    """

    __slots__ = ("body", "cluster", "holds_data", "item", "owned", "patch", "patched")

    def __init__(
        self,
        item: Item,
        cluster: str,
        body: Body,
        *,
        holds_data: bool = False,
        patch: bool = False,
        owned: tuple[str, ...] = (),
    ) -> None:
        self.item = item
        self.cluster = cluster
        self.body = body
        self.holds_data = holds_data
        self.patch = patch
        self.owned = owned
        self.patched: tuple[Patched, ...] = ()

    @property
    def kind(self) -> str:
        kind: str = self.body["kind"]
        return kind

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        """Namespace, or "" for a cluster-scoped object."""
        namespace: str = self.body["metadata"].get("namespace", "")
        return namespace

    @property
    def id(self) -> ObjectId:
        return ObjectId(self.cluster, ObjectKey.of(self.body))

    @property
    def stack(self) -> str:
        """Pulumi stack and directory: `CLUSTER` for the platform's objects, `CLUSTER.TEAM` for a team's."""
        team = self.item.team
        return f"{self.cluster}.{team}" if team else self.cluster

    def to_yaml(self) -> str:
        """Return the object as YAML, as `avactl render` writes it."""
        from avactl.base.yaml_output import dump  # a compile needs no text

        return dump(self.body)

    def __repr__(self) -> str:
        return f"<{self.id} of {self.item}>"
