"""Placement of pods where the cache holds parts of their datasets: the annotation `DATA_LOCALITY`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import orjson

from avactl.contracts.pod_annotations import DATA_LOCALITY
from avactl.hardware.placement.fragmentation import Floats
from avactl.hardware.placement.masks import Mask
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.objects.limits import quote
from avactl.scheduler.objects.node_rules import UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo

MODES = ("prefer", "require")
MAX_VERSIONS = 16
"""Maximum number of dataset versions that one pod may wait for or be placed by."""
MAX_WEIGHT = 100.0
"""Weight of a node that holds all of the datasets, on the scale of Kubernetes' preferences."""


class Locality(NamedTuple):
    """A parsed annotation."""

    required: bool
    versions: tuple[str, ...]
    """Dataset versions, `NAMESPACE/NAME/VERSION`."""


class DatasetHolders(Protocol):
    """The nodes that hold parts of datasets."""

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
    if not isinstance(versions, list) or not 0 < len(versions) <= MAX_VERSIONS:
        raise ValueError(f"it has not 1 to {MAX_VERSIONS} dataset versions")
    for key in versions:
        check_version(key)
    return Locality(mode == "require", tuple(versions))


def locality_of(pod: PodInfo) -> Locality | None:
    """Return the parsed annotation of a pod; None if it has none. Raises RuleError."""
    annotation = pod.annotations.get(DATA_LOCALITY.name)
    if not annotation:
        return None
    try:
        return read_locality(annotation)
    except ValueError as error:
        raise UnsupportedError(f"annotation {DATA_LOCALITY.name}: {quote(error)}") from None


class DataLocality:
    """Feasible and preferred nodes by the datasets that their cache workers hold."""

    def __init__(self, tables: ClusterTables, holders: DatasetHolders) -> None:
        self._tables, self._holders = tables, holders

    def required_nodes(self, pod: PodInfo) -> Mask | None:
        """Return the nodes with a part of each required version; None: all. Raises RuleError."""
        locality = locality_of(pod)
        if locality is None or not locality.required:
            return None
        holders = [set(self._holders.holders(pod, key)) for key in locality.versions]
        return self._tables.mask(set.intersection(*holders))

    def node_weights(self, pod: PodInfo) -> Floats | None:
        """Return the weight of each slot by the share of the datasets that its node holds; None: all are equal.

        Raises RuleError.
        """
        locality = locality_of(pod)
        if locality is None:
            return None
        weights: Floats = np.zeros(len(self._tables.state.free))
        slots = self._tables.state.slots
        for key in locality.versions:
            for node, share in self._holders.holders(pod, key).items():
                if node in slots:
                    weights[slots[node]] += MAX_WEIGHT * share / len(locality.versions)
        return weights if weights.any() else None
