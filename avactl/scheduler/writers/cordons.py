"""Cordons of machines that fail pods of several teams, where the NodePool permits it (`onFailedPods: cordon`).

The time of the cordon is an annotation of the node: once an administrator has uncordoned it, only pods that start later
cordon it again, also after a restart of the scheduler.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from avactl.contracts import names
from avactl.kube import logs
from avactl.kube.client import MERGE, ApiError, Client, Rate, UnreachableError
from avactl.kube.timestamps import timestamp
from avactl.scheduler.cache.failed_pods import SUSPECT_JOBS, describe
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.writers.node_warnings import NodeReporter

CORDONED = "NodeCordoned"
"""Reason of the Event."""
RETRY_S = 300.0
"""Seconds until a cordon is tried again that this account may not make, or whose node is gone."""
MAX_SHARE = 10
"""One in so many machines of a pool may be cordoned before the scheduler cordons no more; one in a smaller pool."""


def find_cordons(tables: ClusterTables) -> dict[str, str]:
    """Return the nodes to be cordoned, and why.

    Of many machines that fail pods, most are sound: an image registry, a volume or a plugin is at fault. So those that
    are cordoned, by whomever, count against the bound of their pool.
    """
    suspects = tables.failed.suspects()
    if not suspects:
        return {}
    total: Counter[str] = Counter()
    cordoned: Counter[str] = Counter()
    for info in tables.nodes.values():
        pool = info.labels.get(names.POOL_LABEL, "")
        total[pool] += 1
        cordoned[pool] += info.cordoned
    found = {}
    for node, pods in sorted(suspects.items()):
        known = tables.nodes.get(node)
        consent = tables.pool_of(known) if known is not None else None
        if known is None or known.cordoned or consent is None or consent.on_failed_pods != "cordon":
            continue
        since = [pod for pod in pods if pod.at > known.cordoned_at]
        teams = {tables.team_of(pod.namespace) for pod in since}
        if len(teams) >= SUSPECT_JOBS and cordoned[consent.name] < max(1, total[consent.name] // MAX_SHARE):
            cordoned[consent.name] += 1
            found[node] = describe(since)
    return found


class Cordons:
    """Cordons nodes by patches."""

    def __init__(
        self, client: Client, rate: Rate, tables: ClusterTables, reporter: NodeReporter, leading: Callable[[], bool]
    ) -> None:
        self._client, self._rate, self._tables = client, rate, tables
        self._reporter, self._leading = reporter, leading
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By name of the node."""
        self._sent: dict[str, float] = {}
        """Times of cordons, Unix time, that the watch has not told yet."""
        self._refused: dict[str, float] = {}
        """When patches of nodes are tried again that the API server has refused, Unix time."""

    def tick(self) -> None:
        """Cordon the nodes that fail pods; what failed is tried again."""
        nodes = self._tables.nodes
        self._sent = {node: at for node, at in self._sent.items() if node in nodes and nodes[node].cordoned_at < at}
        if self._tables.stale or self._tasks or self._sent:  # the bound counts cordons that have been observed
            return
        for node, why in find_cordons(self._tables).items():
            if self._refused.get(node, 0.0) <= self._client.clock.now():
                self._tasks[node] = asyncio.ensure_future(self._cordon(node, why))

    async def _cordon(self, node: str, why: str) -> None:
        now = int(self._client.clock.now())
        at = timestamp(now)
        body = {"metadata": {"annotations": {names.CORDONED_AT: at}}, "spec": {"unschedulable": True}}
        try:
            await self._rate.take()
            if self._leading():
                await self._client.send("PATCH", f"/api/v1/nodes/{node}", body, content_type=MERGE)
                self._sent[node] = now
                logs.info("node cordoned", node=node, reason=why)
                self._reporter.warn_of_node(node, CORDONED, f"{why}; uncordon it once it is repaired")
        except ApiError as error:
            if error.status in (403, 404):
                self._refused[node] = self._client.clock.now() + RETRY_S
            logs.warn("node not cordoned", node=node, error=str(error))
        except UnreachableError as error:
            logs.warn("node not cordoned", node=node, error=str(error))
        finally:
            del self._tasks[node]
