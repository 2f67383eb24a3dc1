"""Path of each object's file.

`CLUSTER/TEAM/NAMESPACE/KIND-NAME.yaml`; the platform's objects are in `CLUSTER/_platform`, cluster-scoped objects in
`_cluster`. Both sort before all names, so that `kubectl apply -R -f` creates namespaces before their contents. A path
does not depend on other objects.
"""

from __future__ import annotations

import re
from hashlib import sha256

from avactl.program.manifest import Manifest

PLATFORM = "_platform"
NO_NAMESPACE = "_cluster"

_UNSAFE = re.compile(r"[^a-z0-9.-]")
# Longer than any name that Kubernetes derives pods from; file systems allow 255 bytes including kind and suffix.
_LONGEST = 180
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))])


def _safe(name: str) -> str:
    """Return a name as a path component on any file system; names that differ only by case stay distinct."""
    if len(name) <= _LONGEST and not _UNSAFE.search(name):
        return f"{name}_" if name in _DEVICES else name
    # `_` does not occur in safe names, so this path is unique.
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_UNSAFE.sub('-', name.lower())[:_LONGEST]}_{digest}"


def _kind(group: str, kind: str) -> str:
    """Return Kubernetes' own kinds by name, others with their group, because names repeat (Service, Cluster)."""
    if "." in group and not group.endswith(".k8s.io"):
        return _safe(f"{kind}.{group}".lower())
    return _safe(kind.lower())


def object_path(manifest: Manifest) -> str:
    """Return the unique path of an object's file below the output directory, with `/`."""
    cluster, (group, kind, namespace, name) = manifest.id
    team = manifest.item.team
    owner = _safe(team) if team else PLATFORM
    place = _safe(namespace) if namespace else NO_NAMESPACE
    return f"{_safe(cluster)}/{owner}/{place}/{_kind(group, kind)}-{_safe(name)}.yaml"
