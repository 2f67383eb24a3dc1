"""Rules that a Dataset must keep, alone and beside the others of its cache tier."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.kinds.cache_tier.facts import capacity
from avactl.kinds.dataset.listing import MAX_LIST, listing
from avactl.kinds.dataset.lower import prewarmed
from avactl.kinds.fields.tier_urls import url_in_tier
from avactl.kinds.fields.unique_entries import duplicates
from avactl.kinds.fields.values import seconds
from avactl.kinds.program import Item, Program
from avactl.quantity import format_quantity, quantity
from avactl.source.tree import MAX_INPUT

Path = tuple[str | int, ...]


def check(item: Item, program: Program) -> Iterator[Diagnostic]:
    """The problems of one dataset."""
    spec = item.spec
    yield from duplicates(item, ("spec", "versions"), (version.name for version in spec.versions), "version")
    yield from duplicates(item, ("spec", "sharedWith"), spec.shared_with, "team", key=None)
    yield from _shared(item)
    yield from _prewarm_versions(item)
    tier = program.find("CacheTier", spec.tier) if spec.tier else None
    if spec.tier is None:
        yield from _without_tier(item)
    elif tier is not None:
        yield from _tier(item, tier)
        yield from _capacity(item, program, tier)
    for index, version in enumerate(spec.versions):
        yield from _version(item, program, version, ("spec", "versions", index))
    if spec.keep and seconds(spec.keep) < 2 * 86400:
        yield Diagnostic(
            "invalid-value",
            f"spec.keep: `{spec.keep}` is shorter than what Alluxio can tell: it notes reads by the day",
            item.span("spec", "keep"),
            hint="write `2d` or more",
        )


# -- versions ------------------------------------------------------------------------------------------------------


def _version(item: Item, program: Program, version: Any, path: Path) -> Iterator[Diagnostic]:
    if version.url and version.manifest:
        yield Diagnostic(
            "conflicting-keys",
            f"version {version.name}: `url` and `manifest` both say what is in it",
            item.span(*path, "manifest", key=True),
            hint="keep `url` for a whole directory, `manifest` for chosen objects",
            notes=(Note(item.span(*path, "url", key=True), "`url`"),),
        )
        return
    if not version.url and not version.manifest:
        yield Diagnostic(
            "missing-key",
            f"version {version.name} needs `url` or `manifest`: what is in it",
            item.span(*path, "name"),
            hint="add `url: s3://bucket/directory`, or `manifest: FILE.jsonl`",
        )
        return
    if version.url:
        if version.sha256:
            yield _without_effect(item, (*path, "sha256"), "it is that of a manifest, and the version has none")
        if item.spec.tier:
            yield from url_in_tier(item, program, item.spec.tier, version.url, (*path, "url"))
    elif item.spec.tier is None:
        yield Diagnostic(
            "missing-tier",
            f"version {version.name}: pods see the objects of a manifest through a cache tier, and there is none",
            item.span(*path, "manifest", key=True),
            hint="add `tier: NAME` to the dataset, or give the version a `url`",
        )
    else:
        yield from _manifest(item, program, version, path)
    if version.manifest_url and item.spec.tier:
        yield from url_in_tier(item, program, item.spec.tier, version.manifest_url, (*path, "manifestUrl"))


def _manifest(item: Item, program: Program, version: Any, path: Path) -> Iterator[Diagnostic]:
    found = listing(item, program, version)
    if found is None:
        yield Diagnostic(
            "file-unreadable",
            f"there is no file `{version.manifest}` beside {item.doc.file} that can be read",
            item.span(*path, "manifest"),
            hint=f"its path is relative to the spec file; in the repository, and of {MAX_INPUT >> 20} MiB at most",
        )
        return
    if version.sha256 and found.sha256 != version.sha256:
        yield Diagnostic(
            "manifest-changed",
            f"`{version.manifest}` is not what version {version.name} was made of",
            item.span(*path, "sha256"),
            label=f"now {found.sha256}",
            hint="a version does not change: put the file back, and declare a new version for new content",
            notes=(Note(item.span(*path, "manifest"), "the file"),),
        )
        return
    yield from found.problems
    if found.problems:
        return
    if len(found.data) > MAX_LIST and version.manifest_url is None:
        yield Diagnostic(
            "manifest-too-large",
            f"`{version.manifest}` has {len(found.data) // 1024} KiB, and a ConfigMap takes {MAX_LIST // 1024}",
            item.span(*path, "manifest"),
            hint="put a copy into the object store and name it: `manifestUrl: s3://…`",
        )
    yield from url_in_tier(item, program, item.spec.tier, found.prefix, (*path, "manifest"))


# -- tiers ---------------------------------------------------------------------------------------------------------


def _without_tier(item: Item) -> Iterator[Diagnostic]:
    spec = item.spec
    for key, value, why in (
        ("prewarm", spec.prewarm, "there is no cache to load it into"),
        ("keep", spec.keep, "there is no cache to free it from"),
    ):
        if value is not None:
            yield Diagnostic(
                "missing-tier",
                f"`{key}` needs a cache tier: {why}",
                item.span("spec", key, key=True),
                hint="add `tier: NAME`, or remove the key",
            )
    if spec.size is None and spec.prewarm is None and not spec.keep and all(version.url for version in spec.versions):
        yield Diagnostic(
            "missing-key",
            f"{item} needs `size`: without a cache tier each pod copies it, and that room must be known",
            item.span("spec", key=True),
            hint="add `size: …`, or `tier: NAME`",
        )


def _tier(item: Item, tier: Item) -> Iterator[Diagnostic]:
    spec = item.spec
    cluster = tier.spec.cluster
    if cluster not in item.clusters:
        own = spec.cluster is not None
        team = f"team {item.team} works on {one_of(item.clusters)}"
        yield Diagnostic(
            "other-cluster",
            f"cache tier `{spec.tier}` is on cluster `{cluster}`, and "
            + (f"the dataset is for `{spec.cluster}`" if own else team),
            item.span("spec", "tier"),
            hint=f"name a tier of {one_of(item.clusters)}" + (", or remove `cluster`" if own else ""),
            notes=(Note(tier.span("spec", "cluster"), f"cache tier {tier.spec_name} runs there"),),
        )
    elif tier.spec.role == "write":
        yield Diagnostic(
            "tier-cannot-serve",
            f"cache tier `{spec.tier}` takes what is written; datasets are read",
            item.span("spec", "tier"),
            hint="name a tier with `role: read`",
            notes=(Note(tier.span("spec", "role"), "the tier's role"),),
        )
    elif not tier.spec.fuse.enabled:
        yield Diagnostic(
            "tier-cannot-serve",
            f"cache tier `{spec.tier}` mounts nothing, as its FUSE is off",
            item.span("spec", "tier"),
            hint=f"write `fuse: {{enabled: true}}` in CacheTier {spec.tier}",
            notes=(Note(tier.span("spec", "fuse", "enabled"), "FUSE is off"),),
        )
    if spec.secret is not None:
        yield _without_effect(item, ("spec", "secret"), "the cache tier has credentials of its own")


def _needs(item: Item) -> Fraction:
    """Bytes that a dataset takes of its tier: what is loaded ahead, else the newest version."""
    spec = item.spec
    size = quantity(spec.size) if spec.size else Fraction(0)
    return size * len(prewarmed(item)) * spec.prewarm.replicas if spec.prewarm is not None else size


def _capacity(item: Item, program: Program, tier: Item) -> Iterator[Diagnostic]:
    holds, needs = capacity(tier, program), _needs(item)
    if holds is None or needs <= holds:
        return
    prewarm = item.spec.prewarm
    times = [str(prewarm.replicas)] if prewarm is not None and prewarm.replicas > 1 else []
    if len(prewarmed(item)) > 1:
        times.append(f"{len(prewarmed(item))} versions")
    loads = prewarm is not None
    what = f"{format_quantity(needs)} to load" if loads else f"{item.spec.size}"
    yield Diagnostic(
        "cache-too-small",
        f"{item} has {what}, and cache tier `{item.spec.tier}` holds {_rounded(holds)}",
        item.span("spec", "size"),
        severity="error" if loads else "warning",
        label=" × ".join([str(item.spec.size), *times]) if times else "",
        hint="make the tier larger, load fewer copies, or leave `prewarm` out"
        if loads
        else "what was read last is kept; a job that reads all of it again and again reads it from the store",
        notes=(Note(tier.span("spec", "workers", "tiers", key=True), f"the tiers of {tier.spec_name}"),),
    )


def _rounded(value: int) -> str:
    """Bytes in TiB or GiB, rounded down to a tenth."""
    unit, size = ("Ti", 2**40) if value >= 2**40 else ("Gi", 2**30)
    return f"{value * 10 // size / 10:g}{unit}"


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Tiers into which more is loaded ahead than they hold."""
    loaded: dict[str, list[Item]] = {}
    for item in program.of("Dataset"):
        if item.spec.tier and item.spec.prewarm is not None and item.spec.size:
            loaded.setdefault(item.spec.tier, []).append(item)
    for name, items in loaded.items():
        tier = program.find("CacheTier", name)
        holds = capacity(tier, program) if tier is not None else None
        if tier is None or holds is None or len(items) < 2 or any(_needs(item) > holds for item in items):
            continue
        total = sum((_needs(item) for item in items), Fraction(0))
        if total > holds:
            largest = max(items, key=_needs)
            yield Diagnostic(
                "cache-too-small",
                f"{len(items)} datasets load {_rounded(int(total))} into cache tier `{name}`, which holds "
                f"{_rounded(holds)}: they push each other out",
                largest.span("spec", "prewarm", key=True),
                severity="warning",
                label="the largest of them",
                hint="make the tier larger, or leave `prewarm` out where the first epoch may be slower",
                notes=tuple(
                    Note(item.span("spec", "prewarm", key=True), str(item)) for item in items if item is not largest
                )[:5],
            )


# -- the rest ------------------------------------------------------------------------------------------------------


def _shared(item: Item) -> Iterator[Diagnostic]:
    for index, team in enumerate(item.spec.shared_with):
        if item.team is None:
            yield _without_effect(item, ("spec", "sharedWith"), "every team may read a dataset of the platform")
            return
        if team == item.team:
            yield Diagnostic(
                "without-effect",
                f"sharedWith: `{team}` owns the dataset",
                item.span("spec", "sharedWith", index),
                severity="warning",
                hint="remove it",
            )


def _prewarm_versions(item: Item) -> Iterator[Diagnostic]:
    known = [version.name for version in item.spec.versions]
    for index, name in enumerate(item.spec.prewarm.versions if item.spec.prewarm is not None else ()):
        if name not in known:
            yield Diagnostic(
                "missing-reference",
                f"{item} has no version `{name}`",
                item.span("spec", "prewarm", "versions", index),
                hint=did_you_mean(name, set(known), "its versions"),
            )


def _without_effect(item: Item, path: Path, why: str) -> Diagnostic:
    return Diagnostic(
        "without-effect",
        f"`{path[-1]}` has no effect here: {why}",
        item.span(*path, key=True),
        severity="warning",
        hint="remove the key",
    )
