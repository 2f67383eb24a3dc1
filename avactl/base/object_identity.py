"""Identities of Kubernetes objects, and of their kinds.

Here, below all that reads or writes objects: the Kubernetes client and the scheduler may not import the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Gvk(NamedTuple):
    """Group, version and kind of an object."""

    api_version: str
    kind: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Gvk:
        """Read the apiVersion and kind of an object."""
        return cls(body["apiVersion"], body["kind"])

    def __str__(self) -> str:
        return f"{self.kind} ({self.api_version})"


def defined_kinds(definition: Mapping[str, Any]) -> set[Gvk]:
    """Return the kinds that a CustomResourceDefinition makes the API server serve; none for a malformed one."""
    match definition.get("spec"):
        case {"group": str(group), "names": {"kind": str(kind)}, "versions": list(versions)}:
            served = (each for each in versions if isinstance(each, dict) and "name" in each and each.get("served"))
            return {Gvk(f"{group}/{each['name']}", kind) for each in served}
    return set()


def controller_of(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the owner reference to the controller of an object; empty if it has none."""
    owners = metadata.get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), {})


class ObjectKey(NamedTuple):
    """Identity of an object in one cluster. Excludes the API version, which may change."""

    group: str
    kind: str
    namespace: str
    """Empty for a cluster-scoped object."""
    name: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ObjectKey:
        """Return the key of an object."""
        metadata = body["metadata"]
        group = body["apiVersion"].rpartition("/")[0]
        return cls(group, body["kind"], metadata.get("namespace", ""), metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class ObjectId(NamedTuple):
    """Identity of an object in one of several clusters."""

    cluster: str
    key: ObjectKey

    @property
    def group(self) -> str:
        return self.key.group

    @property
    def kind(self) -> str:
        return self.key.kind

    @property
    def namespace(self) -> str:
        return self.key.namespace

    @property
    def name(self) -> str:
        return self.key.name

    def __str__(self) -> str:
        return str(self.key)


def namespaced_name(item: Mapping[str, Any]) -> str:
    """Return `namespace/name`, or the name of an object without a namespace: the key of an object among its kind."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    name: str = metadata["name"]
    return f"{namespace}/{name}" if namespace else name


def object_reference(api_version: str, kind: str, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the reference to an object by its metadata, as Events have it."""
    known = {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}
    return {"apiVersion": api_version, "kind": kind, **known}
