"""ConfigMap of a dataset for the cache daemon: its versions in the tier, and when to load and free them."""

from __future__ import annotations

from collections.abc import Mapping

from avactl.base.quantity import parse_quantity
from avactl.contracts.cache import DATASET_KEY, DatasetConfig, DatasetVersionConfig, PrewarmConfig
from avactl.contracts.document import dump
from avactl.contracts.names import CACHE_DATASET_CONFIG, CACHE_NAMESPACE, CONFIG_LABEL
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.dataset import DatasetSpec, Version


def config_map(
    item: Item[DatasetSpec],
    program: Program,
    tier: Item[CacheTierSpec],
    paths: Mapping[str, str],
    prewarmed: list[Version],
    claims: Mapping[str, list[str]],
) -> Manifest:
    """Return the ConfigMap. `paths` and `claims`: path in the tier and namespaces with a claim, by version."""
    namespace = item.namespace or program.cluster_spec(tier.spec.cluster).system_namespace
    document = DatasetConfig(
        namespace=namespace,
        name=item.spec_name,
        tier=tier.name,
        versions=tuple(_build_version(item, version, paths[version.name], claims) for version in item.spec.versions),
        prewarm=_prewarm(item, prewarmed),
    )
    return k8s.config_map(
        item,
        tier.spec.cluster,
        f"dataset.{namespace}.{item.name}",
        CACHE_NAMESPACE,
        {DATASET_KEY: dump(document, indent=True)},
        component="daemon",
        extra_labels={CONFIG_LABEL: CACHE_DATASET_CONFIG},
    )


def _build_version(
    item: Item[DatasetSpec], version: Version, path: str, claims: Mapping[str, list[str]]
) -> DatasetVersionConfig:
    # `size` is that of the newest version.
    newest = version is item.spec.versions[-1]
    return DatasetVersionConfig(
        name=version.name,
        path=path,
        bytes=int(parse_quantity(item.spec.size)) if newest and item.spec.size else None,
        files=item.spec.files if newest else None,
        claims=tuple(claims.get(version.name, ())),
    )


def _prewarm(item: Item[DatasetSpec], prewarmed: list[Version]) -> PrewarmConfig | None:
    prewarm = item.spec.prewarm
    if prewarm is None:
        return None
    return PrewarmConfig(
        versions=tuple(version.name for version in prewarmed),
        pin=prewarm.pin,
        when=prewarm.when,
        throttle=int(parse_quantity(prewarm.bandwidth)) if prewarm.bandwidth else None,
    )
