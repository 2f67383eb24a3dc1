"""Pods that start once their datasets are cached (`startWhen`), and on nodes that hold a part of them (`locality`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Protocol

from avactl.contracts.pod_annotations import DATA_LOCALITY, START_WHEN_WARM
from avactl.diagnostics import Diagnostic, Note
from avactl.program.cache_engines import engine_of
from avactl.program.dataset_access import dataset_mounts, find, version_of
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.spec.platform.dataset import DatasetSpec
from avactl.spec.schema.compute import StartWhen
from avactl.spec.schema.values import percent_number

MOST = 16
"""Datasets with a cache tier of one pod; the scheduler refuses more."""


class Awaiting(Protocol):
    """A spec whose pods can wait for their datasets."""

    @property
    def start_when(self) -> StartWhen | None: ...


class LocalStart(Protocol):
    """A spec whose pods can run where their datasets are cached."""

    @property
    def locality(self) -> str | None: ...


def start_when_warm(item: Item[Awaiting], program: Program) -> dict[str, str]:
    """Annotations of pods that start once their datasets are cached; see `START_WHEN_WARM`."""
    if item.spec.start_when is None:
        return {}
    share = percent_number(item.spec.start_when.warm)
    wanted = {
        _status_key(item, program, dataset, version): share for dataset, version in _cached_versions(item, program)
    }
    return {START_WHEN_WARM.name: _to_json(wanted)} if wanted else {}


def data_locality(item: Item[LocalStart], program: Program) -> dict[str, str]:
    """Annotations of pods that run where parts of their datasets are cached; see `DATA_LOCALITY`."""
    if item.spec.locality is None:
        return {}
    wanted = sorted(
        {_status_key(item, program, dataset, version) for dataset, version in _cached_versions(item, program)}
    )
    return {DATA_LOCALITY.name: _to_json({item.spec.locality: wanted})} if wanted else {}


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _status_key(item: Item, program: Program, dataset: Item[DatasetSpec], version: str) -> str:
    """Name of a version in the status of the cache daemon."""
    namespace = dataset.namespace or program.cluster_spec(item.cluster).system_namespace
    return f"{namespace}/{dataset.spec_name}/{version}"


def _cached_versions(item: Item, program: Program) -> list[tuple[Item[DatasetSpec], str]]:
    """Datasets with a cache tier that a spec mounts, and their versions."""
    found = []
    for mount in dataset_mounts(item):
        dataset = find(program, item.team, mount.name)
        version = version_of(dataset, mount.version) if dataset is not None else None
        if dataset is not None and version is not None and dataset.spec.tier:
            found.append((dataset, version.name))
    return found


def start_problems(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of `spec.startWhen` and `spec.locality`."""
    for key, name in (("startWhen", "start_when"), ("locality", "locality")):
        if getattr(item.spec, name, None) is not None:
            yield from _check_start(item, program, key)


def _check_start(item: Item, program: Program, key: str) -> Iterator[Diagnostic]:
    here = item.span("spec", key, key=True)
    cached = _cached_versions(item, program)
    if len(cached) > MOST:
        message = f"{key}: {item} mounts {len(cached)} datasets of cache tiers; the limit is {MOST}"
        yield Diagnostic("invalid-value", message, here, hint="mount fewer datasets")
    if not cached and not program.broken:
        yield without_effect(item, ("spec", key), "no mounted dataset has a cache tier")
    for dataset, _ in cached:
        tier = program.find_tier(dataset.spec.tier or "")
        if tier is not None and engine_of(tier).daemon is None:
            yield Diagnostic(
                "engine-cannot",
                f"`{key}` cannot be followed for {dataset}: the cache daemon does not see what tier "
                f"`{tier.spec_name}` on {engine_of(tier).title} holds",
                here,
                hint=f"remove `{key}`, or use a tier with another `engine`",
                notes=(Note(tier.span("spec", "engine"), "the tier's engine"),),
            )
            return
    cluster = program.find_cluster(item.cluster)
    if cluster is None or not cached:
        return
    for daemon in ("scheduler", "cache"):
        if not getattr(cluster.spec.daemons, daemon):
            yield Diagnostic(
                "missing-daemon",
                f"`{key}` needs the daemon `{daemon}`, which cluster {cluster.name} does not run",
                here,
                hint=f"write `daemons: {{scheduler: true, cache: true}}` in Cluster {cluster.name}",
            )
