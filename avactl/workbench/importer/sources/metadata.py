"""Metadata that every object has: labels, annotations and finalizers."""

from __future__ import annotations

from collections.abc import Collection

from avactl.contracts.foreign_keys import key_owner
from avactl.spec.documents.document import Path
from avactl.workbench.importer.cleaning import clean_object, hooks
from avactl.workbench.importer.model import Body, GivenValue, ImportedSpec, ImportReader

CARRIED = ("*",)
"""All labels and annotations, which patches carry over."""


def take_common(reader: ImportReader, kept: Collection[str] = ()) -> None:
    """Take what each object has, and specs have in another form. `kept`: labels and annotations that are read."""
    for key in ("apiVersion", "kind", "status"):
        reader.take(key)
    given = reader.given
    for key in given.value["metadata"]:
        if key not in ("labels", "annotations"):
            reader.take("metadata", key)
    if given.get("metadata", "finalizers"):
        reader.lose(("metadata", "finalizers"), "objects of avactl have finalizers of their own", "")
    if kept != CARRIED:
        list_hooks(reader)
    own = clean_object(given.value)["metadata"]
    for group in ("labels", "annotations"):
        reader.take("metadata", group)
        for key in own.get(group) or ():
            if key == "kueue.x-k8s.io/queue-name":
                reader.lose(("metadata", group, key), "the quota of the team takes the place of queues", "")
            elif key not in kept and kept != CARRIED:
                why = f"objects of avactl have {group} of their own"
                reader.lose(("metadata", group, key), why, "add it by `patches`, if anything selects by it")


def list_hooks(reader: ImportReader) -> None:
    """Record the annotations that tell a deployment tool when and how to apply the object."""
    for key in hooks(reader.given.value["metadata"]):
        why = "objects of all specs are applied together, in the order of their kinds"
        reader.lose(("metadata", "annotations", key), why, "start a job again by a change of its spec")


def add_patch(spec: ImportedSpec, kind: str, merge: Body, given: GivenValue, path: Path, name: str = "") -> None:
    """Add a patch of one value, with the place that it comes from."""
    target = {"kind": kind, "name": name} if name else {"kind": kind}
    spec.origins["patches", len(spec.patches)] = (given, path)
    spec.patches.append({"target": target, "merge": merge})


def keep_metadata(reader: ImportReader, spec: ImportedSpec, kind: str, name: str = "") -> None:
    """Keep the labels and annotations of an object by patches; list those that belong to others."""
    list_hooks(reader)
    cleaned = clean_object(reader.given.value)["metadata"]
    for group in ("labels", "annotations"):
        reader.take("metadata", group)
        foreign = {key: value for key, value in (cleaned.get(group) or {}).items() if key_owner(key)}
        for key, value in (cleaned.get(group) or {}).items():
            if key not in foreign:
                path = ("metadata", group, key)
                add_patch(spec, kind, {"metadata": {group: {key: str(value)}}}, reader.given, path, name)
        if foreign:
            told = ", ".join(f"{key}: {value}"[:120] for key, value in foreign.items())
            owners = " and ".join(dict.fromkeys(map(key_owner, foreign)))
            reader.note(("metadata", group), f"they belong to {owners}: {told}", "")
