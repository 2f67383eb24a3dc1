"""Events of the `events.k8s.io/v1` API, as kube-scheduler's recorder writes them."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Mapping
from time import monotonic
from typing import Any

from avactl.kube import logs
from avactl.kube.client import MERGE, ApiError, Client, UnreachableError
from avactl.kube.replica import pod_name
from avactl.kube.timestamps import timestamp

MAX_NOTE_BYTES = 1024
"""Longest note that the API server takes. Source: k8s.io/kubernetes/pkg/apis/core/validation/events.go."""
_MAX_NAME_CHARS = 236
"""Length of an event's name without the suffix that makes it unique."""
_SERIES_TIMEOUT_S = 360.0
"""Seconds without repetition after which a series ends. Source: client-go/tools/events, finishTime."""
_MAX_SERIES = 4096
"""Events that are remembered for repetitions, the latest ones; client-go's cache has the same size."""
_last = 0


class EventPoster:
    """Posts Events. A repeated Event increments the count of the first one's series."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._series: OrderedDict[tuple[str, ...], tuple[str, int, float]] = OrderedDict()
        """Event → path of the posted object, count, and monotonic time of the last one."""

    async def post(self, event: Mapping[str, Any]) -> None:
        """Post an Event made by `new_event`, for callers that retry. Raises ApiError and UnreachableError."""
        regarding, now = event["regarding"], monotonic()
        key = (*map(str, regarding.values()), event["action"], event["reason"], event["type"], event["note"])
        path, count, last = self._series.get(key, ("", 0, 0.0))
        if not path or now - last > _SERIES_TIMEOUT_S or not await self._count(path, count + 1):
            await self._client.send("POST", events_path(event), event)
            path, count = f"{events_path(event)}/{event['metadata']['name']}", 0
        self._series[key] = path, count + 1, now
        self._series.move_to_end(key)
        if len(self._series) > _MAX_SERIES:
            self._series.popitem(last=False)

    async def _count(self, path: str, count: int) -> bool:
        """Write the count of a series; False if the first Event has expired, or the account may only create Events."""
        series = {"count": count, "lastObservedTime": timestamp(timespec="microseconds")}
        try:
            await self._client.send("PATCH", path, {"series": series}, content_type=MERGE)
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        return True


class EventRecorder(EventPoster):
    """Posts the Events of one controller, whose callers depend on none of them."""

    def __init__(self, client: Client, controller: str, action: str) -> None:
        """`action`: what the controller does, as machine-readable as the reason."""
        super().__init__(client)
        self._controller, self._action = controller, action

    async def record(self, regarding: Mapping[str, str], reason: str, note: str, *, warning: bool = False) -> None:
        """Post an Event about an object. A failure is only logged: no caller depends on its Events."""
        event = new_event(self._controller, self._action, regarding, reason, note, warning=warning)
        try:
            await self.post(event)
        except (ApiError, UnreachableError) as error:
            logs.warn("event not written", reason=reason, error=str(error))


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
    stem = re.sub(r"[^a-z0-9]+", "-", regarding["name"].lower())[:_MAX_NAME_CHARS].strip("-")
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
    data = note.encode(errors="replace")  # a lone surrogate, of a file's name, could not be sent
    return data.decode() if len(data) <= MAX_NOTE_BYTES else data[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
