"""Zero replicas in git against a HorizontalPodAutoscaler that has scaled the workload, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import yaml

from avactl.apply.reconcile.desired import Wanted
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.diffing.managed_fields import own_fields
from avactl.apply.reconcile.diffing.object_diff import compare
from avactl.apply.reconcile.drift import WatchedKind
from avactl.apply.reconcile.inventory import InventoryRecord
from avactl.apply.reconcile.live_state import observe_cluster
from avactl.base.object_identity import Gvk
from avactl.kube.object_client import ObjectClient
from tests.reconcile.test_fields_of_others import AUTOSCALER, WEB
from tests.reconcile.test_pruning import declared, manifests

NAMESPACE = "one-vision"


def wanted_web(replicas: int) -> Wanted:
    body = {**WEB, "spec": {**WEB["spec"], "replicas": replicas}}
    (web,) = (each for each in declared(manifests(body)) if each.key.kind == "Deployment")
    return web


def scaled_web(wanted: Wanted, manager: str) -> dict[str, Any]:
    """The live workload after an autoscaler has set three replicas."""
    live: dict[str, Any] = yaml.safe_load(yaml.safe_dump(wanted.body))
    live["spec"]["replicas"] = 3
    live["metadata"]["managedFields"] = [
        {
            "manager": manager,
            "operation": "Update",
            "subresource": "scale",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
    ]
    return live


class Api:
    """Answers with one workload and one autoscaler."""

    def __init__(self, live: dict[str, Any], owner: str) -> None:
        self._live, self._owner = live, owner

    async def find_kinds(self, gvks: set[Gvk]) -> set[Gvk]:
        return set()

    async def items(self, gvk: Gvk, label: str = "") -> list[dict[str, Any]]:
        if gvk.kind == "HorizontalPodAutoscaler":
            metadata = {"name": "web", "namespace": NAMESPACE, "ownerReferences": [{"kind": self._owner}]}
            return [] if label else [{**AUTOSCALER, "metadata": metadata}]
        return [self._live] if gvk.kind == "Deployment" else []

    async def get(self, gvk: Gvk, namespace: str, name: str) -> dict[str, Any] | None:
        return self._live if gvk.kind == "Deployment" else None


CASES = [
    (0, "kube-controller-manager", "Service", False),
    (0, "kube-controller-manager", "ScaledObject", True),
    (0, "keda", "ScaledObject", True),
    (1, "kube-controller-manager", "Service", True),
]


@pytest.mark.parametrize(("replicas", "manager", "owner", "left"), CASES)
def test_zero_replicas_are_applied_unless_keda_scales(replicas: int, manager: str, owner: str, left: bool) -> None:
    wanted = wanted_web(replicas)
    api = cast(ObjectClient, Api(scaled_web(wanted, manager), owner))
    seen = asyncio.run(observe_cluster(api, [wanted], InventoryRecord()))
    assert seen.scaled == ({wanted.key: manager} if left else {})


@pytest.mark.parametrize(("replicas", "manager", "owner", "left"), CASES)
def test_a_watch_sees_drift_only_where_the_next_run_reverts(
    replicas: int, manager: str, owner: str, left: bool
) -> None:
    """It cannot see whose the autoscaler is: what the last run has left to it is no drift."""
    wanted = wanted_web(replicas)
    live = scaled_web(wanted, manager)
    scaled = asyncio.run(observe_cluster(cast(ObjectClient, Api(live, owner)), [wanted], InventoryRecord())).scaled
    declared_fields = compare(wanted.body, live, wanted.leave, Hands()).apply
    scaled_fields = ("f:spec", "f:replicas")
    owned = [each.path for each in declared_fields if each.path != scaled_fields]
    live["metadata"]["managedFields"] = own_fields(live, owned)
    differs: list[bool] = []
    watched = WatchedKind(wanted.gvk, {wanted.key: wanted}, Hands(), lambda: differs.append(True), {}, scaled)
    watched.put(live)
    assert bool(differs) is not left
