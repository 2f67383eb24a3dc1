"""What one cluster shall hold: the compiled objects with the marks of the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from avactl import names
from avactl.compiler import Compilation
from avactl.compiler.normalise import RANK
from avactl.diff.model import Disruption
from avactl.diff.rules import deletion
from avactl.emit.pulumi_plan import Key, needs
from avactl.kinds.manifest import Manifest
from avactl.reconcile.api import Gvk
from avactl.reconcile.diffing.field_policy import left, without
from avactl.reconcile.diffing.managed_fields import Path

INVENTORY = f"{names.GROUP}/inventory"
"""Label of everything that a repository put into a cluster: its value is the inventory's name."""
HOLDS_DATA = f"{names.GROUP}/holds-data"
"""Annotation of what is never pruned."""
DELETION_POLICY = f"{names.GROUP}/deletion-policy"
"""Annotation `delete` of what would lose data, and whose spec says that it may."""
PATCHED = f"{names.GROUP}/patched"
"""Annotation of objects that exist without us: pruned, they lose our fields and stay."""
RUN = f"{names.GROUP}/run"

Body = dict[str, Any]


class Wanted(NamedTuple):
    """One object as git declares it."""

    manifest: Manifest
    body: Body
    """As it is sent: with marks, without controllers' fields."""
    gvk: Gvk
    key: Key
    rank: int
    leave: tuple[Path, ...]
    """Fields that are controllers'."""

    @property
    def needs(self) -> list[tuple[str, str, str]]:
        """(kind, namespace, name) of what must be there first."""
        return list(dict.fromkeys(needs(self.body)))

    def digest(self) -> bytes:
        """Stands for the object as it is declared."""
        return blake2b(orjson.dumps(self.body, option=orjson.OPT_SORT_KEYS), digest_size=6).digest()

    def __str__(self) -> str:
        return title(self.body)


def title(body: Mapping[str, Any]) -> str:
    """`Deployment vision/detector`."""
    metadata = body["metadata"]
    namespace = metadata.get("namespace")
    return f"{body['kind']} {namespace}/{metadata['name']}" if namespace else f"{body['kind']} {metadata['name']}"


def rank_of(kind: str) -> int:
    """When objects of a kind are applied; pruning goes the other way."""
    return RANK.get(kind, len(RANK))


def wanted_of(compilation: Compilation, cluster: str, inventory: str) -> list[Wanted]:
    """The objects of one cluster, in apply order."""
    return [_wanted(manifest, inventory) for manifest in compilation.manifests if manifest.cluster == cluster]


def _wanted(manifest: Manifest, inventory: str) -> Wanted:
    body = without(manifest.body, manifest.owned) if manifest.owned else dict(manifest.body)
    metadata = body["metadata"]
    notes: dict[str, str] = {}
    if manifest.patch:
        notes[PATCHED] = "true"
    elif not manifest.holds_data and deletion(manifest)[0] is Disruption.DATA_LOSS:
        notes[DELETION_POLICY] = "delete"
    body["metadata"] = {**metadata, "labels": {**metadata.get("labels", {}), INVENTORY: inventory}}
    if notes:
        body["metadata"]["annotations"] = {**metadata.get("annotations", {}), **notes}
    if manifest.kind == "Job":
        # A Job that Kubernetes cleans away after its end would be missing, and run again.
        body = without(body, ["spec.ttlSecondsAfterFinished"])
    return Wanted(
        manifest, body, Gvk.of(body), Key.of(body), rank_of(manifest.kind), left(manifest.kind, manifest.owned)
    )


def marks(live: Mapping[str, Any]) -> Mapping[str, str]:
    """The annotations of a live object."""
    found: Mapping[str, str] = live["metadata"].get("annotations") or {}
    return found


def inventory_of(live: Mapping[str, Any]) -> str:
    """The inventory that a live object belongs to, or nothing."""
    found: str = (live["metadata"].get("labels") or {}).get(INVENTORY, "")
    return found


def run_of(job: Mapping[str, Any]) -> str:
    """Which run a Job is. The template cannot be changed, so nobody can make it look like another one."""
    template = job["spec"].get("template") or {}
    found: str = ((template.get("metadata") or {}).get("annotations") or {}).get(RUN, "")
    return found


def ended(job: Mapping[str, Any]) -> str:
    """How a Job has ended (`Complete`, `Failed`), or nothing."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            kind: str = condition["type"]
            return kind
    return ""
