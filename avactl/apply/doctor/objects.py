"""ConfigMaps, PersistentVolumeClaims and Services that compiled objects name and that no compiled object makes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from avactl.apply.doctor.secrets import DEFINITIONS
from avactl.program.manifest import Body, Manifest
from avactl.program.references import CLAIM, CONFIG_MAP, PodReference, find_references, keys_of

SERVICE = "Service"
_ROOT_CA_CONFIG_MAP = "kube-root-ca.crt"
"""ConfigMap that Kubernetes writes into every namespace."""
_ORDINAL_SUFFIX = re.compile(r"-(0|[1-9][0-9]{0,8})$")


@dataclass(slots=True)
class ObjectNeed:
    """An object that must exist in a cluster before the pods that name it start."""

    kind: str
    namespace: str
    name: str
    keys: set[str] = field(default_factory=set)
    """Keys of a ConfigMap without which a pod does not start."""
    optional: bool = True
    """True if pods start without it."""
    users: set[str] = field(default_factory=set)
    """Specs whose pods name it."""

    def lacks(self, present: Iterable[str]) -> str:
        """Return the missing keys in words; empty if there are none."""
        return ", ".join(sorted(self.keys - set(present)))

    def remedy(self) -> str:
        """Return how to make it. `FILE` stands for a file with the value."""
        if self.kind == SERVICE:
            return f"install the endpoint picker in namespace {self.namespace}, with this Service"
        if self.kind == CLAIM:
            return f"create it in namespace {self.namespace}, or declare it in a KubernetesObjects spec"
        words = ["kubectl", "--namespace", self.namespace, "create", "configmap", self.name]
        return f"`{shlex.join([*words, *(f'--from-file={key}=FILE' for key in sorted(self.keys) or ('KEY',))])}`"


def needed_objects(manifests: Iterable[Manifest]) -> list[ObjectNeed]:
    """Return the ConfigMaps, claims and Services of one cluster that objects name and none makes, by kind and name."""
    found: dict[tuple[str, str, str], ObjectNeed] = {}
    made: dict[tuple[str, str, str], frozenset[str]] = {}
    sets: set[tuple[str, str]] = set()
    for manifest in manifests:
        if manifest.kind in DEFINITIONS or not manifest.namespace:
            continue
        if manifest.kind in (CLAIM, CONFIG_MAP, SERVICE):
            made[manifest.kind, manifest.namespace, manifest.name] = keys_of(manifest.body)
        elif manifest.kind == "StatefulSet":
            sets.update((manifest.namespace, f"{name}-{manifest.name}") for name in _claim_templates(manifest.body))
        for use in (
            *find_references({key: value for key, value in manifest.body.items() if key != "metadata"}),
            *_picker_references(manifest.body),
        ):
            need = found.setdefault(
                (use.kind, manifest.namespace, use.name), ObjectNeed(use.kind, manifest.namespace, use.name)
            )
            need.users.add(str(manifest.item))
            need.optional = need.optional and use.optional
            if not use.optional:
                need.keys.update(key for key, _ in use.keys)
    return [need for key, need in sorted(found.items()) if key not in made and not _is_made_by_kubernetes(need, sets)]


def _picker_references(body: Body) -> Iterator[PodReference]:
    """Yield the Service that an InferencePool names."""
    match body:
        case {"kind": "InferencePool", "spec": {"endpointPickerRef": {"name": str(name), **other}}}:
            if other.get("kind", SERVICE) == SERVICE:
                yield PodReference(SERVICE, name, ("spec", "endpointPickerRef", "name"))


def _claim_templates(stateful_set: Body) -> list[str]:
    spec = stateful_set.get("spec")
    templates = spec.get("volumeClaimTemplates") if isinstance(spec, dict) else None
    metadata = [each.get("metadata") for each in templates or () if isinstance(each, dict)]
    return [str(each.get("name")) for each in metadata if isinstance(each, dict)]


def _is_made_by_kubernetes(need: ObjectNeed, sets: set[tuple[str, str]]) -> bool:
    """Return True if Kubernetes makes the object itself: for a namespace, or for a pod of a StatefulSet."""
    if need.kind == CONFIG_MAP:
        return need.name == _ROOT_CA_CONFIG_MAP
    return (need.namespace, _ORDINAL_SUFFIX.sub("", need.name)) in sets and bool(_ORDINAL_SUFFIX.search(need.name))
