"""Name and size of a gang, from the labels and annotations of its pods."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

from avactl.base.object_identity import controller_of
from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE

GANG_LABELS = frozenset((names.GANG_LABEL, names.LWS_GROUP))
"""Labels by which the pods of a gang are known."""
_JOB_NAME = "batch.kubernetes.io/job-name"
_MAX_UID_CHARS = 64
"""Those of the API server have 36; in an owner reference, a pod's author can write any text."""


def gang_of(labels: Mapping[str, str], notes: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of a pod's gang in its namespace, and its size as written; empty without a gang.

    All groups of a LeaderWorkerSet have one template, in which a gang label would be that of all: they are told apart
    by the label of its controller. Groups whose templates name no size are not gangs: with `startupPolicy:
    LeaderReady`, the other pods are created only once the first one runs.
    """
    size = notes.get(GANG_SIZE.name) or labels.get(GANG_SIZE.name) or ""
    gang = labels.get(names.GANG_LABEL) or (labels.get(names.LWS_GROUP, "") if size else "")
    return (gang, size or "1") if gang else ("", "")


def owner_of(metadata: Mapping[str, Any]) -> str:
    """Return the gang or Job of a pod, `namespace/name`, or the UID of its controller; "" if it has none."""
    labels = metadata.get("labels") or {}
    name = gang_of(labels, metadata.get("annotations") or {})[0] or labels.get(_JOB_NAME)
    if name:
        return intern(f"{metadata['namespace']}/{name}")
    # Pods of snapshots and plans have owners without a UID.
    uid: str = controller_of(metadata).get("uid") or ""
    # The pod's creator writes it: it must not be the gang or Job of another namespace.
    return intern(f"{metadata['namespace']}/uid/{uid}") if 0 < len(uid) <= _MAX_UID_CHARS and uid.isprintable() else ""


def without_gang(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels without those of a gang."""
    return {key: value for key, value in labels.items() if key not in GANG_LABELS}
