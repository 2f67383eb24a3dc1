"""The inventory: a ConfigMap that records the objects a repository has applied, so that drift differs from changes."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import orjson

from avactl.apply.reconcile.desired import Wanted
from avactl.base.object_identity import Gvk, ObjectKey, object_reference
from avactl.contracts import names
from avactl.kube.client import ApiError, Client, list_all
from avactl.kube.object_client import ObjectClient

_ID, _DIGEST = 6, 6
"""Bytes per object (identity and content digest): one ConfigMap holds 65,000 objects."""
_MAX_BYTES = 800_000
_MAX_KINDS = 1000
_MAX_CHARACTERS = {"repository": 4096, "cluster": 253, "cluster_uid": 64, "commit": 128}
"""Longest values of these keys, in characters."""
_ENTRY_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(/[A-Za-z0-9]{1,63})?").fullmatch
"""Pattern of an API version or a kind."""
_CONFIG_MAP_KIND = Gvk("v1", "ConfigMap")
_NAME_PREFIX = "avactl-inventory-"
_INVENTORY_LABELS = {names.MANAGED_BY: names.MANAGER, "app.kubernetes.io/name": "reconcile"}
_INVENTORY_SELECTOR = ",".join(f"{label}={value}" for label, value in _INVENTORY_LABELS.items())


@dataclass(frozen=True, slots=True)
class InventoryRecord:
    """The state of an inventory after its last run."""

    repository: str = ""
    """Identity of the repository; empty: a directory outside git."""
    cluster: str = ""
    commit: str = ""
    complete: bool = False
    """True if the whole commit was applied."""
    owners: str = ""
    """`owners` of the commit as JSON: the next commit needs them, too."""
    kinds: frozenset[Gvk] = frozenset()
    """All kinds that may have objects in the cluster."""
    objects: dict[bytes, bytes] = field(default_factory=dict)
    """Applied objects: identity → digest of the content."""
    version: str = ""
    """resourceVersion of the ConfigMap; empty if it does not exist yet."""
    uid: str = ""
    cluster_uid: str = ""
    """UID of the Kubernetes cluster that was written to: that of its namespace `kube-system`."""

    def unchanged(self, wanted: Wanted) -> bool:
        """Return whether the object was last applied with its current declaration: a difference is then drift."""
        return self.objects.get(identity_digest(wanted.key)) == wanted.digest()


def identity_digest(key: ObjectKey) -> bytes:
    """Return the identity digest of an object."""
    return blake2b("\0".join(key).encode(), digest_size=_ID).digest()


def content_digests(wanted: Iterable[Wanted]) -> dict[bytes, bytes]:
    """Return the record entries of objects: identity → content digest."""
    return {identity_digest(each.key): each.digest() for each in wanted}


class Records:
    """Reads and writes the ConfigMap of one inventory."""

    def __init__(self, api: ObjectClient, namespace: str, inventory: str) -> None:
        self.api, self.namespace, self.name = api, namespace, _NAME_PREFIX + inventory

    async def read(self) -> InventoryRecord:
        """Return the record; an empty one if it is missing or unreadable."""
        found = await self.api.get(_CONFIG_MAP_KIND, self.namespace, self.name)
        return InventoryRecord() if found is None else _parse(found)

    async def others(self, namespaces: Iterable[str]) -> list[tuple[Records, InventoryRecord]]:
        """Return the other inventories in these namespaces."""
        found = []
        for namespace in namespaces:
            for body in await self.api.items(_CONFIG_MAP_KIND, _INVENTORY_SELECTOR, namespace):
                name = body["metadata"]["name"]
                if name.startswith(_NAME_PREFIX) and (namespace, name) != (self.namespace, self.name):
                    records = Records(self.api, namespace, name.removeprefix(_NAME_PREFIX))
                    found.append((records, _parse(body)))
        return found

    async def restore(self, before: InventoryRecord, record: InventoryRecord) -> None:
        """Write an earlier record; delete the ConfigMap if this run has created it."""
        if before.version:
            await self.write(replace(before, version=record.version))
            return
        metadata = {
            "name": self.name,
            "namespace": self.namespace,
            "uid": record.uid,
            "resourceVersion": record.version,
        }
        await self.api.delete({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}, "Background")

    async def write(self, record: InventoryRecord) -> InventoryRecord:
        """Write the record; return it with its new resourceVersion."""
        body = self._body(record)
        path = self.api.resource(_CONFIG_MAP_KIND).path(self.namespace)
        while True:
            try:
                done = await self.api.create_or_replace(path, self.name, body)
                break
            except ApiError as error:
                # Our own write whose answer was lost, or a manual edit. We hold the lease, so our record wins.
                if error.status not in (404, 409):
                    raise
                found = await self.api.get(_CONFIG_MAP_KIND, self.namespace, self.name)
                body["metadata"].pop("resourceVersion", None)
                if found is not None:
                    body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
                elif error.reason == "NotFound":
                    raise  # the namespace was deleted
        return replace(record, version=done["metadata"]["resourceVersion"], uid=done["metadata"]["uid"])

    def _body(self, record: InventoryRecord) -> dict[str, Any]:
        state = {
            "version": 1,
            "repository": record.repository,
            "cluster": record.cluster,
            "clusterUid": record.cluster_uid,
            "commit": record.commit,
            "complete": record.complete,
            "owners": record.owners,
            "kinds": [list(gvk) for gvk in sorted(record.kinds)],
        }
        packed = b"".join(key + value for key, value in sorted(record.objects.items()))
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict(_INVENTORY_LABELS),
        }
        if record.version:
            metadata["resourceVersion"] = record.version
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        body["data"] = {"inventory.json": orjson.dumps(state, option=orjson.OPT_INDENT_2).decode() + "\n"}
        if len(packed) <= _MAX_BYTES:
            body["binaryData"] = {"objects": base64.b64encode(packed).decode()}
        return body

    def reference(self, record: InventoryRecord) -> dict[str, str]:
        """Return the object reference of the ConfigMap for Events."""
        return object_reference(*_CONFIG_MAP_KIND, {"name": self.name, "namespace": self.namespace, "uid": record.uid})


def kinds_of(wanted: Collection[Wanted]) -> frozenset[Gvk]:
    """Return the kinds of objects."""
    return frozenset(each.gvk for each in wanted)


async def list_inventories(client: Client, namespace: str) -> list[InventoryRecord]:
    """Return the records of a namespace that name a cluster and a commit. Raises ApiError and UnreachableError."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    query = {"labelSelector": _INVENTORY_SELECTOR, "limit": "500"}
    bodies = await list_all(lambda more: client.page(path, more), query)
    records = [_parse(each) for each in bodies if each["metadata"]["name"].startswith(_NAME_PREFIX)]
    return sorted((each for each in records if each.cluster and each.commit), key=lambda each: each.cluster)


def _parse(found: dict[str, Any]) -> InventoryRecord:
    """Return the record in a ConfigMap; an empty one if its content is invalid."""
    known = InventoryRecord(version=found["metadata"]["resourceVersion"], uid=found["metadata"]["uid"])
    try:
        state = orjson.loads(found["data"]["inventory.json"])
        kinds = [tuple(map(str, pair)) for pair in state["kinds"]]
        if len(kinds) > _MAX_KINDS or not all(_ENTRY_PART(part) for pair in kinds for part in pair):
            raise ValueError("not kinds")  # each is used in a request path
        packed = base64.b64decode((found.get("binaryData") or {}).get("objects", ""))
        step = _ID + _DIGEST
        entries = (packed[at : at + step] for at in range(0, len(packed) - step + 1, step))
        said = {key: str(state[key]) for key in ("repository", "cluster", "commit")}
        said["cluster_uid"] = str(state.get("clusterUid", ""))
        if any(len(said[key]) > most for key, most in _MAX_CHARACTERS.items()):
            raise ValueError("too long")
        objects = {entry[:_ID]: entry[_ID:] for entry in entries}
        served = frozenset(Gvk(*pair) for pair in kinds)
        said["owners"] = str(state.get("owners", ""))
        return replace(known, **said, complete=bool(state["complete"]), kinds=served, objects=objects)
    except (KeyError, TypeError, ValueError):
        return known  # edited by hand: its contents are rediscovered
