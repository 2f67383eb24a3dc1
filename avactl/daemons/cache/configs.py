"""Tiers and datasets as the compiled ConfigMaps declare them. A broken one is its own error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from avactl.base.object_identity import namespaced_name, object_reference
from avactl.contracts.cache import DATASET_KEY, FLUSH_KEY, TIER_KEY, DatasetConfig, FlushRequest, TierConfig
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import CACHE_DATASET_CONFIG, CACHE_FLUSH_CONFIG, CACHE_TIER_CONFIG, CONFIG_LABEL
from avactl.kube.timestamps import unix_time

MAX_OBJECTS = 5_000
"""ConfigMaps that are read; the rest are errors."""


class Configs:
    """The ConfigMaps of a cluster. `tiers` and `datasets` are those of the objects that parse, by the objects' keys."""

    def __init__(self) -> None:
        self.tiers: dict[str, TierConfig] = {}
        self.datasets: dict[str, DatasetConfig] = {}
        self.flushes: dict[str, tuple[str, float]] = {}
        """Paths to be flushed, and when that was asked for, Unix seconds."""
        self.errors: dict[str, str] = {}
        """Why an object is not used, by its key."""
        self.references: dict[str, dict[str, str]] = {}
        """References to the objects, for events."""
        self.unreported: set[str] = set()
        """Broken objects without an event so far."""

    def put(self, item: dict[str, Any]) -> None:
        """Add or update a ConfigMap."""
        key, metadata = namespaced_name(item), item["metadata"]
        kind = (metadata.get("labels") or {}).get(CONFIG_LABEL)
        if kind not in (CACHE_TIER_CONFIG, CACHE_DATASET_CONFIG, CACHE_FLUSH_CONFIG):
            return
        previous = self.errors.get(key)
        self._forget(key)
        self.references[key] = object_reference("v1", "ConfigMap", metadata)
        data = item.get("data") or {}
        try:
            if len(self.references) > MAX_OBJECTS:
                raise DocumentError(f"more than {MAX_OBJECTS} objects")
            if kind == CACHE_TIER_CONFIG:
                self.tiers[key] = self._unique_tier(key, load(TierConfig, data.get(TIER_KEY)))
            elif kind == CACHE_FLUSH_CONFIG:
                asked = unix_time(metadata["creationTimestamp"])
                self.flushes[key] = (load(FlushRequest, data.get(FLUSH_KEY)).path, asked)
            else:
                self.datasets[key] = self._unique_dataset(key, load(DatasetConfig, data.get(DATASET_KEY)))
        except DocumentError as error:
            self.errors[key] = str(error)
            if self.errors[key] != previous:
                self.unreported.add(key)

    def remove(self, key: str) -> None:
        """Remove a ConfigMap."""
        self._forget(key)
        self.references.pop(key, None)

    def keys(self) -> Iterable[str]:
        """Return the keys of all objects, the broken ones too."""
        return list(self.references)

    def of_tier(self, tier: str) -> list[DatasetConfig]:
        """Return the datasets of a tier, in the order of their names."""
        found = (each for each in self.datasets.values() if each.tier == tier)
        return sorted(found, key=lambda each: (each.namespace, each.name))

    def _forget(self, key: str) -> None:
        self.tiers.pop(key, None)
        self.datasets.pop(key, None)
        self.flushes.pop(key, None)
        self.errors.pop(key, None)
        self.unreported.discard(key)

    def _unique_tier(self, key: str, tier: TierConfig) -> TierConfig:
        if any(other.name == tier.name for at, other in self.tiers.items() if at != key):
            raise DocumentError(f"tier `{tier.name}` is declared by another object")
        return tier

    def _unique_dataset(self, key: str, dataset: DatasetConfig) -> DatasetConfig:
        name = (dataset.namespace, dataset.name)
        if any((other.namespace, other.name) == name for at, other in self.datasets.items() if at != key):
            raise DocumentError(f"dataset `{'/'.join(name)}` is declared by another object")
        return dataset
