"""`startWhen`: pods that start once their datasets are cached."""

from __future__ import annotations

import json

from avactl import names
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cache_tier.engines import engine_of
from avactl.kinds.dataset_access import find, mounts, version_of
from avactl.kinds.fields.values import percent
from avactl.kinds.ineffective_keys import without_effect
from avactl.kinds.program import Item, Program


def start_when_warm(item: Item, program: Program) -> dict[str, str]:
    """Annotations of pods that start once their datasets are cached; see `names.START_WHEN_WARM`."""
    if item.spec.start_when is None:
        return {}
    wanted = {}
    for dataset, version in _cached(item, program):
        namespace = dataset.namespace or program.cluster_spec(item.cluster).system_namespace
        wanted[f"{namespace}/{dataset.spec_name}/{version}"] = percent(item.spec.start_when.warm)
    return {names.START_WHEN_WARM: json.dumps(wanted, separators=(",", ":"), sort_keys=True)} if wanted else {}


def _cached(item: Item, program: Program) -> list[tuple[Item, str]]:
    """Datasets with a cache tier that a spec mounts, and their versions."""
    found = []
    for mount in mounts(item):
        dataset = find(program, item.team, mount.name)
        version = version_of(dataset, mount.version) if dataset is not None else None
        if dataset is not None and version is not None and dataset.spec.tier:
            found.append((dataset, str(version.name)))
    return found


MOST_AWAITED = 16
"""Datasets that a pod may wait for; the scheduler refuses more."""


def start_problems(item: Item, program: Program) -> list[Diagnostic]:
    """Return the problems of `spec.startWhen`."""
    if item.spec.start_when is None:
        return []
    here = item.span("spec", "startWhen", key=True)
    cached = _cached(item, program)
    problems = []
    if mounts(item) and len(cached) > MOST_AWAITED:
        message = f"{item} would wait for {len(cached)} datasets; the limit is {MOST_AWAITED}"
        problems.append(Diagnostic("invalid-value", message, here, hint="mount fewer datasets"))
    if not cached and not program.broken:
        problems.append(without_effect(item, ("spec", "startWhen"), "no mounted dataset has a cache tier"))
    for dataset, _ in cached:
        tier = program.find_tier(dataset.spec.tier)
        if tier is not None and engine_of(tier).daemon is None:
            problems.append(
                Diagnostic(
                    "engine-cannot",
                    f"startWhen.warm cannot wait for {dataset}: the cache daemon does not see what tier "
                    f"`{tier.spec_name}` on {engine_of(tier).title} holds",
                    here,
                    hint="remove `startWhen`, or use a tier with another `engine`",
                    notes=(Note(tier.span("spec", "engine"), "the tier's engine"),),
                )
            )
            return problems
    cluster = program.find_cluster(item.cluster)
    if cluster is None or not cached:
        return problems
    for daemon in ("scheduler", "cache"):
        if not getattr(cluster.spec.daemons, daemon):
            problems.append(
                Diagnostic(
                    "missing-daemon",
                    f"startWhen.warm needs the daemon `{daemon}`, which cluster {cluster.name} does not run",
                    here,
                    hint=f"write `daemons: {{scheduler: true, cache: true}}` in Cluster {cluster.name}",
                )
            )
    return problems
