"""Wait for applied objects to become healthy."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Any

from avactl.apply.reconcile import role_sets
from avactl.apply.reconcile.actions import Action, ReconcileStep
from avactl.apply.reconcile.desired import INVENTORY
from avactl.apply.reconcile.health import (
    DELETING,
    JUDGED,
    READY,
    WITH_PODS,
    Health,
    HealthState,
    combine_health,
    crashing_container,
    is_starting,
    object_health,
    of_pods,
)
from avactl.apply.reconcile.reporting.listener import report_waits
from avactl.base.object_identity import Gvk, ObjectKey
from avactl.contracts.names import DISAGGREGATED_NAME, LWS_NAME
from avactl.kube.client import ApiError
from avactl.kube.object_client import Body, ObjectClient

_POLL_RANGE_S = (0.5, 3.0)


async def wait_healthy(
    api: ObjectClient,
    steps: Collection[ReconcileStep],
    inventory: str,
    *,
    patience: float,
    say: Callable[[Mapping[str, Health]], None] = lambda late: None,
) -> dict[str, Health]:
    """Wait up to `patience` seconds (0: check once); return the objects that are not ready, by title."""
    declared = [step for step in steps if step.wanted is not None and not step.error]
    live = {step.key: step.live for step in declared if step.live is not None}
    fresh = {step.key for step in declared if step.after is not None and step.key.kind in JUDGED}
    await _refresh_objects(
        api, inventory, {step.key: Gvk.of(step.after) for step in declared if step.after is not None}, live
    )
    ends, pause = monotonic() + patience, _POLL_RANGE_S[0]
    while True:
        made = await _role_groups(api, live)
        found = {key: object_health(body, made.get(key, ())) for key, body in live.items()}
        # A Deployment whose pods are unschedulable is reported as late by its controller after ten minutes.
        unwell = [
            key
            for key, h in found.items()
            if h.state is HealthState.progressing
            or (h.state is HealthState.failed and key.kind in WITH_PODS)
            or (h.state is HealthState.ready and key.kind == "Job" and is_starting(live[key]))
        ]
        closer = await _look_closer(api, {key: live[key] for key in unwell})
        found.update((key, combine_health(found[key], h)) for key, h in closer.items())
        # An old failure that this run did not cause is reported, but does not fail the run.
        bad = {
            str(key): Health(HealthState.waiting, h.reason) if key.kind == "Job" and key not in fresh else h
            for key, h in found.items()
            if h.state is not HealthState.ready
        }
        late = {key: h for key, h in found.items() if h.state is HealthState.progressing}
        if not late or monotonic() > ends:
            return bad
        say({str(key): h for key, h in late.items()})
        await asyncio.sleep(min(pause, max(0.0, ends - monotonic())))
        pause = min(pause * 1.5, _POLL_RANGE_S[1])
        await _refresh_objects(api, inventory, {key: Gvk.of(live[key]) for key in late}, live)


async def wait_gone(
    api: ObjectClient,
    steps: Collection[ReconcileStep],
    *,
    patience: float,
    say: Callable[[Mapping[str, Health]], None] = lambda late: None,
) -> None:
    """Wait until pruned objects are deleted; record those that are not."""
    late: dict[str, Health] = {}

    async def one(step: ReconcileStep) -> None:
        assert step.live is not None
        late[step.title] = DELETING
        found = await api.wait_deleted(step.live, patience)
        del late[step.title]
        if found is not None:
            held = ", ".join(found["metadata"].get("finalizers") or ())
            step.reason = DELETING.reason + (f", finalizers: {held}" if held else "")

    pruned = [step for step in steps if step.action is Action.prune and not step.error and not step.reason]
    async with report_waits(late, say):
        await asyncio.gather(*map(one, pruned))


async def _refresh_objects(
    api: ObjectClient, inventory: str, wanted: Mapping[ObjectKey, Gvk], live: dict[ObjectKey, Body]
) -> None:
    """Reread these objects if their kind has a health check."""

    async def look(gvk: Gvk) -> None:
        for body in await api.items(gvk, f"{INVENTORY}={inventory}"):
            if (key := ObjectKey.of(body)) in wanted:
                live[key] = body

    await asyncio.gather(*(look(gvk) for gvk in set(wanted.values()) if gvk.kind in JUDGED))


async def _role_groups(api: ObjectClient, live: Mapping[ObjectKey, Body]) -> dict[ObjectKey, list[Mapping[str, Any]]]:
    """Return the LeaderWorkerSets that the controllers of DisaggregatedSets have made of them."""
    sets = {key: body for key, body in live.items() if key.kind == role_sets.KIND}
    if not sets or await api.find_kinds({role_sets.GROUPS}):
        return {}
    try:
        found = await api.items(role_sets.GROUPS, DISAGGREGATED_NAME)
    except ApiError as error:
        if error.forbidden:
            return {}
        raise
    return {key: role_sets.made_by(body, found) for key, body in sets.items()}


def _pod_selector(live: Body) -> Mapping[str, str]:
    """Return the labels by which a workload selects its pods."""
    if live["kind"] == "LeaderWorkerSet":
        return {LWS_NAME: live["metadata"]["name"]}
    if live["kind"] == role_sets.KIND:
        return {DISAGGREGATED_NAME: live["metadata"]["name"]}
    found: Mapping[str, str] = live["spec"]["selector"].get("matchLabels") or {}
    return found


async def _look_closer(api: ObjectClient, late: Mapping[ObjectKey, Body]) -> dict[ObjectKey, Health]:
    """Return the health of unready objects that wait for capacity or a storage class, or whose containers crash."""
    found: dict[ObjectKey, Health] = {}
    spaces: dict[str, list[ObjectKey]] = defaultdict(list)
    for key in late:
        if key.kind in WITH_PODS or key.kind == "Job":
            spaces[key.namespace].append(key)
    await api.find_kinds({Gvk("v1", "Pod"), Gvk("storage.k8s.io/v1", "StorageClass")})

    async def workloads(namespace: str, keys: list[ObjectKey]) -> None:
        try:
            pods = await api.items(Gvk("v1", "Pod"), namespace=namespace)
        except ApiError as error:
            if error.forbidden:
                return
            raise
        for key in keys:
            wanted = _pod_selector(late[key]).items()
            own = [pod for pod in pods if wanted <= (pod["metadata"].get("labels") or {}).items()]
            # A Job that waits for GPUs is healthy.
            said = crashing_container(own) if key.kind == "Job" else of_pods(own)
            if said is not None:
                found[key] = said

    async def claim(key: ObjectKey) -> None:
        found[key] = await _unbound_claim_health(api, late[key])

    await asyncio.gather(
        *(workloads(namespace, keys) for namespace, keys in spaces.items()),
        *(claim(key) for key in late if key.kind == "PersistentVolumeClaim"),
    )
    return found


async def _unbound_claim_health(api: ObjectClient, live: Body) -> Health:
    spec = live["spec"]
    if spec.get("volumeName"):
        return Health(HealthState.progressing, "not bound to its volume yet")
    name = spec.get("storageClassName")
    if name is None:
        return Health(HealthState.waiting, "no storage class is set and the cluster has no default")
    try:
        kind = await api.get(Gvk("storage.k8s.io/v1", "StorageClass"), "", name) if name else None
    except ApiError:
        return Health(HealthState.progressing, "not bound yet")
    if kind is None:
        return Health(HealthState.waiting, f"storage class {name} does not exist")
    if kind.get("volumeBindingMode") == "WaitForFirstConsumer":
        return READY
    return Health(HealthState.progressing, "not bound yet")
