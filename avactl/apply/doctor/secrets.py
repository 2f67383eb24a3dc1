"""Secrets that compiled objects refer to: namespace, name and keys, never values."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.program.lowering.exposure import ISSUER
from avactl.program.lowering.pods import GIT_SECRET
from avactl.program.manifest import Manifest

GENERIC, REGISTRY, TLS = "Opaque", "kubernetes.io/dockerconfigjson", "kubernetes.io/tls"
_REGISTRY_KEY = ".dockerconfigjson"
DEFINITIONS = frozenset(("CustomResourceDefinition",))
"""Kinds that name fields of other kinds, and refer to nothing."""
_LOGIN_KEYS = {
    GIT_SECRET: (("ssh-privatekey",), ("username", "password")),
    "/etc/git-credentials": (("username", "password"),),
    "/etc/avactl/git": (("username", "password"),),
}
"""Keys that avactl's own containers read from a mounted Secret, by mount path: those of one of the alternatives."""
_CSI_KEYS = {"csi.juicefs.com": ("name", "metaurl")}
"""Keys that CSI drivers read. Source: https://juicefs.com/docs/csi/guide/pv#volume-credentials"""
_CONTROLLER_LOGINS = {"GitRepository": (("identity", "known_hosts"), ("username", "password"))}
"""Keys that controllers read. Source: https://fluxcd.io/flux/components/source/gitrepositories/#secret-reference"""


class SecretReference(NamedTuple):
    """One use of a Secret."""

    namespace: str
    name: str
    keys: tuple[str, ...] = ()
    optional: bool = False
    """True if a pod starts without it."""
    type: str = GENERIC
    alternatives: tuple[tuple[str, ...], ...] = ()


@dataclass(slots=True)
class SecretNeed:
    """A Secret that must exist in a cluster before the objects that refer to it work."""

    cluster: str
    namespace: str
    name: str
    type: str = GENERIC
    keys: set[str] = field(default_factory=set)
    """Keys without which a pod does not start."""
    optional_keys: set[str] = field(default_factory=set)
    alternatives: tuple[tuple[str, ...], ...] = ()
    """Sets of keys, one of which must be there."""
    optional: bool = True
    """True if pods start without the Secret."""
    users: set[str] = field(default_factory=set)
    """Specs that refer to it."""

    def lacks(self, present: Iterable[str]) -> str:
        """Return the missing keys in words; empty if a Secret with these keys is complete."""
        there = set(present)
        missing = sorted(self.keys - there)
        if self.alternatives and not any(there.issuperset(each) for each in self.alternatives):
            missing.append(" or ".join(" + ".join(each) for each in self.alternatives))
        return ", ".join(missing)

    def command(self) -> str:
        """Return the kubectl command that creates it. `FILE` stands for a file that holds only the value."""
        words = ["kubectl", "--namespace", self.namespace, "create", "secret"]
        if self.type == TLS:
            return shlex.join([*words, "tls", self.name, "--cert=FILE", "--key=FILE"])
        words += ["generic", self.name]
        if self.type != GENERIC:
            words.append(f"--type={self.type}")
        keys = sorted(self.keys | self.optional_keys) + list(self.alternatives[0] if self.alternatives else ())
        return shlex.join([*words, *(f"--from-file={key}=FILE" for key in dict.fromkeys(keys) or ("KEY",))])


def needed_secrets(manifests: Iterable[Manifest]) -> list[SecretNeed]:
    """Return the Secrets that objects refer to and that no object makes, by cluster, namespace and name."""
    found: dict[tuple[str, str, str], SecretNeed] = {}
    made = set()
    for manifest in manifests:
        if name := made_by(manifest.body):
            made.add((manifest.cluster, manifest.namespace, name))
        for use in secret_references(manifest.body):
            key = (manifest.cluster, use.namespace, use.name)
            need = found.setdefault(key, SecretNeed(*key))
            need.users.add(str(manifest.item))
            need.optional = need.optional and use.optional
            (need.optional_keys if use.optional else need.keys).update(use.keys)
            if use.type != GENERIC:
                need.type = use.type
            need.alternatives = need.alternatives or use.alternatives
    for need in found.values():
        need.optional_keys -= need.keys
    return [found[key] for key in sorted(found.keys() - made)]


def made_by(body: Mapping[str, Any]) -> str:
    """Return the name of the Secret that an object is, or that an operator makes from it; empty if there is none."""
    name, spec = str(body["metadata"]["name"]), body.get("spec")
    match body["kind"], spec:
        case "Secret" | "SealedSecret", _:
            return name
        case "ExternalSecret", {"target": {"name": str(target)}}:
            return target
        case "ExternalSecret", _:
            return name
        case "Certificate", {"secretName": str(target)}:
            return target
        case "Ingress", {"tls": [{"secretName": str(target)}, *_]} if ISSUER in (
            body["metadata"].get("annotations") or {}
        ):
            return target
    return ""


def secret_references(body: Mapping[str, Any]) -> Iterator[SecretReference]:
    """Yield the Secrets that an object refers to, of any kind and also as somebody else wrote it."""
    if body["kind"] in DEFINITIONS:
        return
    namespace = str(body["metadata"].get("namespace", ""))
    alternatives = _CONTROLLER_LOGINS.get(str(body["kind"]), ())
    for use in _walk({key: value for key, value in body.items() if key != "metadata"}, "", {}):
        yield use._replace(namespace=use.namespace or namespace, alternatives=use.alternatives or alternatives)


def _walk(value: Any, parent: str, mounts: Mapping[str, str]) -> Iterator[SecretReference]:
    if isinstance(value, list):
        for each in value:
            yield from _walk(each, parent, mounts)
        return
    if not isinstance(value, dict):
        return
    if isinstance(value.get("containers"), list):
        containers = [*value["containers"], *(value.get("initContainers") or ())]
        mounts = {
            str(mount.get("name")): str(mount.get("mountPath"))
            for each in _list_mappings(containers)
            for mount in _list_mappings(each.get("volumeMounts"))
        }
    logins = _LOGIN_KEYS.get(mounts.get(str(value.get("name")), ""), ()) if parent == "volumes" else ()
    for key, inner in value.items():
        match key, inner:
            case "secretKeyRef", {"name": str(name)}:
                yield SecretReference("", name, _entry_keys([inner]), bool(inner.get("optional")))
            case "secret", {"secretName": str(name)} | {"name": str(name)} if isinstance(inner, dict):
                keys = _entry_keys(inner.get("items") or [inner])
                yield SecretReference("", name, keys, bool(inner.get("optional")), alternatives=logins)
            case "urlSecret", {"name": str(name)}:
                yield SecretReference("", name, _entry_keys([inner]))
            case "secretName", str(name) if parent == "tls":
                yield SecretReference("", name, ("tls.crt", "tls.key"), type=TLS)
            case "imagePullSecrets", list():
                for entry in _list_mappings(inner):
                    yield SecretReference("", str(entry.get("name")), (_REGISTRY_KEY,), type=REGISTRY)
            case "certificateRefs", list():
                for entry in _list_mappings(inner):
                    if entry.get("kind", "Secret") == "Secret":
                        where, name = str(entry.get("namespace") or ""), str(entry.get("name"))
                        yield SecretReference(where, name, ("tls.crt", "tls.key"), type=TLS)
            case "secretRef", {"name": str(name)}:
                yield SecretReference(str(inner.get("namespace", "")), name, optional=bool(inner.get("optional")))
            case str(), {"name": str(name)} if key.endswith("SecretRef"):
                driver = str(value.get("driver", ""))
                yield SecretReference(str(inner.get("namespace", "")), name, _CSI_KEYS.get(driver, ()))
            case _:
                yield from _walk(inner, key, mounts)


def _entry_keys(entries: Any) -> tuple[str, ...]:
    return tuple(str(entry["key"]) for entry in _list_mappings(entries) if "key" in entry)


def _list_mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
