"""Secrets that compiled objects refer to: namespace, name and keys, never values."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.kinds.lowering.pods import GIT_SECRET
from avactl.kinds.manifest import Manifest

GENERIC, REGISTRY, TLS = "Opaque", "kubernetes.io/dockerconfigjson", "kubernetes.io/tls"
_REGISTRY_KEY = ".dockerconfigjson"
_LOGINS = {
    GIT_SECRET: (("ssh-privatekey",), ("username", "password")),
    "/etc/git-credentials": (("username", "password"),),
}
"""Keys that avactl's own containers read from a mounted Secret, by mount path: those of one of the alternatives."""
_CSI_KEYS = {"csi.juicefs.com": ("name", "metaurl")}
"""Keys that CSI drivers read. Source: https://juicefs.com/docs/csi/guide/pv#volume-credentials"""
_CONTROLLER_LOGINS = {"GitRepository": (("identity", "known_hosts"), ("username", "password"))}
"""Keys that controllers read. Source: https://fluxcd.io/flux/components/source/gitrepositories/#secret-reference"""


class Reference(NamedTuple):
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
    """Return the Secrets that objects refer to and that are not among the objects, by cluster, namespace and name."""
    found: dict[tuple[str, str, str], SecretNeed] = {}
    made = set()
    for manifest in manifests:
        if manifest.kind == "Secret":
            made.add((manifest.cluster, manifest.namespace, manifest.name))
        for use in references(manifest.body):
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


def references(body: Mapping[str, Any]) -> Iterator[Reference]:
    """Yield the Secrets that an object refers to."""
    namespace = str(body["metadata"].get("namespace", ""))
    alternatives = _CONTROLLER_LOGINS.get(str(body["kind"]), ())
    for use in _walk({key: value for key, value in body.items() if key != "metadata"}, "", {}):
        yield use._replace(namespace=use.namespace or namespace, alternatives=use.alternatives or alternatives)


def _walk(value: Any, parent: str, mounts: Mapping[str, str]) -> Iterator[Reference]:
    if isinstance(value, list):
        for each in value:
            yield from _walk(each, parent, mounts)
        return
    if not isinstance(value, dict):
        return
    if "containers" in value and "volumes" in value:
        containers = [*value["containers"], *value.get("initContainers", ())]
        mounts = {mount["name"]: mount["mountPath"] for each in containers for mount in each.get("volumeMounts", ())}
    logins = _LOGINS.get(mounts.get(str(value.get("name")), ""), ()) if parent == "volumes" else ()
    for key, inner in value.items():
        match key, inner:
            case "secretKeyRef", {"name": str(name)}:
                yield Reference("", name, (str(inner["key"]),), bool(inner.get("optional")))
            case "secret", {"secretName": str(name)} | {"name": str(name)} if isinstance(inner, dict):
                keys = tuple(str(item["key"]) for item in inner.get("items") or ([inner] if "key" in inner else ()))
                yield Reference("", name, keys, bool(inner.get("optional")), alternatives=logins)
            case "secretName", str(name) if parent == "tls":
                yield Reference("", name, ("tls.crt", "tls.key"), type=TLS)
            case "imagePullSecrets", list():
                for entry in inner:
                    yield Reference("", str(entry["name"]), (_REGISTRY_KEY,), type=REGISTRY)
            case "certificateRefs", list():
                for entry in inner:
                    if entry.get("kind", "Secret") == "Secret":
                        where = str(entry.get("namespace", ""))
                        yield Reference(where, str(entry["name"]), ("tls.crt", "tls.key"), type=TLS)
            case "secretRef", {"name": str(name)}:
                yield Reference(str(inner.get("namespace", "")), name, optional=bool(inner.get("optional")))
            case str(), {"name": str(name)} if key.endswith("SecretRef"):
                driver = str(value.get("driver", ""))
                yield Reference(str(inner.get("namespace", "")), name, _CSI_KEYS.get(driver, ()))
            case _:
                yield from _walk(inner, key, mounts)
