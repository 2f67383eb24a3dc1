"""A stack's state, as the engine exports it: whether it is what is declared, and the record of an unfinished run. Pure.

The engine writes the state once, at the end of a run. Before a run that changes something, the state therefore gets a
record of the objects that the run creates, changes or deletes: an output of the stack's own resource, which the program
of a run that ends replaces by none. A state with a record is that of a run that failed or was killed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from avactl.apply.pulumi.resource_plan import PROJECT, make_urn, manifest_parent, manifest_urn
from avactl.base.equality import is_same
from avactl.base.object_identity import Gvk, ObjectKey
from avactl.change.diff.fields import object_differences
from avactl.program.manifest import Manifest

_STACK_TYPE = "pulumi:pulumi:Stack"
_PROVIDER_TYPE = "pulumi:providers:kubernetes"
_RECORD = "unfinished"
"""Output of the stack's resource: the fields of ObjectRefs, as lists of strings."""
_UNSETTLED = ("delete", "pendingReplacement", "external", "initErrors", "taint")
"""Fields of a resource that the engine acts upon although its inputs are the declared ones."""


class ObjectRef(NamedTuple):
    """An object, with the API version by which it is read."""

    api_version: str
    kind: str
    namespace: str
    """Empty for a cluster-scoped object."""
    name: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> ObjectRef:
        """Return the reference to an object."""
        metadata = body["metadata"]
        return cls(body["apiVersion"], body["kind"], metadata.get("namespace", ""), metadata["name"])

    @property
    def gvk(self) -> Gvk:
        """Its kind."""
        return Gvk(self.api_version, self.kind)

    @property
    def key(self) -> ObjectKey:
        """Its identity."""
        return ObjectKey(self.api_version.rpartition("/")[0], self.kind, self.namespace, self.name)


def is_declared(
    deployment: Mapping[str, Any] | None,
    manifests: Iterable[Manifest],
    stack: str,
    *,
    provider_inputs: Mapping[str, str],
    excluded: Collection[str] = (),
    forgets: bool = False,
) -> bool:
    """Return True if the state holds exactly the declared resources, so that the engine has nothing to do.

    Compares what the engine compares: the inputs of the last run, or of the cluster if the state was refreshed, in
    which the API server may have written a quantity in another notation.
    `excluded` are URNs that it leaves alone, `forgets` is as for `resources.register_objects`.
    """
    state = deployment or {}
    root = make_urn(stack, "", _STACK_TYPE, f"{PROJECT}-{stack}")
    bodies: dict[str, Any] = {}
    declared: dict[str, tuple[str, bool, bool]] = {}
    for manifest in manifests:
        parent, urn = manifest_parent(manifest, stack), manifest_urn(manifest, stack)
        declared[parent] = (root, False, False)
        declared[urn] = (parent, manifest.holds_data and not forgets, manifest.holds_data and forgets)
        bodies[urn] = manifest.body
    found: dict[str, tuple[str, bool, bool]] = {}
    for resource in state.get("resources") or ():
        urn, token, inputs = resource["urn"], resource["type"], resource.get("inputs") or {}
        if token == _PROVIDER_TYPE:
            if {key: value for key, value in inputs.items() if key != "__internal"} != provider_inputs:
                return False
        elif token != _STACK_TYPE and (urn in declared or urn not in excluded):
            if urn in found or any(resource.get(name) for name in _UNSETTLED):
                return False
            if urn in bodies and not is_equal(inputs, bodies[urn]):
                return False
            found[urn] = (
                resource.get("parent", ""),
                bool(resource.get("protect")),
                bool(resource.get("retainOnDelete")),
            )
    return bool(declared) and found == declared and not state.get("pending_operations")


def is_equal(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two objects are the same but for the notation of quantities."""
    return is_same(old, new) or not object_differences(dict(old), dict(new))


def with_record(deployment: Mapping[str, Any] | None, stack: str, touched: Iterable[ObjectRef]) -> dict[str, Any]:
    """Return a state with the record of a run that touches these objects, for `pulumi stack import`."""
    state = dict(deployment or {})
    resources = [dict(resource) for resource in state.get("resources") or ()]
    root = next((resource for resource in resources if resource["type"] == _STACK_TYPE), None)
    if root is None:
        root = {"urn": make_urn(stack, "", _STACK_TYPE, f"{PROJECT}-{stack}"), "custom": False, "type": _STACK_TYPE}
        resources.insert(0, root)
    root["outputs"] = {**(root.get("outputs") or {}), _RECORD: [list(ref) for ref in touched]}
    return {**state, "resources": resources}


def read_record(deployment: Mapping[str, Any] | None) -> list[ObjectRef] | None:
    """Return the objects that an unfinished run was to touch; None if the last run wrote the state."""
    for resource in (deployment or {}).get("resources") or ():
        if resource["type"] == _STACK_TYPE and _RECORD in (resource.get("outputs") or {}):
            return [ObjectRef(*entry) for entry in resource["outputs"][_RECORD]]
    return None
