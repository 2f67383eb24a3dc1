"""Former contents of a stack, from an engine's state or an older revision, and the aliases that preserve it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.apply.pulumi.resource_plan import component_name, component_type, manifest_parent, manifest_urn
from avactl.base.object_identity import ObjectKey
from avactl.compiler.rename import Candidate, content_leaves, match_renames
from avactl.program.manifest import Body, Manifest

_COMPONENT_TYPE = component_type("")
_INSTANCE_LABEL = "app.kubernetes.io/instance"
_Name = tuple[str, str]  # kind and component name


class PastObject(NamedTuple):
    """A former object of a stack."""

    urn: str
    parent: str
    body: Body
    protected: bool
    needs: tuple[str, ...] = ()
    """URNs of its dependencies."""


@dataclass(frozen=True, slots=True)
class Past:
    """The former stack: objects by key, components by type and name."""

    objects: Mapping[tuple[ObjectKey, bool], PastObject] = field(default_factory=dict)
    """(key, True for a patch) → the object."""
    components: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(kind, component name) → URN."""


@dataclass(frozen=True, slots=True)
class Aliases:
    """Former URNs, by the key of a spec and by the URN of an object."""

    specs: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    """Base name of the objects of a renamed spec, by the key of the spec."""


def from_state(deployment: Mapping[str, Any] | None) -> Past:
    """Read the former stack from an export (`pulumi stack export`)."""
    objects: dict[tuple[ObjectKey, bool], PastObject] = {}
    components: dict[tuple[str, str], str] = {}
    for resource in (deployment or {}).get("resources") or ():
        token, name = resource["type"], resource["urn"]
        if token.startswith(_COMPONENT_TYPE):
            components[token.removeprefix(_COMPONENT_TYPE), name.rpartition("::")[2]] = name
        elif token.startswith("kubernetes:") and not resource.get("delete"):
            body = resource.get("inputs") or {}
            if "apiVersion" in body and "metadata" in body:
                needed = tuple(resource.get("dependencies") or ())
                entry = PastObject(name, resource.get("parent", ""), body, bool(resource.get("protect")), needed)
                objects[ObjectKey.of(body), token.endswith("Patch")] = entry
    return Past(objects, components)


def from_manifests(manifests: Iterable[Manifest], stack: str) -> Past:
    """Build the former stack from the manifests of an older revision."""
    objects: dict[tuple[ObjectKey, bool], PastObject] = {}
    components: dict[tuple[str, str], str] = {}
    for manifest in manifests:
        item = manifest.item
        parent = manifest_parent(manifest, stack)
        components[item.kind, component_name(item)] = parent
        entry = PastObject(manifest_urn(manifest, stack), parent, manifest.body, manifest.holds_data)
        objects[ObjectKey.of(manifest.body), manifest.patch] = entry
    return Past(objects, components)


def former_urns(past: Past, manifests: Iterable[Manifest], stack: str) -> Aliases:
    """Return the former URNs of the declared resources.

    An object is identified by its name in the cluster, so it stays the same resource when its spec changes. A renamed
    spec's component is identified by content; objects with a new name get it as an alias, so that they are replaced in
    one change instead of being created and deleted.
    """
    wanted = list(manifests)
    specs = _renamed_specs(past, wanted)
    bases = _component_bases(past)
    names = {key: bases[urn] for key, urn in specs.items() if urn in bases}
    present = {(ObjectKey.of(manifest.body), manifest.patch) for manifest in wanted}
    objects: dict[str, str] = {}
    for manifest in wanted:
        before = past.objects.get((ObjectKey.of(manifest.body), manifest.patch))
        if before is None and manifest.item.key in names:
            before = _former_object(past, present, manifest, names[manifest.item.key])
        now = manifest_urn(manifest, stack)
        if before is not None and before.urn != now:
            objects[now] = before.urn
    return Aliases(specs, objects, names)


def _component_bases(past: Past) -> dict[str, str]:
    """Return component URN → base name of its objects, from their common label."""
    found: dict[str, str] = {}
    for entry in past.objects.values():
        if name := entry.body["metadata"].get("labels", {}).get(_INSTANCE_LABEL):
            found[entry.parent] = name
    return found


def kept_objects(past: Past, manifests: Iterable[Manifest], former: Aliases) -> list[PastObject]:
    """Return protected objects whose specs were removed: updates leave them alone to keep their data.

    Excludes those of renamed specs, which the engine would refuse to replace by empty ones.
    """
    present = {(ObjectKey.of(manifest.body), manifest.patch) for manifest in manifests}
    followed = set(former.objects.values())
    return [
        entry
        for key, entry in past.objects.items()
        if entry.protected and key not in present and entry.urn not in followed
    ]


def left_alone(past: Past, keep: Iterable[PastObject]) -> set[str]:
    """Return the URNs these objects need: their components and dependencies."""
    by_urn = {entry.urn: entry for entry in past.objects.values()}
    found: set[str] = set()
    waiting = list(keep)
    while waiting:
        entry = waiting.pop()
        if entry.urn not in found:
            found |= {entry.urn, entry.parent} - {""}
            waiting += [by_urn[urn] for urn in entry.needs if urn in by_urn]
    return found


def _renamed_specs(past: Past, wanted: list[Manifest]) -> dict[tuple[str, str, str], str]:
    """Return key of a renamed spec → URN of its former component.

    A spec that adopts objects by `objectName` is identified by them; others by content.
    """
    new: dict[_Name, list[Manifest]] = {}
    present: set[_Name] = set()
    for manifest in wanted:
        here = (manifest.item.kind, component_name(manifest.item))
        present.add(here)
        if here not in past.components:
            new.setdefault(here, []).append(manifest)
    gone = {old: here for here, old in past.components.items() if here not in present}
    if not gone or not new:
        return {}
    found: dict[_Name, str] = {}
    for here, manifests in new.items():
        for manifest in manifests:
            before = past.objects.get((ObjectKey.of(manifest.body), manifest.patch))
            if before is not None and gone.get(before.parent, ("",))[0] == here[0]:
                found[here] = before.parent
                del gone[before.parent]
                break
    lost: dict[str, list[Body]] = {}
    # Of an earlier removed spec only data is left; a similar new spec is not a rename.
    alive = {entry.parent for entry in past.objects.values() if not entry.protected}
    for entry in past.objects.values():
        if entry.parent in gone and entry.parent in alive:
            lost.setdefault(entry.parent, []).append(entry.body)
    bases = _component_bases(past)
    old = [_make_candidate(parent, gone[parent], bases.get(parent, ""), bodies) for parent, bodies in lost.items()]
    fresh = [
        _make_candidate(here, here, manifests[0].item.name, [m.body for m in manifests])
        for here, manifests in new.items()
        if here not in found
    ]
    matched = match_renames(old, fresh)
    urns: dict[Hashable, Any] = {**matched}
    urns.update(found)
    return {manifests[0].item.key: str(urns[here]) for here, manifests in new.items() if here in urns}


def _make_candidate(key: Hashable, here: _Name, name: str, bodies: list[Body]) -> Candidate:
    """Describe a spec by its objects, which are named after `name`."""
    kind, component = here
    team = component.rpartition("/")[0]
    by_kind: dict[str, list[Body]] = {}
    for body in sorted(bodies, key=lambda body: str(body["metadata"]["name"])):
        by_kind.setdefault(body["kind"], []).append(body)
    return Candidate(key, (kind, team), content_leaves(by_kind, name))


def _former_object(
    past: Past, present: set[tuple[ObjectKey, bool]], manifest: Manifest, former: str
) -> PastObject | None:
    """Return the former object that an object replaces under a new name, unless it is still declared."""
    key, name = ObjectKey.of(manifest.body), manifest.item.name
    if not (key.name == name or key.name.startswith(f"{name}-")):
        return None
    before = (key._replace(name=former + key.name.removeprefix(name)), manifest.patch)
    return past.objects.get(before) if before not in present else None
