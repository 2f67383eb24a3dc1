"""Dataset → volumes and claims in each reading namespace, metadata, and the Jobs that prewarm and free it."""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.kinds.dataset.daemon_config import config_map
from avactl.program import registry
from avactl.program.cache_engines import Loaded, engine_of
from avactl.program.dataset_access import claim_name, list_in_pods, mounted_versions, tier_path
from avactl.program.dataset_listing import OWN_DIRECTORY, copy_files, read_listing, version_directory
from avactl.program.lowering import k8s
from avactl.program.lowering.volumes import NOMINAL_SIZE, claimed_volume
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.dataset import DatasetSpec, Version

Place = tuple[str, str, str | None]
"""Cluster, namespace and team of pods that read a dataset."""


def lower(item: Item[DatasetSpec], program: Program) -> list[Manifest]:
    """Return the objects of one dataset. None of them holds data: that is in the object store."""
    tier = program.tier(item.spec.tier) if item.spec.tier else None
    result = [_build_metadata(item, program, cluster, tier) for cluster in reading_clusters(item, tier)]
    if tier is None:
        for (cluster, namespace, team), names in sorted(dataset_readers(program).get(item.key, {}).items(), key=str):
            for version in item.spec.versions:
                if version.name in names:
                    result += _build_list(item, program, version, cluster, namespace, team)
        return result
    for (cluster, namespace, team), names in sorted(volume_places(item, program, tier).items(), key=str):
        for version in item.spec.versions:
            if version.name in names:
                result += _build_volume(item, program, tier, version, cluster, namespace, team)
    engine = engine_of(tier)
    if engine.daemon is not None and program.cluster_spec(tier.spec.cluster).daemons.cache:
        result.append(_for_daemon(item, program, tier))
    return result + engine.dataset(item, program, tier, _loaded_versions(item, program, tier))


def _loaded_versions(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> list[Loaded]:
    ahead = prewarmed_versions(item)
    return [
        Loaded(
            each.name,
            version_directory(item, program, each),
            _version_path(item, program, tier, each),
            each in ahead,
            read_listing(item, program, each),
        )
        for each in item.spec.versions
    ]


def reading_clusters(item: Item[DatasetSpec], tier: Item[CacheTierSpec] | None) -> tuple[str, ...]:
    """Clusters where a dataset can be read: with a tier, the tier's cluster."""
    return item.clusters if tier is None else (tier.spec.cluster,)


# -- who reads what ------------------------------------------------------------------------------------------------


def dataset_readers(program: Program) -> dict[tuple[str, str, str], dict[Place, set[str]]]:
    """Dataset → reading places → versions. Computed once for all datasets."""

    def make() -> dict[tuple[str, str, str], dict[Place, set[str]]]:
        index: dict[tuple[str, str, str], dict[Place, set[str]]] = {}
        for kind in registry.workload_kinds():
            for reader in program.of(kind):
                for dataset, version in program.derive(reader, mounted_versions):
                    place = (reader.cluster, reader.ns, reader.team)
                    index.setdefault(dataset, {}).setdefault(place, set()).add(version)
        return index

    return program.memo("readers of datasets", make)


def volume_places(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> dict[Place, set[str]]:
    """Return where volumes of a dataset are needed: all versions for the owner, mounted versions elsewhere.

    Not for every team with access: many teams and versions would create far more objects than are used.
    """
    found = {place: set(names) for place, names in dataset_readers(program).get(item.key, {}).items()}
    if item.team is not None:
        own = found.setdefault((tier.spec.cluster, item.ns, item.team), set())
        own.update(version.name for version in item.spec.versions)
    return {place: names for place, names in found.items() if place[0] == tier.spec.cluster}


# -- volumes -------------------------------------------------------------------------------------------------------


def _version_path(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], version: Version) -> str:
    path = tier_path(tier, version_directory(item, program, version))
    if path is None:
        raise LookupError(f"{tier} does not hold version {version.name} of {item}")
    listing = read_listing(item, program, version) if engine_of(tier).copies else None
    return path if listing is None else f"{OWN_DIRECTORY}/{item.team or '_'}/{item.name}/{listing.sha256}"


def _build_volume(
    item: Item[DatasetSpec],
    program: Program,
    tier: Item[CacheTierSpec],
    version: Version,
    cluster: str,
    namespace: str,
    team: str | None,
) -> list[Manifest]:
    """Return a read-only PersistentVolume on the tier, its claim, and the object list if there is one."""
    claim = claim_name(item, version.name, team)
    volume = f"{namespace}-{claim}"
    place = engine_of(tier).volume(tier, program, volume, _version_path(item, program, tier, version), True)
    size = item.spec.size if item.spec.size and parse_quantity(item.spec.size) >= 2**20 else NOMINAL_SIZE
    result = claimed_volume(
        item,
        cluster,
        volume,
        claim,
        namespace,
        place,
        mode="ReadOnlyMany",
        component=version.name,
        capacity=size,
    )
    return result + _build_list(item, program, version, cluster, namespace, team)


def _build_list(
    item: Item[DatasetSpec], program: Program, version: Version, cluster: str, namespace: str, team: str | None
) -> list[Manifest]:
    """Return the ConfigMap with a version's list of objects, if pods get it; without a tier, they are copied by it."""
    found = read_listing(item, program, version) if list_in_pods(version) else None
    if found is None:
        return []
    about = {"prefix": found.prefix, "objects": found.objects, "sha256": found.sha256, "version": version.name}
    data = {"manifest.jsonl": found.data.decode(), "dataset.json": k8s.json_text(about)}
    if item.spec.tier is None:
        data |= copy_files(found, program)
    name = claim_name(item, version.name, team)
    return [k8s.config_map(item, cluster, name, namespace, data, component=version.name)]


# -- metadata ------------------------------------------------------------------------------------------------------


def _build_metadata(
    item: Item[DatasetSpec], program: Program, cluster: str, tier: Item[CacheTierSpec] | None
) -> Manifest:
    """Metadata of all versions, for people and programs."""
    spec = item.spec
    about = k8s.drop_none(
        name=item.spec_name,
        team=item.team,
        description=spec.description or None,
        format=spec.format,
        size=spec.size,
        tier=tier.spec_name if tier is not None else None,
        newest=spec.versions[-1].name,
        sharedWith=sorted(spec.shared_with) or None,
        versions=[_build_version(item, program, version, tier) for version in spec.versions],
    )
    namespace = item.namespace or program.cluster_spec(cluster).system_namespace
    return k8s.config_map(item, cluster, f"dataset-{item.name}", namespace, {"dataset.json": k8s.json_text(about)})


def _build_version(
    item: Item[DatasetSpec], program: Program, version: Version, tier: Item[CacheTierSpec] | None
) -> Body:
    found = read_listing(item, program, version)
    url = version_directory(item, program, version)
    return k8s.drop_none(
        name=version.name,
        url=url,
        path=_version_path(item, program, tier, version) if tier is not None else None,
        manifestUrl=version.manifest_url,
        objects=found.objects if found is not None else None,
        sha256=found.sha256 if found is not None else None,
        labels=found.labels or None if found is not None else None,
    )


def _for_daemon(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> Manifest:
    paths = {version.name: _version_path(item, program, tier, version) for version in item.spec.versions}
    claims: dict[str, list[str]] = {}
    for (_, namespace, _), names in sorted(volume_places(item, program, tier).items(), key=str):
        for name in names:
            claims.setdefault(name, []).append(namespace)
    return config_map(item, program, tier, paths, prewarmed_versions(item), claims)


def prewarmed_versions(item: Item[DatasetSpec]) -> list[Version]:
    """Versions to prewarm."""
    prewarm = item.spec.prewarm
    if prewarm is None:
        return []
    return [v for v in item.spec.versions if v.name in prewarm.versions] or [item.spec.versions[-1]]
