"""Events of the `events.k8s.io/v1` API, as kube-scheduler's recorder writes them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from avactl.kube.replica import pod_name
from avactl.kube.timestamps import timestamp

_NOTE = 1024
"""Bytes of a note that the API server takes. Source: k8s.io/kubernetes/pkg/apis/core/validation/events.go."""
_NAME = 236
"""Characters of an event's name without the suffix that makes it unique."""
_last = 0


def new_event(
    controller: str, action: str, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool = False
) -> dict[str, Any]:
    """Return an Event about the object `regarding`: a reference with apiVersion, kind, name, uid, maybe namespace.

    Its name is unique within this process. Long notes are truncated.
    """
    global _last
    # Names must differ, and clocks have a coarse grain.
    _last = now = max(time.time_ns(), _last + 1)
    # Names of RBAC objects may have characters that the names of events may not.
    stem = re.sub(r"[^a-z0-9]+", "-", regarding["name"].lower())[:_NAME].strip("-")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # Events about cluster-scoped objects are in `default`.
        "metadata": {"name": f"{stem or 'event'}.{now:x}", "namespace": regarding.get("namespace") or "default"},
        "eventTime": timestamp(now / 1e9, "microseconds"),
        "reportingController": controller,
        "reportingInstance": f"{controller}-{pod_name()}"[:128],
        "action": action,
        "reason": reason,
        "regarding": dict(regarding),
        "note": _bounded(note),
        "type": "Warning" if warning else "Normal",
    }


def events_path(event: Mapping[str, Any]) -> str:
    """Return the path that an Event is posted to."""
    return f"/apis/events.k8s.io/v1/namespaces/{event['metadata']['namespace']}/events"


def _bounded(note: str) -> str:
    data = note.encode(errors="replace")
    return note if len(data) <= _NOTE else data[: _NOTE - 3].decode(errors="ignore") + "…"
