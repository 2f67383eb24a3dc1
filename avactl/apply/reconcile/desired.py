"""Desired objects of one cluster: compiled manifests with the inventory's labels and annotations."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from avactl.apply.reconcile.diffing.field_policy import controller_paths, scaler_of, without_fields
from avactl.apply.reconcile.diffing.managed_fields import ABSENT, Path, find
from avactl.base.object_identity import Gvk, ObjectKey
from avactl.change.diff.model import Disruption
from avactl.change.diff.rules import classify_deletion
from avactl.compiler import Compilation
from avactl.compiler.normalise import RANK
from avactl.contracts import names
from avactl.contracts.pod_annotations import RUN_DIGEST
from avactl.program.autoscalers import REPLICAS
from avactl.program.dependencies import dependencies
from avactl.program.manifest import Manifest

INVENTORY = f"{names.GROUP}/inventory"
"""Label of all applied objects; its value is the name of the inventory."""
HOLDS_DATA = f"{names.GROUP}/holds-data"
"""Annotation of objects that are never pruned."""
DELETION_POLICY = f"{names.GROUP}/deletion-policy"
"""Annotation `delete` of objects that hold data and whose spec allows deletion."""
PATCHED = f"{names.GROUP}/patched"
"""Annotation of objects that exist without avactl: pruning removes our fields and leaves the object."""
HPA_MANAGER = "kube-controller-manager"
"""Field manager of HorizontalPodAutoscalers, also of KEDA's."""

Body = dict[str, Any]


class Wanted(NamedTuple):
    """A desired object."""

    manifest: Manifest
    body: Body
    """The body as applied: with labels and annotations, without controller-owned fields."""
    gvk: Gvk
    key: ObjectKey
    rank: int
    leave: tuple[Path, ...]
    """Fields owned by controllers."""

    @property
    def dependencies(self) -> list[ObjectKey]:
        """Return the objects that must exist first."""
        return dependencies(self.body)

    def digest(self) -> bytes:
        """Digest of the declared object."""
        return blake2b(orjson.dumps(self.body, option=orjson.OPT_SORT_KEYS), digest_size=6).digest()

    def __str__(self) -> str:
        return str(self.key)


def find_scaler(each: Wanted, live: Mapping[str, Any]) -> str:
    """Return the program that has set other `replicas` than declared by the subresource `scale`, or "".

    This is an autoscaler that the specs do not declare. `kubectl scale` writes the same subresource: that is drift.
    """
    replicas = find(each.body, _REPLICAS)
    return "" if replicas is ABSENT or replicas == find(live, _REPLICAS) else scaler_of(live, _REPLICAS)


def is_switched_off(each: Wanted, scaler: str) -> bool:
    """Return whether zero `replicas` switch this scaler off: a HorizontalPodAutoscaler that is not KEDA's."""
    return scaler == HPA_MANAGER and find(each.body, _REPLICAS) == 0


def without_replicas(each: Wanted) -> Wanted:
    """Return the object with `replicas` left to a controller."""
    return each._replace(body=without_fields(each.body, [REPLICAS]), leave=(*each.leave, _REPLICAS))


_REPLICAS = tuple(f"f:{step}" for step in REPLICAS.split("."))


def leaves_replicas(each: Wanted) -> bool:
    """Return whether `replicas` are left to a controller."""
    return _REPLICAS in each.leave


def rank_of(kind: str) -> int:
    """Return the position of a kind in apply order; pruning goes in reverse."""
    return RANK.get(kind, len(RANK))


def wanted_of(compilation: Compilation, cluster: str, inventory: str) -> list[Wanted]:
    """Return the desired objects of one cluster, in apply order."""
    return [_make_wanted(manifest, inventory) for manifest in compilation.manifests if manifest.cluster == cluster]


def _make_wanted(manifest: Manifest, inventory: str) -> Wanted:
    body = without_fields(manifest.body, manifest.owned) if manifest.owned else dict(manifest.body)
    metadata = body["metadata"]
    notes: dict[str, str] = {}
    if manifest.patch:
        notes[PATCHED] = "true"
    elif not manifest.holds_data and classify_deletion(manifest)[0] is Disruption.DATA_LOSS:
        notes[DELETION_POLICY] = "delete"
    body["metadata"] = {**metadata, "labels": {**metadata.get("labels", {}), INVENTORY: inventory}}
    if notes:
        body["metadata"]["annotations"] = {**metadata.get("annotations", {}), **notes}
    if (manifest.id.group, manifest.kind) == ("batch", "Job"):
        # With a TTL a finished Job would be deleted, be missing, and run again.
        body = without_fields(body, ["spec.ttlSecondsAfterFinished"])
    return Wanted(
        manifest,
        body,
        Gvk.of(body),
        ObjectKey.of(body),
        rank_of(manifest.kind),
        controller_paths(manifest.kind, manifest.owned),
    )


def live_annotations(live: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of a live object."""
    found: Mapping[str, str] = live["metadata"].get("annotations") or {}
    return found


def inventory_of(live: Mapping[str, Any]) -> str:
    """Return the inventory that owns a live object, or an empty string."""
    found: str = (live["metadata"].get("labels") or {}).get(INVENTORY, "")
    return found


def run_of(job: Mapping[str, Any]) -> str:
    """Return the run ID of a Job, from its immutable pod template, which cannot be forged afterwards."""
    template = job["spec"].get("template") or {}
    found: str = ((template.get("metadata") or {}).get("annotations") or {}).get(RUN_DIGEST.name, "")
    return found


def terminal_condition(job: Mapping[str, Any]) -> str:
    """Return the terminal condition of a Job (`Complete`, `Failed`), or an empty string."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            kind: str = condition["type"]
            return kind
    return ""
