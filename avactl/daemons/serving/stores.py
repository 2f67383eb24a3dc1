"""Objects that the watches bring, and those in the answers to the daemon's own writes.

Members of teams write these objects. Only the fields that decisions need are kept, and a bounded amount for each
namespace, so that the objects of one team cannot exhaust the memory of the daemon.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from avactl.base.object_identity import namespaced_name
from avactl.contracts.names import (
    LWS_REVISION,
    ROLLOUT,
    ROLLOUT_STATE,
    ROLLOUT_WITH,
    SERVICE_VERSION,
    TEMPLATE_DIGEST,
    WEIGHTS,
)
from avactl.daemons.serving.revisions import HASH_LABEL, NUMBER, REJECTED
from avactl.kube import logs

Body = dict[str, Any]
PAGE, ANSWER = 50, 4 << 20
"""Maximum number of objects in one list request, and of bytes in a response. An object has up to 1.5 MB, and takes 20
times as much memory when parsed."""
LARGEST = 256 << 10
"""Maximum size of the JSON of one object that is kept, in bytes."""
MOST = 16 << 20
"""Maximum size of the JSON of all objects of one kind in one namespace, in bytes."""
_MAX_OWNERS = 8


class Objects:
    """Objects of one kind by `namespace/name`, and by a group of their own. Older versions replace no newer ones.

    `reduce` returns the part of an object that is kept; None if it is none of the daemon's.
    """

    def __init__(
        self,
        group: Callable[[Mapping[str, Any]], Iterable[str]],
        reduce: Callable[[Body], Body | None] = lambda item: item,
    ) -> None:
        self._group, self._reduce = group, reduce
        self._items: dict[str, Body] = {}
        self._groups: dict[str, set[str]] = defaultdict(set)
        self._sizes: dict[str, int] = {}
        self._used: dict[str, int] = defaultdict(int)
        self._full: set[str] = set()

    def put(self, item: Body) -> None:
        """Add or update an object."""
        key = namespaced_name(item)
        known = self._items.get(key)
        if known is not None and _resource_version(item) < _resource_version(known):
            return
        self.remove(key)
        kept = self._reduce(item)
        if kept is None:
            return
        size, space = len(orjson.dumps(kept, default=orjson.Fragment)), key.partition("/")[0]
        if size > LARGEST or self._used[space] + size > MOST:
            if space not in self._full:
                self._full.add(space)
                logs.warn("objects ignored", namespace=space, first=key, size=size, used=self._used[space])
            return
        self._items[key], self._sizes[key] = kept, size
        self._used[space] += size
        for each in self._group(kept):
            self._groups[each].add(key)

    def remove(self, key: str) -> None:
        """Remove an object."""
        known = self._items.pop(key, None)
        if known is not None:
            self._used[key.partition("/")[0]] -= self._sizes.pop(key)
            for each in self._group(known):
                self._groups[each].discard(key)
                if not self._groups[each]:
                    del self._groups[each]

    def keys(self) -> list[str]:
        """Return the keys of all objects."""
        return list(self._items)

    def get(self, key: str) -> Body | None:
        """Return an object; None if there is none."""
        return self._items.get(key)

    def of(self, group: str) -> Iterator[Body]:
        """Yield the objects of a group."""
        for key in sorted(self._groups.get(group, ())):
            yield self._items[key]


def objects_of(kind: str) -> Objects:
    """Return an empty store for one kind of objects."""
    reduce = {
        "Deployment": _keep_deployment,
        "LeaderWorkerSet": _keep_groups,
        "StatefulSet": _keep_leader_set,
        "Pod": _keep_leader,
        "ReplicaSet": _replica_set,
        "Service": _keep_service,
        "Job": _keep_job,
        "InferencePool": _keep_pool,
    }
    by_owner = kind in ("ReplicaSet", "Job", "Pod")
    return Objects(owner_uids if by_owner else object_namespace, reduce.get(kind, _keep_plain))


def owner_uids(item: Mapping[str, Any]) -> list[str]:
    """Return the UIDs of an object's owners."""
    return [str(each.get("uid")) for each in (item["metadata"].get("ownerReferences") or ())[:_MAX_OWNERS]]


def object_namespace(item: Mapping[str, Any]) -> list[str]:
    """Return the namespace of an object."""
    return [item["metadata"].get("namespace", "")]


def _keep_deployment(item: Body) -> Body | None:
    """Keep Deployments with a rollout: only specs and the daemon give them one."""
    notes = item["metadata"].get("annotations") or {}
    if ROLLOUT not in notes and ROLLOUT_STATE not in notes:
        return None
    return {**_keep_plain(item), "apiVersion": "apps/v1", "kind": "Deployment"}  # items of lists have neither


def _keep_groups(item: Body) -> Body | None:
    """Keep LeaderWorkerSets with a rollout, and of their templates only the label with the version: their controller
    compares these."""
    notes = item["metadata"].get("annotations") or {}
    if not {ROLLOUT, ROLLOUT_STATE, ROLLOUT_WITH} & set(notes):
        return None
    kept = {key: item["spec"][key] for key in ("replicas", "rolloutStrategy") if key in item["spec"]}
    found = _keep_plain(item)
    template = (item["spec"].get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    version = ((template.get("metadata") or {}).get("labels") or {}).get(SERVICE_VERSION)
    labels = {} if version is None else {SERVICE_VERSION: version}
    return {**found, "metadata": {**found["metadata"], "labels": labels}, "spec": kept}


def _keep_leader_set(item: Body) -> Body | None:
    """Keep which revision the StatefulSet of the leaders of a LeaderWorkerSet has."""
    if not any(each.get("kind") == "LeaderWorkerSet" for each in item["metadata"].get("ownerReferences") or ()):
        return None  # that of the workers of one group
    status = item.get("status") or {}
    return {"metadata": _keep_identity(item["metadata"]), "status": {"currentRevision": status.get("currentRevision")}}


def _keep_leader(item: Body) -> Body:
    """Keep which revision a leader has, and whether it is ready."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    ready = [{"type": "Ready", "status": each.get("status")} for each in conditions if each.get("type") == "Ready"]
    return {"metadata": _keep_identity(item["metadata"]), "status": {"conditions": ready}}


def _replica_set(item: Body) -> Body | None:
    """Keep ReplicaSets of Deployments; the template, which is seldom read, as JSON."""
    metadata, spec = item["metadata"], item["spec"]
    selector = spec.get("selector") or {}
    if not any(each.get("kind") == "Deployment" for each in metadata.get("ownerReferences") or ()):
        return None
    if selector.get("matchExpressions") or len(selector.get("matchLabels") or ()) > _MAX_LABELS:
        return None
    return {
        "metadata": _keep_identity(metadata, REJECTED, NUMBER, TEMPLATE_DIGEST),
        "spec": {"replicas": spec.get("replicas", 1), "selector": selector, "template": orjson.dumps(spec["template"])},
        "status": item.get("status") or {},
    }


def _keep_service(item: Body) -> Body:
    """Keep what a Service selects, and the speeds of pools."""
    selector = item["spec"].get("selector") or {}
    kept = selector if len(selector) <= _MAX_LABELS else {}
    return {"metadata": _keep_identity(item["metadata"], WEIGHTS), "spec": {"selector": kept}}


def _keep_pool(item: Body) -> Body:
    """Keep which pods an InferencePool selects."""
    labels = (item["spec"].get("selector") or {}).get("matchLabels") or {}
    kept = labels if len(labels) <= _MAX_LABELS else {}
    return {"metadata": _keep_identity(item["metadata"]), "spec": {"selector": {"matchLabels": kept}}}


def _keep_job(item: Body) -> Body:
    """Keep how a Job has ended."""
    conditions = (item.get("status") or {}).get("conditions")
    return {"metadata": _keep_identity(item["metadata"]), "status": {"conditions": conditions}}


def endpoint_slice(item: Body) -> Body:
    """Keep addresses and their machines."""
    found = [
        {"nodeName": each.get("nodeName"), "addresses": each.get("addresses")} for each in item.get("endpoints") or ()
    ]
    return {"metadata": _keep_identity(item["metadata"]), "endpoints": found}


def _keep_plain(item: Body) -> Body:
    """Keep all but the managed fields."""
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key != "managedFields"}}


_MAX_LABELS = 64
_IDENTITY_FIELDS = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
_KEPT_LABELS = (HASH_LABEL, "kubernetes.io/service-name", LWS_REVISION, SERVICE_VERSION, "controller-revision-hash")


def _keep_identity(metadata: Mapping[str, Any], *annotations: str) -> Body:
    """Keep what tells an object from others, its owners, and the labels and annotations that are read."""
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return {
        **{key: metadata[key] for key in _IDENTITY_FIELDS if key in metadata},
        "labels": {key: labels[key] for key in _KEPT_LABELS if key in labels},
        "annotations": {key: notes[key] for key in annotations if key in notes},
        "ownerReferences": (metadata.get("ownerReferences") or ())[:_MAX_OWNERS],
    }


def _resource_version(item: Mapping[str, Any]) -> int:
    # Comparable by KEP-5504, and in every API server with etcd before.
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() and len(text) < 20 else 0
