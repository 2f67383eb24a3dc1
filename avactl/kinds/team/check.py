"""Checks of a Team."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.program.cache_engines import engine_of
from avactl.program.checks.tier_urls import url_in_tier
from avactl.program.lowering import namespaces
from avactl.program.lowering.notifications import JOB_EVENTS, SERVICE_EVENTS, notify_problems
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.team import Bucket, TeamSpec


def check(item: Item[TeamSpec], program: Program) -> Iterable[Diagnostic]:
    """Yield the problems of one team."""
    spec = item.spec
    yield from check_duplicates(item, ("spec", "clusters"), spec.clusters or (), "cluster", key=None)
    yield from namespaces.check_claims(namespaces.of_team(item), item.clusters, program)
    yield from _talks_to(item, program)
    yield from notify_problems(item, program, (*JOB_EVENTS, *SERVICE_EVENTS))
    yield from check_duplicates(item, ("spec", "buckets"), (bucket.name for bucket in spec.buckets), "bucket")
    yield from check_duplicates(
        item, ("spec", "serviceAccounts"), (account.name for account in spec.service_accounts), "service account"
    )
    for index, bucket in enumerate(spec.buckets):
        yield from _check_bucket(item, program, index, bucket)


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield buckets of different teams that overlap."""
    from avactl.kinds.dataset.overlaps import find_overlaps  # its package imports that of teams

    yield from find_overlaps(program, "Team")


def _talks_to(item: Item[TeamSpec], program: Program) -> Iterator[Diagnostic]:
    for index, name in enumerate(item.spec.talks_to):
        path = ("spec", "talksTo", index)
        if name == item.name:
            yield Diagnostic(
                "invalid-value",
                f"talksTo: `{name}` is the team itself; its pods can always reach each other",
                item.span(*path),
                hint="remove it",
            )
        elif program.find_team(name) is None and ("Team", name) not in program.broken:
            known = program.names(item.kind)
            hint = did_you_mean(name, known, "teams", item.name) if len(known.words) > 1 else "declare it: `kind: Team`"
            about, span = Reference(item.kind, name, known.closest(name, item.name) or ""), item.span(*path)
            yield Diagnostic("missing-reference", f"unknown Team `{name}`", span, hint=hint, reference=about)


def _check_bucket(item: Item[TeamSpec], program: Program, index: int, bucket: Bucket) -> Iterator[Diagnostic]:
    path = ("spec", "buckets", index)
    if bucket.tier is None:
        if bucket.secret is None:
            yield Diagnostic(
                "bucket-access",
                f"bucket `{bucket.name}` has neither a cache tier nor credentials, so no pod can access it",
                item.span(*path, "name"),
                hint="add `tier: NAME`, a CacheTier, or `secret: NAME`, a Secret with its credentials",
            )
        return
    tier = program.find_tier(bucket.tier)
    if tier is None:
        return
    if tier.spec.cluster not in item.clusters:
        yield Diagnostic(
            "other-cluster",
            f"cache tier `{tier.name}` is on cluster {tier.spec.cluster}, but team {item.name} uses "
            f"{one_of(item.clusters)}",
            item.span(*path, "tier"),
            hint=f"add `{tier.spec.cluster}` to `clusters` of the team, or use a tier of {one_of(item.clusters)}",
            notes=(Note(tier.span("spec", "cluster"), f"cache tier {tier.name} runs on this cluster"),),
        )
        return
    yield from url_in_tier(item, program, bucket.tier, bucket.url, (*path, "url"))
    if engine_of(tier).directories is None:
        yield Diagnostic(
            "engine-cannot",
            f"cache tier `{tier.name}` is on {engine_of(tier).title}, which holds copies of dataset versions and no "
            "buckets",
            item.span(*path, "tier"),
            hint="use a tier with another `engine`, or give the bucket a `secret` in place of the tier",
            notes=(Note(tier.span("spec", "engine"), "the tier's engine"),),
        )
        return
    if not tier.spec.fuse.enabled:
        yield Diagnostic(
            "bucket-access",
            f"cache tier `{tier.name}` has FUSE disabled, which bucket `{bucket.name}` needs",
            item.span(*path, "tier"),
            hint=f"write `fuse: {{enabled: true}}` in CacheTier {tier.name}, or give the bucket a `secret` in place of "
            "the tier",
            notes=(Note(tier.span("spec", "fuse", "enabled"), "FUSE is disabled here"),),
        )
    elif tier.spec.role == "read" and bucket.access == "readWrite":
        yield _write_on_read_tier(item, program, path, bucket, tier)


def _write_on_read_tier(
    item: Item[TeamSpec], program: Program, path: tuple[str | int, ...], bucket: Bucket, tier: Item[CacheTierSpec]
) -> Diagnostic:
    writers = [
        other.name for other in program.tiers() if other.spec.role == "write" and other.spec.cluster in item.clusters
    ]
    other = f", or a write tier: {one_of(writers)}" if writers else ", or declare a tier with `role: write`"
    asked = item.doc.get(*path, "access") is not None
    return Diagnostic(
        "bucket-access",
        f"bucket `{bucket.name}` needs write access, but cache tier `{tier.name}` is read-only",
        item.span(*path, "access" if asked else "tier"),
        label="" if asked else "`access` defaults to `readWrite`",
        hint=f"write `access: read`{other}",
        notes=(Note(tier.span("spec", "role"), "the tier's role"),),
    )
