"""Checks of several tiers together: stores that two of them write, and directories inside each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.cache_tier.machines import level_directories
from avactl.program.cache_engines import engine_of
from avactl.program.dataset_access import host_path
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

Path = tuple[str | int, ...]


class _Place(NamedTuple):
    """A directory on machines that a tier uses."""

    tier: Item[CacheTierSpec]
    directory: str
    path: Path
    """Location in the spec; the tier's name for a default."""
    what: str
    mount: bool
    """True for a FUSE mount, which hides what is below it."""


def check_tier_pairs(program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of pairs of tiers."""
    tiers = program.tiers()
    for one, other in combinations(tiers, 2):
        yield from _check_stores(one, other)
    by_cluster: dict[str, list[_Place]] = {}
    for tier in tiers:
        by_cluster.setdefault(tier.spec.cluster, []).extend(_storage_places(tier))
    for places in by_cluster.values():
        yield from _check_nested(places)


def _check_stores(one: Item[CacheTierSpec], other: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    """Two caches in front of one store do not see each other's changes."""
    for index, store in enumerate(other.spec.under_stores):
        for at, before in enumerate(one.spec.under_stores):
            inner, outer = f"{store.url.rstrip('/')}/", f"{before.url.rstrip('/')}/"
            if store.endpoint != before.endpoint or not (inner.startswith(outer) or outer.startswith(inner)):
                continue
            writers = [t for t, s in ((one, before), (other, store)) if t.spec.role == "write" and not s.read_only]
            readers = [tier for tier in (one, other) if tier not in writers]
            stale = len(writers) == 1 and readers[0].spec.role == "read" and readers[0].spec.refresh is None
            if len(writers) < 2 and not stale:
                continue
            note = Note(one.span("spec", "underStores", at, "url"), f"under-store of {one.spec_name}")
            span = other.span("spec", "underStores", index, "url")
            if len(writers) == 2:
                yield Diagnostic(
                    "shared-store",
                    f"cache tiers `{one.spec_name}` and `{other.spec_name}` both write below `{store.url}`: each keeps "
                    "its own copy, and overwrites the other's changes",
                    span,
                    hint="write through one tier, or give each a prefix of its own",
                    notes=(note,),
                )
            else:
                reader = readers[0].spec_name
                yield Diagnostic(
                    "shared-store",
                    f"cache tier `{writers[0].spec_name}` writes below `{store.url}`, and `{reader}` never looks for "
                    "changes there",
                    span,
                    severity="warning",
                    hint=f"set `refresh` of CacheTier {reader}, e.g. `refresh: 5m`",
                    notes=(note,),
                )


def _storage_places(tier: Item[CacheTierSpec]) -> Iterator[_Place]:
    spec = tier.spec
    for index, level in enumerate(spec.workers.tiers):
        for each in level_directories(tier, index):
            yield _Place(tier, each.path, each.place, f"{level.medium} directory of {tier.spec_name}", False)
    if spec.fuse.enabled and engine_of(tier).host_mount:
        path: Path = ("spec", "fuse", "path") if "path" in spec.fuse.model_fields_set else ("metadata", "name")
        yield _Place(tier, host_path(tier, "/"), path, f"FUSE mount of {tier.spec_name}", True)


def _check_nested(places: list[_Place]) -> Iterator[Diagnostic]:
    for one, other in combinations(places, 2):
        inner, outer = (other, one) if len(other.directory) > len(one.directory) else (one, other)
        if inner.directory != outer.directory and not inner.directory.startswith(f"{outer.directory}/"):
            continue
        if inner.tier is outer.tier and not (inner.mount or outer.mount) and inner.directory == outer.directory:
            continue  # reported by the tier's own checks
        engine = engine_of(outer.tier).title
        yield Diagnostic(
            "mount-conflict",
            f"`{inner.directory}` is inside `{outer.directory}`: "
            + ("the mount hides it" if outer.mount else f"{engine} deletes files there that are not its own"),
            inner.tier.span(*inner.path),
            label=inner.what,
            hint="use directories that are not inside each other",
            notes=(Note(outer.tier.span(*outer.path), outer.what),),
        )
