"""Placement of pods where the cache holds parts of their datasets: the annotation `DATA_LOCALITY`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import orjson

from avactl.contracts.pod_annotations import DATA_LOCALITY
from avactl.hardware.placement.fragmentation import Floats
from avactl.scheduler.cache.tables import ClusterTables, Mask
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import RuleError
from avactl.scheduler.objects.pod_info import PodInfo

MODES = ("prefer", "require")
MOST_VERSIONS = 16
"""Dataset versions that one pod may wait for or be placed by."""
_WEIGHT = 100.0
"""Weight of a node that holds all of the datasets, on the scale of Kubernetes' preferences."""


class Locality(NamedTuple):
    """A parsed annotation."""

    required: bool
    versions: tuple[str, ...]
    """Dataset versions, `NAMESPACE/NAME/VERSION`."""


class Holders(Protocol):
    """Which nodes hold parts of datasets."""

    def holders(self, pod: PodInfo, key: str) -> Mapping[str, float]:
        """Return the share of a version by node, as far as the pod may know it."""


def check_version(key: object) -> None:
    """Raise ValueError if a key does not name a dataset version."""
    if not isinstance(key, str) or key.count("/") != 2:
        raise ValueError(f"`{quote(key)}` is not NAMESPACE/NAME/VERSION")


@lru_cache(1024)
def read_locality(text: str) -> Locality:
    """Parse the annotation. Raises ValueError."""
    data = orjson.loads(text)
    if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in MODES:
        raise ValueError(f"it is not an object with {' or '.join(MODES)}")
    ((mode, versions),) = data.items()
    if not isinstance(versions, list) or not 0 < len(versions) <= MOST_VERSIONS:
        raise ValueError(f"it has not 1 to {MOST_VERSIONS} dataset versions")
    for key in versions:
        check_version(key)
    return Locality(mode == "require", tuple(versions))


def locality_of(pod: PodInfo) -> Locality | None:
    """Return where a pod should or must be; None: anywhere. Raises RuleError."""
    if not pod.locality:
        return None
    try:
        return read_locality(pod.locality)
    except ValueError as error:
        raise RuleError(f"annotation {DATA_LOCALITY.name}: {quote(error)}") from None


class DataLocality:
    """Nodes by what their cache workers hold."""

    def __init__(self, tables: ClusterTables, holders: Holders) -> None:
        self._tables, self._holders = tables, holders

    def among(self, pod: PodInfo) -> tuple[Mask | None, str]:
        """Return the nodes with a part of each required version, and why others are not; None: all.

        Raises RuleError.
        """
        wanted = locality_of(pod)
        if wanted is None or not wanted.required:
            return None, ""
        each = [self._holders.holders(pod, key).keys() for key in wanted.versions]
        mask = self._tables.mask(set.intersection(*map(set, each)))
        alive = self._tables.state.capacity[:, 0] >= 0
        lost = int((~mask & alive).sum())
        return mask, f"{lost} without a part of its datasets in the cache" if lost else ""

    def preferred(self, pod: PodInfo) -> Floats | None:
        """Return the weight of each slot by the share of the datasets that its node holds; None: all are equal.

        Raises RuleError.
        """
        wanted = locality_of(pod)
        if wanted is None:
            return None
        result: Floats = np.zeros(len(self._tables.state.free))
        slots = self._tables.state.slots
        for key in wanted.versions:
            for node, share in self._holders.holders(pod, key).items():
                if node in slots:
                    result[slots[node]] += _WEIGHT * share / len(wanted.versions)
        return result if result.any() else None
