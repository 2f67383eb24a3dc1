"""Pods that start once datasets are cached, or next to the data: two annotations, and the cache daemon's status.

A pod with `START_WHEN_WARM` keeps waiting while the status is missing, and its message says so: it never starts cold
without notice. `DATA_LOCALITY` is evaluated in `data_locality`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from time import monotonic, time
from typing import Any, NamedTuple

import orjson

from avactl.base.object_identity import namespaced_name
from avactl.contracts import names
from avactl.contracts.cache import STATUS_KEY, CacheStatus, DatasetStatus
from avactl.contracts.document import DocumentError, load
from avactl.contracts.pod_annotations import DATA_LOCALITY, START_WHEN_WARM
from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.placement.fragmentation import Floats
from avactl.kube import logs
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint import ALL_NODES, Constraint, NodeFilter, Watch
from avactl.scheduler.constraints.data_locality import MAX_VERSIONS, DataLocality, check_version, locality_of
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import ReportedWaitError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.objects.wait_reasons import WaitReason

_STATUS_NAME = f"{names.CACHE_NAMESPACE}/{names.CACHE_STATUS}"
_STATUS_CHANGED = "status of datasets"
"""Event that pods wait for."""
MAX_STATUS_AGE_S = 300.0
"""Age from which on messages state how old the status is."""
MESSAGE_REFRESH_S = 30.0
"""Interval at which waiting pods get a new message, because the age of the status in it grows."""


class _Progress(NamedTuple):
    percent: float
    eta: float
    """Seconds until all of it is cached; negative: unknown."""
    updated: float
    """Unix time; 0: unknown."""
    claims: frozenset[str]
    """Namespaces with a claim for the version."""
    holders: Mapping[str, float]
    """Share of the version in the cache of each node."""


@lru_cache(1024)
def read_warm(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the annotation: dataset versions as `NAMESPACE/NAME/VERSION`, with percentages. Raises ValueError."""
    data = orjson.loads(text)
    if not isinstance(data, dict) or not 0 < len(data) <= MAX_VERSIONS:
        raise ValueError(f"it is not an object with 1 to {MAX_VERSIONS} datasets")
    for key, percent in data.items():
        check_version(key)
        if type(percent) is not int or not 1 <= percent <= 100:
            raise ValueError(f"the percentage of `{quote(key)}` is not a whole number from 1 to 100")
    return tuple(data.items())


class CachedDatasets(Constraint):
    """Makes pods wait for cached datasets, and places them next to the data; a watch store of the daemon's status."""

    title = "datasets"
    declared = False

    def __init__(self, cache: ClusterCache, policy: PlacementPolicy) -> None:
        super().__init__(cache, policy)
        self._daemon = policy.cache_daemon
        self._locality = DataLocality(cache.tables, self)
        self._holders_read = False
        """True if a placement has depended on the holders since they last changed."""
        self._known: dict[str, _Progress] = {}
        self._reported = False
        self._refreshed = monotonic()

    def watches(self) -> Iterable[Watch]:
        """Return the ConfigMap of the daemon's status, the only one of its namespace that the account may read."""
        if not self._daemon:
            return ()
        path = f"/api/v1/namespaces/{names.CACHE_NAMESPACE}/configmaps"
        return (Watch(path, self, {"fieldSelector": f"metadata.name={names.CACHE_STATUS}"}),)

    # -- questions about a pod --------------------------------------------------------------------------------------

    def check_ready(self, pod: PodInfo) -> None:
        """Return if the pod may start. Raises ReportedWaitError, and RuleError for an invalid annotation."""
        if not pod.annotations:
            return
        self._check_locality(pod)
        annotation = pod.annotations.get(START_WHEN_WARM.name)
        if not annotation:
            return
        try:
            versions = read_warm(annotation)
        except ValueError as error:
            raise UnsupportedError(f"annotation {START_WHEN_WARM.name}: {quote(error)}") from None
        for key, percent in versions:
            progress = self._readable_progress(pod, key)
            if progress is None or progress.percent < percent:
                message = f"waits for dataset {_display_name(key)}: {self._describe(progress)}"
                raise ReportedWaitError(message, _STATUS_CHANGED, WaitReason.DATASET, under_way=progress is not None)

    def _check_locality(self, pod: PodInfo) -> None:
        """Raise ReportedWaitError if no node holds a part of a dataset that the pod must be next to."""
        locality = locality_of(pod)
        for key in locality.versions if locality is not None and locality.required else ():
            if not self.holders(pod, key):
                progress = self._readable_progress(pod, key)
                message = f"waits for a node with a part of dataset {_display_name(key)}: {self._describe(progress)}"
                raise ReportedWaitError(message, _STATUS_CHANGED, WaitReason.DATASET, under_way=progress is not None)

    def filter_nodes(self, pod: PodInfo) -> NodeFilter:
        """Return the nodes with a part of each required dataset version. Raises RuleError."""
        mask = self._locality.required_nodes(pod)
        return ALL_NODES if mask is None else self.only_nodes(mask, "without a part of its datasets in the cache")

    def restricts(self, pod: PodInfo) -> bool:
        """Return True if the pod must be next to its data. Raises RuleError."""
        return self._locality.required_nodes(pod) is not None

    def score_nodes(self, pod: PodInfo) -> Floats | None:
        """Return the weight of each slot by the datasets that its node holds. Raises RuleError."""
        return self._locality.node_weights(pod)

    def outweighs_closeness(self, pod: PodInfo) -> bool:
        """Return True for pods that are placed by their data."""
        return bool(pod.annotations.get(DATA_LOCALITY.name))

    def holders(self, pod: PodInfo, key: str) -> Mapping[str, float]:
        """Return the share of a dataset version by node; empty if it is unknown, or if the pod may not know it."""
        self._holders_read = True
        progress = self._readable_progress(pod, key)
        return {} if progress is None else progress.holders

    def _readable_progress(self, pod: PodInfo, key: str) -> _Progress | None:
        # A tenant can write any annotation, but must not learn about other tenants' datasets.
        progress = self._known.get(key)
        if progress is None or not (pod.namespace == key.partition("/")[0] or pod.namespace in progress.claims):
            return None
        return progress

    def _describe(self, progress: _Progress | None) -> str:
        if not self._daemon:
            return "the cluster runs no cache daemon (daemons.cache)"
        if progress is None and not self._reported:
            return "the cache daemon has not reported anything yet"
        if progress is None:
            return "the cache daemon reports no such dataset for this namespace"
        text, eta = f"{progress.percent:.0f}%", progress.eta
        if eta >= 0:
            text += f", about {max(1, round(eta / 60))} min" if eta >= 60 else f", about {eta:.0f} s"
        age = time() - progress.updated
        return f"{text} (as of {age / 60:.0f} min ago)" if age > MAX_STATUS_AGE_S and progress.updated else text

    def tick(self) -> None:
        """Refresh the messages of waiting pods, which state the age of the status."""
        if monotonic() - self._refreshed >= MESSAGE_REFRESH_S:
            self._refreshed = monotonic()
            self.event_occurred(_STATUS_CHANGED)

    # -- a watch store ----------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Add or update the ConfigMap. An invalid one leaves the last valid content in use."""
        if namespaced_name(item) != _STATUS_NAME:
            return  # a snapshot has other ConfigMaps, too
        try:
            status = load(CacheStatus, (item.get("data") or {}).get(STATUS_KEY, "{}"))
        except DocumentError as error:
            logs.error("invalid status of datasets", error=str(error))
            return
        known = {key: _make_progress(each) for key, each in status.datasets.items()}
        moved = self._holders_read and _nodes_by_version(known) != _nodes_by_version(self._known)
        self._known, self._reported = known, True
        self.event_occurred(_STATUS_CHANGED)
        if moved:
            self._holders_read = False
            self.nodes_freed()

    def remove(self, key: str) -> None:
        """Forget the status."""
        self._known, self._reported = {}, False
        self.event_occurred(_STATUS_CHANGED)

    def keys(self) -> list[str]:
        """Return the key of the ConfigMap, if it is known."""
        return [_STATUS_NAME] if self._reported else []


def _make_progress(status: DatasetStatus) -> _Progress:
    return _Progress(
        percent=status.percent,
        eta=-1.0 if status.eta_seconds is None else float(status.eta_seconds),
        updated=float(status.updated),
        claims=frozenset(status.claims),
        holders={node: share for node, share in status.holders.items() if share > 0},
    )


def _nodes_by_version(known: Mapping[str, _Progress]) -> dict[str, frozenset[str]]:
    return {key: frozenset(progress.holders) for key, progress in known.items()}


def _display_name(key: str) -> str:
    """Return name and version of a dataset, from its key."""
    _, name, version = key.split("/")
    return f"{quote(name)} {quote(version)}"
