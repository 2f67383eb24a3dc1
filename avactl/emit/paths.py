"""Where the file of each object goes.

`CLUSTER/TEAM/NAMESPACE/KIND-NAME.yaml`; the platform's own objects are below `CLUSTER/_platform`, objects without a
namespace below `_cluster`. Both sort before all names, so that `kubectl apply -R -f` meets namespaces before what is in
them. Nothing in a path depends on other objects.
"""

from __future__ import annotations

import re
from hashlib import sha256

from avactl.kinds.manifest import Manifest

PLATFORM = "_platform"
NO_NAMESPACE = "_cluster"

_UNSAFE = re.compile(r"[^a-z0-9.-]")
# Longer than any name that Kubernetes derives pods from; file systems end at 255 bytes with kind and suffix.
_LONGEST = 180
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))])


def _safe(name: str) -> str:
    """A name as part of a path on every file system: two names that differ only by case stay two."""
    if len(name) <= _LONGEST and not _UNSAFE.search(name):
        return f"{name}_" if name in _DEVICES else name
    # `_` is in no name that is safe as it is, so this cannot be another object's path.
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_UNSAFE.sub('-', name.lower())[:_LONGEST]}_{digest}"


def _kind(group: str, kind: str) -> str:
    """Kubernetes' own kinds by name alone; those of others with their group, since names repeat (Service, Cluster)."""
    if "." in group and not group.endswith(".k8s.io"):
        return f"{kind}.{group}".lower()
    return kind.lower()


def object_path(manifest: Manifest) -> str:
    """The path of an object's file below the output directory, with `/`. No two objects have the same."""
    cluster, group, kind, namespace, name = manifest.id
    team = manifest.item.team
    owner = _safe(team) if team else PLATFORM
    place = _safe(namespace) if namespace else NO_NAMESPACE
    return f"{_safe(cluster)}/{owner}/{place}/{_kind(group, kind)}-{_safe(name)}.yaml"
