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

_UNSAFE_CHARACTERS = re.compile(r"[^a-z0-9.-]")
# Longer than any name that Kubernetes derives pods from; file systems allow 255 bytes including kind and suffix.
_MAX_NAME_LENGTH = 180
_DEVICE_NAMES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))])


def _safe_name(name: str) -> str:
    """Return a name as a path component on any file system; names that differ only by case stay distinct."""
    if len(name) <= _MAX_NAME_LENGTH and not _UNSAFE_CHARACTERS.search(name):
        return f"{name}_" if name in _DEVICE_NAMES else name
    # `_` does not occur in safe names, so this path is unique.
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_UNSAFE_CHARACTERS.sub('-', name.lower())[:_MAX_NAME_LENGTH]}_{digest}"


def _kind_name(group: str, kind: str) -> str:
    """Return Kubernetes' own kinds by name, others with their group, because names repeat (Service, Cluster)."""
    if "." in group and not group.endswith(".k8s.io"):
        return _safe_name(f"{kind}.{group}".lower())
    return _safe_name(kind.lower())


def object_path(manifest: Manifest) -> str:
    """Return the unique path of an object's file below the output directory, with `/`."""
    cluster, (group, kind, namespace, name) = manifest.id
    team = manifest.item.team
    owner = _safe_name(team) if team else PLATFORM
    place = _safe_name(namespace) if namespace else NO_NAMESPACE
    return f"{_safe_name(cluster)}/{owner}/{place}/{_kind_name(group, kind)}-{_safe_name(name)}.yaml"
