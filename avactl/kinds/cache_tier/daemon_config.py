"""ConfigMap of a tier for the cache daemon."""

from __future__ import annotations

from avactl.contracts.cache import TIER_KEY
from avactl.contracts.document import dump
from avactl.contracts.names import CACHE_NAMESPACE, CACHE_TIER_CONFIG, CONFIG_LABEL
from avactl.program.cache_engines import engine_of
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec


def config_map(item: Item[CacheTierSpec], program: Program) -> list[Manifest]:
    """Return the ConfigMap; none if the cluster runs no cache daemon, or it does not know the engine."""
    document = engine_of(item).daemon
    if document is None or not program.cluster_spec(item.spec.cluster).daemons.cache:
        return []
    data = {TIER_KEY: dump(document(item), indent=True)}
    return [
        k8s.config_map(
            item,
            item.spec.cluster,
            f"tier.{item.name}",
            CACHE_NAMESPACE,
            data,
            component="daemon",
            extra_labels={CONFIG_LABEL: CACHE_TIER_CONFIG},
        )
    ]
