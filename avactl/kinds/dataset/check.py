"""Checks of a Dataset, alone and together with the others of its cache tier."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import WordIndex, did_you_mean, one_of
from avactl.kinds.cache_tier.facts import tier_capacity
from avactl.kinds.dataset.lower import prewarmed_versions
from avactl.kinds.dataset.overlaps import find_overlaps
from avactl.program.cache_engines import engine_of
from avactl.program.checks.tier_urls import url_in_tier
from avactl.program.dataset_listing import MAX_LIST, copy_files, read_listing
from avactl.program.ineffective_keys import without_effect
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.dataset import DatasetSpec, Version
from avactl.spec.repository.tree import MAX_INPUT

Path = tuple[str | int, ...]


def _same_data(item: Item[DatasetSpec]) -> Iterator[Diagnostic]:
    """Yield a warning for each version with the URL of another: one of them is not what it was."""
    first: dict[str, int] = {}
    for index, version in enumerate(item.spec.versions):
        if version.url is None:
            continue
        before = first.setdefault(version.url.rstrip("/"), index)
        if before != index:
            yield Diagnostic(
                "duplicate-entry",
                f"version `{version.name}` has the URL of version `{item.spec.versions[before].name}`",
                item.span("spec", "versions", index, "url"),
                severity="warning",
                hint="write each version to a directory of its own: a version does not change",
                notes=(Note(item.span("spec", "versions", before, "url"), "first occurrence"),),
            )


def check(item: Item[DatasetSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one dataset."""
    spec = item.spec
    yield from check_duplicates(item, ("spec", "versions"), (version.name for version in spec.versions), "version")
    yield from _same_data(item)
    yield from check_duplicates(item, ("spec", "sharedWith"), spec.shared_with, "team", key=None)
    yield from _check_shared(item)
    yield from _prewarm_versions(item)
    tier = program.find_tier(spec.tier) if spec.tier else None
    if spec.tier is None:
        yield from _without_tier(item)
    elif tier is not None:
        yield from _check_tier(item, tier)
        if engine_of(tier).daemon is not None:
            yield from _check_daemon(item, program, tier)
        yield from _check_capacity(item, program, tier)
        yield from engine_of(tier).check_dataset(item, program, tier)
    yield from _small_files(item)
    for index, version in enumerate(spec.versions):
        yield from _check_version(item, program, version, ("spec", "versions", index))


# -- versions ------------------------------------------------------------------------------------------------------


def _check_version(item: Item[DatasetSpec], program: Program, version: Version, path: Path) -> Iterator[Diagnostic]:
    if version.url and version.manifest:
        yield Diagnostic(
            "conflicting-keys",
            f"version {version.name}: `url` and `manifest` exclude each other",
            item.span(*path, "manifest", key=True),
            hint="keep `url` for a whole directory, `manifest` for selected objects",
            notes=(Note(item.span(*path, "url", key=True), "`url`"),),
        )
        return
    if not version.url and not version.manifest:
        yield Diagnostic(
            "missing-key",
            f"version {version.name} needs `url` or `manifest`",
            item.span(*path, "name"),
            hint="add `url: s3://bucket/directory`, or `manifest: FILE.jsonl`",
        )
        return
    if version.url:
        if version.sha256:
            yield without_effect(item, (*path, "sha256"), "it applies to a manifest, and the version has none")
        if item.spec.tier:
            yield from url_in_tier(item, program, item.spec.tier, version.url, (*path, "url"))
    elif item.spec.tier is None and version.manifest_url:
        yield Diagnostic(
            "missing-tier",
            f"version {version.name}: a list that is in the object store needs a cache tier",
            item.span(*path, "manifestUrl", key=True),
            hint="add `tier: NAME` to the dataset, or remove `manifestUrl`: then pods copy the objects of the list",
        )
    else:
        yield from _check_manifest(item, program, version, path)
    if version.manifest_url and item.spec.tier:
        yield from url_in_tier(item, program, item.spec.tier, version.manifest_url, (*path, "manifestUrl"))


def _check_manifest(item: Item[DatasetSpec], program: Program, version: Version, path: Path) -> Iterator[Diagnostic]:
    found = read_listing(item, program, version)
    if found is None:
        yield Diagnostic(
            "file-unreadable",
            f"cannot read `{version.manifest}` (relative to {item.doc.file})",
            item.span(*path, "manifest"),
            hint="the path is relative to the spec file; the file must be in the repository and at most "
            f"{MAX_INPUT >> 20} MiB",
        )
        return
    if version.sha256 and found.sha256 != version.sha256:
        yield Diagnostic(
            "manifest-changed",
            f"`{version.manifest}` does not match the `sha256` of version {version.name}",
            item.span(*path, "sha256"),
            label=f"now {found.sha256}",
            hint="versions are immutable: restore the file, and declare a new version for new content",
            notes=(Note(item.span(*path, "manifest"), "the file"),),
        )
        return
    yield from found.problems
    if found.problems:
        return
    tier = item.spec.tier
    copied = sum(len(text.encode()) for text in copy_files(found, program).values()) if tier is None else 0
    if len(found.data) + copied > MAX_LIST and version.manifest_url is None:
        size = f"`{version.manifest}` has {len(found.data) // 1024} KiB"
        size += f", and {copied // 1024} KiB more for pods that copy its objects" if copied else ""
        hint = "upload a copy to the object store and set `manifestUrl: s3://…`"
        yield Diagnostic(
            "manifest-too-large",
            f"{size}; a ConfigMap holds at most {MAX_LIST // 1024}",
            item.span(*path, "manifest"),
            hint=hint if tier else "add `tier: NAME` to the dataset: so many objects are better read through a cache",
        )
    if tier is not None:
        yield from url_in_tier(item, program, tier, found.prefix, (*path, "manifest"))


# -- tiers ---------------------------------------------------------------------------------------------------------


def _without_tier(item: Item[DatasetSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    for key, value, why in (
        ("prewarm", spec.prewarm, "the dataset has no cache to load"),
        ("keep", spec.keep, "the dataset has no cache to free"),
    ):
        if value is not None:
            yield Diagnostic(
                "missing-tier",
                f"`{key}` needs a cache tier: {why}",
                item.span("spec", key, key=True),
                hint="add `tier: NAME`, or remove the key",
            )
    if spec.size is None and spec.prewarm is None and not spec.keep:
        yield Diagnostic(
            "missing-key",
            f"{item} needs `size`: without a cache tier each pod copies the data and must reserve space for it",
            item.span("spec", key=True),
            hint="add `size: …`, or `tier: NAME`",
        )


def _check_tier(item: Item[DatasetSpec], tier: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    cluster = tier.spec.cluster
    if cluster not in item.clusters:
        own = spec.cluster is not None
        team = f"team {item.team} works on {one_of(item.clusters)}"
        yield Diagnostic(
            "other-cluster",
            f"cache tier `{spec.tier}` is on cluster `{cluster}`, but "
            + (f"the dataset is for `{spec.cluster}`" if own else team),
            item.span("spec", "tier"),
            hint=f"use a tier of {one_of(item.clusters)}" + (", or remove `cluster`" if own else ""),
            notes=(Note(tier.span("spec", "cluster"), f"cache tier {tier.spec_name} runs on this cluster"),),
        )
    elif tier.spec.role == "write":
        yield Diagnostic(
            "tier-cannot-serve",
            f"cache tier `{spec.tier}` has role `write`, but datasets need a read tier",
            item.span("spec", "tier"),
            hint="use a tier with `role: read`",
            notes=(Note(tier.span("spec", "role"), "the tier's role"),),
        )
    elif not tier.spec.fuse.enabled:
        yield Diagnostic(
            "tier-cannot-serve",
            f"cache tier `{spec.tier}` has FUSE disabled, so pods cannot mount it",
            item.span("spec", "tier"),
            hint=f"write `fuse: {{enabled: true}}` in CacheTier {spec.tier}",
            notes=(Note(tier.span("spec", "fuse", "enabled"), "FUSE is disabled here"),),
        )
    if spec.secret is not None:
        yield without_effect(item, ("spec", "secret"), "the cache tier has its own credentials")


def _check_daemon(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    """Yield settings that only the cache daemon carries out, on a cluster without one, and one that it does not."""
    prewarm = item.spec.prewarm
    cluster = program.find_cluster(tier.spec.cluster)
    if prewarm is None or cluster is None:
        return
    if cluster.spec.daemons.cache:
        if prewarm.replicas > 1:
            yield without_effect(item, ("spec", "prewarm", "replicas"), "the cache daemon loads one copy of each block")
        return
    for key, used in (("when", prewarm.when != "once"), ("pin", prewarm.pin)):
        if used:
            yield Diagnostic(
                "missing-daemon",
                f"prewarm.{key} needs the cache daemon, which cluster {cluster.name} does not run",
                item.span("spec", "prewarm", key),
                hint=f"write `daemons: {{cache: true}}` in Cluster {cluster.name}, or remove the key",
                notes=(Note(cluster.span("spec", key=True), f"Cluster {cluster.name}"),),
            )


MANY_FILES = 10_000_000
"""Files from which a dataset should be packed. A master holds about 1 GiB per million, and a store lists a thousand
per request."""


def _small_files(item: Item[DatasetSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    if spec.format != "files" or spec.files is None or spec.files < MANY_FILES:
        return
    average = f" of {int(parse_quantity(spec.size)) // spec.files:,} bytes on average" if spec.size else ""
    yield Diagnostic(
        "small-files",
        f"{item} has {spec.files:,} files{average}: each of them costs memory of the masters and a request per read",
        item.span("spec", "files"),
        severity="warning",
        hint="pack them with `avactl dataset pack`, and write `format: webdataset`, `tfrecord` or `recordio`",
    )


def _needed_bytes(item: Item[DatasetSpec]) -> Fraction:
    """Bytes that a dataset occupies in its tier: the prewarmed versions, else the newest version."""
    spec = item.spec
    size = parse_quantity(spec.size) if spec.size else Fraction(0)
    return size * len(prewarmed_versions(item)) * spec.prewarm.replicas if spec.prewarm is not None else size


def _check_capacity(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    holds, needs = tier_capacity(tier, program), _needed_bytes(item)
    if holds is None or needs <= holds:
        return
    prewarm = item.spec.prewarm
    times = [str(prewarm.replicas)] if prewarm is not None and prewarm.replicas > 1 else []
    if len(prewarmed_versions(item)) > 1:
        times.append(f"{len(prewarmed_versions(item))} versions")
    loads = prewarm is not None
    what = f"{format_quantity(needs)} to load" if loads else f"{item.spec.size}"
    yield Diagnostic(
        "cache-too-small",
        f"{item} has {what}, but cache tier `{item.spec.tier}` holds only {_format_rounded_down(holds)}",
        item.span("spec", "size"),
        severity="error" if loads else "warning",
        label=" × ".join([str(item.spec.size), *times]) if times else "",
        hint="enlarge the tier, load fewer replicas, or remove `prewarm`"
        if loads
        else "the cache keeps the most recently read data; jobs that read all of it repeatedly go to the store",
        notes=(Note(tier.span("spec", "workers", "tiers", key=True), f"tiers of {tier.spec_name}"),),
    )


def _format_rounded_down(value: int) -> str:
    """Format bytes in TiB or GiB, rounded down to a tenth."""
    unit, size = ("Ti", 2**40) if value >= 2**40 else ("Gi", 2**30)
    return f"{value * 10 // size / 10:g}{unit}"


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield overlaps with other teams' data, and a problem for each tier that its prewarmed datasets exceed."""
    yield from find_overlaps(program, "Dataset")
    loaded: dict[str, list[Item[DatasetSpec]]] = {}
    for item in program.datasets():
        if item.spec.tier and item.spec.prewarm is not None and item.spec.size:
            loaded.setdefault(item.spec.tier, []).append(item)
    for name, items in loaded.items():
        tier = program.find_tier(name)
        holds = tier_capacity(tier, program) if tier is not None else None
        if tier is None or holds is None or len(items) < 2 or any(_needed_bytes(item) > holds for item in items):
            continue
        total = sum((_needed_bytes(item) for item in items), Fraction(0))
        if total > holds:
            largest = max(items, key=_needed_bytes)
            yield Diagnostic(
                "cache-too-small",
                f"{len(items)} datasets load {_format_rounded_down(int(total))} into cache tier `{name}`, "
                "which holds only "
                f"{_format_rounded_down(holds)}: they evict each other",
                largest.span("spec", "prewarm", key=True),
                severity="warning",
                label="the largest dataset",
                hint="enlarge the tier, or remove `prewarm` if a slower first epoch is acceptable",
                notes=tuple(
                    Note(item.span("spec", "prewarm", key=True), str(item)) for item in items if item is not largest
                )[:5],
            )


# -- the rest ------------------------------------------------------------------------------------------------------


def _check_shared(item: Item[DatasetSpec]) -> Iterator[Diagnostic]:
    for index, team in enumerate(item.spec.shared_with):
        if item.team is None:
            yield without_effect(item, ("spec", "sharedWith"), "every team may read a platform dataset")
            return
        if team == item.team:
            yield Diagnostic(
                "without-effect",
                f"sharedWith: team `{team}` already owns the dataset",
                item.span("spec", "sharedWith", index),
                severity="warning",
                hint="remove it",
            )


def _prewarm_versions(item: Item[DatasetSpec]) -> Iterator[Diagnostic]:
    known = WordIndex(version.name for version in item.spec.versions)
    for index, name in enumerate(item.spec.prewarm.versions if item.spec.prewarm is not None else ()):
        if name not in known.words:
            yield Diagnostic(
                "missing-reference",
                f"{item} does not have version `{name}`",
                item.span("spec", "prewarm", "versions", index),
                hint=did_you_mean(name, known, "its versions"),
            )
