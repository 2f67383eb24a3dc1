"""Read the live objects: all with the inventory's label, and declared objects that exist without it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from avactl.apply.reconcile.desired import HPA_MANAGER, INVENTORY, Wanted, find_scaler, inventory_of, is_switched_off
from avactl.apply.reconcile.inventory import InventoryRecord, kinds_of
from avactl.base.object_identity import Gvk, ObjectKey
from avactl.compiler.normalise import APPLY_ORDER
from avactl.kube.client import ApiError
from avactl.kube.object_client import Body, ObjectClient
from avactl.program.autoscalers import scale_target

_MAX_SINGLE_READS = 8
"""Up to so many missing objects of a kind are fetched one by one; more are listed."""

_VERSIONS = {
    "v1": (
        "Namespace",
        "Node",
        "ServiceAccount",
        "ResourceQuota",
        "LimitRange",
        "ConfigMap",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Service",
    ),
    "apps/v1": ("DaemonSet", "StatefulSet", "Deployment"),
    "batch/v1": ("Job", "CronJob"),
    "rbac.authorization.k8s.io/v1": ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    "networking.k8s.io/v1": ("NetworkPolicy", "Ingress"),
    "policy/v1": ("PodDisruptionBudget",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "scheduling.k8s.io/v1": ("PriorityClass",),
    "storage.k8s.io/v1": ("StorageClass",),
    "apiextensions.k8s.io/v1": ("CustomResourceDefinition",),
    "admissionregistration.k8s.io/v1": ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    "resource.k8s.io/v1": ("DeviceClass", "ResourceClaimTemplate"),
}
ALWAYS = frozenset(Gvk(version, kind) for version, kinds in _VERSIONS.items() for kind in kinds if kind in APPLY_ORDER)
"""Kinds that are always listed, because the record may be lost."""


_HPA = Gvk("autoscaling/v2", "HorizontalPodAutoscaler")


class Observed(NamedTuple):
    """The live objects of a run."""

    live: dict[ObjectKey, Body]
    unserved: frozenset[Gvk]
    """Kinds that the API server does not serve."""
    unseen: frozenset[Gvk]
    """Kinds that the account is not permitted to list: removed objects of these kinds are not pruned."""
    scaled: dict[ObjectKey, str]
    """Declared workloads that an undeclared autoscaler scales, each with the field manager that does so."""


async def observe_cluster(api: ObjectClient, wanted: Collection[Wanted], record: InventoryRecord) -> Observed:
    """Read all relevant live objects. Raises ApiError and UnreachableError."""
    declared = kinds_of(wanted)
    unserved = await api.find_kinds(set(declared | record.kinds | ALWAYS))
    live: dict[ObjectKey, Body] = {}
    unseen: set[Gvk] = set()

    async def look(gvk: Gvk) -> None:
        try:
            found = await api.items(gvk, INVENTORY)
        except ApiError as error:
            if error.status not in (403, 404) or gvk in declared:
                raise
            if error.forbidden:
                unseen.add(gvk)
            return
        live.update((ObjectKey.of(body), body) for body in found)

    served = (declared | record.kinds | ALWAYS) - unserved
    if not record.version:
        # On the first run, declared objects may exist without the label, so list without the selector at once.
        served -= declared
        await find(api, [each for each in wanted if each.gvk not in unserved], live, marked=True)
        await asyncio.gather(*map(look, sorted(served)))
    else:
        await asyncio.gather(*map(look, sorted(served)))
        await find(api, [each for each in wanted if each.key not in live and each.gvk not in unserved], live)
    return Observed(live, frozenset(unserved), frozenset(unseen), await _find_scaled(api, wanted, live))


async def _find_scaled(
    api: ObjectClient, wanted: Collection[Wanted], live: Mapping[ObjectKey, Body]
) -> dict[ObjectKey, str]:
    """Return the workloads whose `replicas` an autoscaler has set that still exists.

    A HorizontalPodAutoscaler leaves zero replicas alone; if it is KEDA's, its ScaledObject scales up again.
    """
    scaled = {each.key: scaler for each in wanted if each.key in live and (scaler := find_scaler(each, live[each.key]))}
    if HPA_MANAGER not in scaled.values() or await api.find_kinds({_HPA}):
        return scaled
    try:
        autoscalers = await api.items(_HPA)
    except ApiError as error:
        if error.forbidden:
            return scaled
        raise
    targets: dict[ObjectKey | None, bool] = {}  # whether KEDA made the autoscaler
    for body in autoscalers:
        owners = body["metadata"].get("ownerReferences") or ()
        targets[scale_target(body, body["metadata"]["namespace"])] = any(o["kind"] == "ScaledObject" for o in owners)
    off = {each.key for each in wanted if is_switched_off(each, scaled.get(each.key, ""))}
    return {
        key: scaler
        for key, scaler in scaled.items()
        if scaler != HPA_MANAGER or (key in targets and (key not in off or targets[key]))
    }


async def find(
    api: ObjectClient, missing: Iterable[Wanted], live: dict[ObjectKey, Body], *, marked: bool = False
) -> None:
    """Add declared objects that exist without the label: created by others, or with the label removed.

    `marked`: include objects of these kinds that have the label.
    """
    kinds: dict[Gvk, list[Wanted]] = defaultdict(list)
    for each in missing:
        kinds[each.gvk].append(each)

    async def one(each: Wanted) -> None:
        body = await api.get(each.gvk, each.key.namespace, each.key.name)
        if body is not None:
            live[each.key] = body

    async def many(gvk: Gvk, several: list[Wanted]) -> None:
        keys = {each.key for each in several}
        for body in await api.items(gvk):
            if (key := ObjectKey.of(body)) in keys or (marked and inventory_of(body)):
                live[key] = body

    few = 0 if marked else _MAX_SINGLE_READS
    await asyncio.gather(
        *(one(each) for several in kinds.values() if len(several) <= few for each in several),
        *(many(gvk, several) for gvk, several in kinds.items() if len(several) > few),
    )
