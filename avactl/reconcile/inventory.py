"""What a repository has put into a cluster, as a ConfigMap there: by it a deleted object is told from a new one."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import orjson

from avactl.emit.pulumi_plan import Key
from avactl.kube.client import ApiError
from avactl.reconcile.api import Api, Gvk
from avactl.reconcile.desired import Wanted

_ID, _DIGEST = 6, 6
"""Bytes of an object's name and of its content: 65,000 objects fit into one ConfigMap."""
_MOST = 800_000
_MOST_KINDS = 1000
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(/[A-Za-z0-9]{1,63})?").fullmatch
"""An API version or a kind."""
_KIND = Gvk("v1", "ConfigMap")


@dataclass(frozen=True, slots=True)
class Record:
    """The state of an inventory after its last run."""

    repository: str = ""
    """Whose it is; empty: of a directory that is no git repository."""
    cluster: str = ""
    commit: str = ""
    complete: bool = False
    """Whether all of the commit was applied."""
    kinds: frozenset[Gvk] = frozenset()
    """Every kind that may have objects in the cluster."""
    objects: dict[bytes, bytes] = field(default_factory=dict)
    """Applied objects: id → digest of the content."""
    version: str = ""
    """resourceVersion, or empty where there is none yet."""
    uid: str = ""

    def unchanged(self, wanted: Wanted) -> bool:
        """Whether the object was applied as it is declared now: what differs then is drift."""
        return self.objects.get(identity(wanted.key)) == wanted.digest()


def identity(key: Key) -> bytes:
    """Stands for an object."""
    return blake2b("\0".join(key).encode(), digest_size=_ID).digest()


def content(wanted: Iterable[Wanted]) -> dict[bytes, bytes]:
    """What a record says of objects."""
    return {identity(each.key): each.digest() for each in wanted}


class Records:
    """The ConfigMap of one inventory."""

    def __init__(self, api: Api, namespace: str, inventory: str) -> None:
        self._api, self.namespace, self.name = api, namespace, f"avactl-inventory-{inventory}"

    async def read(self) -> Record:
        """The record; an empty one where there is none, or where it cannot be read."""
        found = await self._api.get(_KIND, self.namespace, self.name)
        if found is None:
            return Record()
        known = Record(version=found["metadata"]["resourceVersion"], uid=found["metadata"]["uid"])
        try:
            state = orjson.loads(found["data"]["inventory.json"])
            kinds = [tuple(map(str, pair)) for pair in state["kinds"]]
            if len(kinds) > _MOST_KINDS or not all(_PART(part) for pair in kinds for part in pair):
                raise ValueError("not kinds")  # each becomes a part of a path, and is listed
            packed = base64.b64decode((found.get("binaryData") or {}).get("objects", ""))
            step = _ID + _DIGEST
            entries = (packed[at : at + step] for at in range(0, len(packed) - step + 1, step))
            return replace(
                known,
                repository=str(state["repository"]),
                cluster=str(state["cluster"]),
                commit=str(state["commit"]),
                complete=bool(state["complete"]),
                kinds=frozenset(Gvk(*pair) for pair in kinds),
                objects={entry[:_ID]: entry[_ID:] for entry in entries},
            )
        except (KeyError, TypeError, ValueError):
            return known  # somebody edited it: what it said is found out again

    async def write(self, record: Record) -> Record:
        """Write it; the record as it is then."""
        body = self._body(record)
        path = self._api.resource(_KIND).path(self.namespace)
        while True:
            try:
                done = await self._api.put(path, self.name, body)
                break
            except ApiError as error:
                # Our own write, whose answer was lost, or somebody's edit: the lease is ours, so ours counts.
                if error.status not in (404, 409):
                    raise
                found = await self._api.get(_KIND, self.namespace, self.name)
                body["metadata"].pop("resourceVersion", None)
                if found is not None:
                    body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                elif error.reason == "NotFound":
                    raise  # the namespace is gone
        return replace(record, version=done["metadata"]["resourceVersion"], uid=done["metadata"]["uid"])

    def _body(self, record: Record) -> dict[str, Any]:
        state = {
            "version": 1,
            "repository": record.repository,
            "cluster": record.cluster,
            "commit": record.commit,
            "complete": record.complete,
            "kinds": [list(gvk) for gvk in sorted(record.kinds)],
        }
        packed = b"".join(key + value for key, value in sorted(record.objects.items()))
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": {"app.kubernetes.io/managed-by": "avactl", "app.kubernetes.io/name": "reconcile"},
        }
        if record.version:
            metadata["resourceVersion"] = record.version
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        body["data"] = {"inventory.json": orjson.dumps(state, option=orjson.OPT_INDENT_2).decode() + "\n"}
        if len(packed) <= _MOST:
            body["binaryData"] = {"objects": base64.b64encode(packed).decode()}
        return body

    def reference(self, record: Record) -> dict[str, str]:
        """The ConfigMap as Events name it."""
        return {
            "apiVersion": "v1", "kind": "ConfigMap", "namespace": self.namespace, "name": self.name,
            "uid": record.uid,
        }  # fmt: skip


def kinds_of(wanted: Collection[Wanted]) -> frozenset[Gvk]:
    """The kinds of objects."""
    return frozenset(each.gvk for each in wanted)
