"""Watch the cluster for drift."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from avactl.apply.reconcile.desired import INVENTORY, Wanted, find_scaler, is_switched_off, without_replicas
from avactl.apply.reconcile.diffing.field_policy import Hands
from avactl.apply.reconcile.diffing.object_diff import Difference, compare
from avactl.base.object_identity import Gvk, ObjectKey, namespaced_name
from avactl.kube.client import Client
from avactl.kube.object_client import ObjectClient
from avactl.kube.reflector import Reflector


class WatchedKind:
    """Watch handler of one kind: compares each object it receives and keeps none."""

    def __init__(
        self,
        gvk: Gvk,
        wanted: Mapping[ObjectKey, Wanted],
        hands: Hands,
        differs: Callable[[], None],
        rewritten: Mapping[ObjectKey, list[Difference]],
        scaled: Collection[ObjectKey],
    ) -> None:
        self._gvk, self._wanted, self._hands, self._differs = gvk, wanted, hands, differs
        self._rewritten, self._scaled = rewritten, scaled
        self._names = {f"{key.namespace}/{key.name}" if key.namespace else key.name for key in wanted}
        self._seen: set[str] = set()

    def put(self, item: dict[str, Any]) -> None:
        item["apiVersion"], item["kind"] = self._gvk
        self._seen.add(namespaced_name(item))
        each = self._wanted.get(ObjectKey.of(item))
        if each is None:
            return
        scaler = find_scaler(each, item)
        if scaler and (each.key in self._scaled or not is_switched_off(each, scaler)):
            each = without_replicas(each)
        found = compare(each.body, item, each.leave, self._hands)
        if not found.same and not found.unsure and found.all() != self._rewritten.get(each.key):
            self._differs()

    def remove(self, key: str) -> None:
        self._seen.discard(key)
        if key in self._names:
            self._differs()

    def keys(self) -> Iterable[str]:
        return list(self._seen)


class DriftWatcher:
    """Watches of all declared kinds."""

    def __init__(self, client: Client, api: ObjectClient, inventory: str, hands: Hands) -> None:
        self._client, self._api, self._inventory, self._hands = client, api, inventory, hands
        self._tasks: list[asyncio.Task[None]] = []
        self.differs = asyncio.Event()
        self.rewritten: dict[ObjectKey, list[Difference]] = {}
        """Differences that admission makes again on every write: a run of their own would change nothing."""
        self.scaled: set[ObjectKey] = set()
        """Workloads whose `replicas` the last run has left to a controller."""

    async def watch(self, wanted: Iterable[Wanted]) -> None:
        """Watch for differences from these objects from now on."""
        await self.stop()
        kinds: dict[Gvk, dict[ObjectKey, Wanted]] = {}
        for each in wanted:
            kinds.setdefault(each.gvk, {})[each.key] = each
        missing = await self._api.find_kinds(set(kinds))
        for gvk, declared in kinds.items():
            if gvk in missing:
                continue
            store = WatchedKind(gvk, declared, self._hands, self.differs.set, self.rewritten, self.scaled)
            query = {"labelSelector": f"{INVENTORY}={self._inventory}"}
            reflector = Reflector(self._client, self._api.resource(gvk).path(""), store, query=query, optional=True)
            self._tasks.append(asyncio.create_task(reflector.run()))

    async def stop(self) -> None:
        """Stop all watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
