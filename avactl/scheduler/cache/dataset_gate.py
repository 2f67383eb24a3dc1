"""Gate of pods that start once datasets are cached: the annotation `START_WHEN_WARM`, and the cache daemon's status.

A pod keeps waiting while the status is missing, and is told so: it never starts cold in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from time import monotonic, time
from typing import Any, NamedTuple

import orjson

from avactl.contracts import names
from avactl.contracts.pod_annotations import START_WHEN_WARM
from avactl.kube import logs
from avactl.scheduler.cache.data_locality import MOST_VERSIONS, check_version, locality_of
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import NotYetError, RuleError
from avactl.scheduler.objects.pod_info import PodInfo

WANTED = "status of datasets"
"""Name of the awaited object, for `Waits`."""
_OLD = 300.0
"""Seconds after which a status is reported with its age."""
_AGAIN = 30.0
"""Seconds after which waiting pods are told how old the status is."""


class GateError(NotYetError):
    """The pod waits for a dataset; reported at once."""


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
    if not isinstance(data, dict) or not 0 < len(data) <= MOST_VERSIONS:
        raise ValueError(f"it is not an object with 1 to {MOST_VERSIONS} datasets")
    for key, percent in data.items():
        check_version(key)
        if type(percent) is not int or not 1 <= percent <= 100:
            raise ValueError(f"the percentage of `{quote(key)}` is not a whole number from 1 to 100")
    return tuple(data.items())


class DatasetGate:
    """The cache daemon's status, and the pods that it holds back."""

    def __init__(self, arrived: Callable[[str], None], daemon: bool, moved: Callable[[], None] = lambda: None) -> None:
        """`arrived` is called with `WANTED` when the status changes, `moved` when other nodes hold data that pods have
        asked for; `daemon`: the cluster runs the cache daemon.
        """
        self._arrived, self._daemon, self._moved = arrived, daemon, moved
        self._asked = False
        """True if a placement has depended on what nodes hold since the last change of that."""
        self._known: dict[str, _Progress] = {}
        self._reported = False
        self._ticked = monotonic()

    def check(self, pod: PodInfo) -> None:
        """Return if the pod may start. Raises GateError, and RuleError for an invalid annotation."""
        self._check_locality(pod)
        if not pod.warm:
            return
        try:
            wanted = read_warm(pod.warm)
        except ValueError as error:
            raise RuleError(f"annotation {START_WHEN_WARM.name}: {quote(error)}") from None
        for key, percent in wanted:
            known = self._readable(pod, key)
            if known is None or known.percent < percent:
                raise GateError(f"waits for dataset {_named(key)}: {self._words(known)}", WANTED)

    def _check_locality(self, pod: PodInfo) -> None:
        """Raise GateError if no node holds a part of a dataset that the pod must be next to."""
        wanted = locality_of(pod)
        for key in wanted.versions if wanted is not None and wanted.required else ():
            if not self.holders(pod, key):
                words = self._words(self._readable(pod, key))
                raise GateError(f"waits for a node with a part of dataset {_named(key)}: {words}", WANTED)

    def holders(self, pod: PodInfo, key: str) -> Mapping[str, float]:
        """Return the share of a dataset version by node; empty if the pod may not know it, or nobody does."""
        self._asked = True
        known = self._readable(pod, key)
        return {} if known is None else known.holders

    def _readable(self, pod: PodInfo, key: str) -> _Progress | None:
        # A tenant writes any annotation: the progress of others' datasets is not for it.
        known = self._known.get(key)
        mine = known is not None and (pod.namespace == key.partition("/")[0] or pod.namespace in known.claims)
        return known if mine else None

    def _words(self, known: _Progress | None) -> str:
        if not self._daemon:
            return "the cluster runs no cache daemon (daemons.cache)"
        if known is None and not self._reported:
            return "the cache daemon has not reported anything yet"
        if known is None:
            return "the cache daemon reports no such dataset for this namespace"
        words = f"{known.percent:.0f}%"
        if known.eta >= 0:
            words += f", about {max(1, round(known.eta / 60))} min" if known.eta >= 60 else f", about {known.eta:.0f} s"
        age = time() - known.updated
        return f"{words} (as of {age / 60:.0f} min ago)" if age > _OLD and known.updated else words

    def tick(self) -> None:
        """Let waiting pods be told how old the status is."""
        if monotonic() - self._ticked >= _AGAIN:
            self._ticked = monotonic()
            self._arrived(WANTED)

    # -- a watch store ---------------------------------------------------------------------------------------------

    def put(self, item: Mapping[str, Any]) -> None:
        """Take over the ConfigMap. An invalid one leaves the last valid content in use."""
        try:
            datasets = orjson.loads((item.get("data") or {}).get("status.json") or "{}").get("datasets") or {}
            known = {str(key): _progress(value) for key, value in datasets.items()}
        except (ValueError, TypeError, AttributeError) as error:
            logs.error("invalid status of datasets", error=repr(error))
            return
        moved = self._asked and _held(known) != _held(self._known)
        self._known, self._reported = known, True
        self._arrived(WANTED)
        if moved:
            self._asked = False
            self._moved()

    def remove(self, key: str) -> None:
        """Forget the status."""
        self._known, self._reported = {}, False
        self._arrived(WANTED)

    def keys(self) -> list[str]:
        """Return the key of the ConfigMap, if it is known."""
        return [f"{names.CACHE_NAMESPACE}/{names.CACHE_STATUS}"] if self._reported else []


def _progress(value: Mapping[str, Any]) -> _Progress:
    """Raises ValueError, TypeError."""
    eta, claims = value.get("etaSeconds"), value.get("claims") or ()
    updated = float(value.get("updated") or 0)
    shares = {str(node): min(1.0, float(share)) for node, share in (value.get("holders") or {}).items()}
    known = min(float(eta), 1e7) if eta is not None else -1.0
    return _Progress(
        float(value.get("percent") or 0),
        known,
        updated,
        frozenset(map(str, claims)),
        {node: share for node, share in shares.items() if share > 0},
    )


def _held(known: Mapping[str, _Progress]) -> dict[str, frozenset[str]]:
    return {key: frozenset(progress.holders) for key, progress in known.items()}


def _named(key: str) -> str:
    """Name and version of a dataset, from its key."""
    _, name, version = key.split("/")
    return f"{quote(name)} {quote(version)}"
