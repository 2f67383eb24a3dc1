"""Overlaps of the object-store prefixes of teams' buckets and datasets that no owner shares.

Pods read through a cache tier with the tier's credentials, so the store itself cannot keep teams apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import product
from typing import NamedTuple

from avactl.diagnostics import Diagnostic, Note
from avactl.program.dataset_access import under_store
from avactl.program.dataset_listing import read_listing
from avactl.program.program import Item, Program
from avactl.spec.platform.dataset import DatasetSpec


class PathClaim(NamedTuple):
    """A prefix of an object store that a team may use; `path` leads to its URL in the document."""

    item: Item
    team: str
    url: str
    endpoint: str | None
    """Endpoint of the store, if a tier names one."""
    shared_with: tuple[str, ...]
    path: tuple[str | int, ...]
    what: str
    bucket: bool
    own_credentials: bool
    """True for a dataset that pods read with their own credentials, which the store checks."""


def _prefix_claims(program: Program) -> Iterator[PathClaim]:
    for team in program.teams():
        for index, bucket in enumerate(team.spec.buckets):
            path = ("spec", "buckets", index, "url")
            endpoint = _store_endpoint(program, bucket.tier, bucket.url)
            what = f"bucket `{bucket.name}` of team {team.name}"
            yield PathClaim(team, team.name, bucket.url, endpoint, tuple(bucket.shared_with), path, what, True, False)
    for item in program.datasets():
        if item.team is None:
            continue  # the platform's, for every team
        for index, version in enumerate(item.spec.versions):
            if version.url is not None:
                url, key = version.url, "url"
            else:
                url, key = program.derive(item, _dataset_prefixes)[index], "manifest"
            if url:
                path = ("spec", "versions", index, key)
                shared = tuple(item.spec.shared_with)
                endpoint = _store_endpoint(program, item.spec.tier, url)
                own = item.spec.tier is None
                yield PathClaim(item, item.team, url, endpoint, shared, path, str(item), False, own)


def _dataset_prefixes(item: Item[DatasetSpec], program: Program) -> list[str]:
    found = [read_listing(item, program, version) for version in item.spec.versions]
    return [each.prefix if each is not None else "" for each in found]


def _store_endpoint(program: Program, tier: str | None, url: str) -> str | None:
    found = program.find_tier(tier) if tier else None
    store = under_store(found, url) if found is not None else None
    return store.endpoint if store is not None else None


def _url_directories(url: str) -> list[str]:
    """Return a URL's directories, from the bucket to itself: `s3://b/a` → `s3://b`, `s3://b/a`."""
    scheme, _, rest = url.rstrip("/").partition("://")
    parts = rest.split("/")
    return [f"{scheme}://{'/'.join(parts[: end + 1])}" for end in range(len(parts))]


def find_overlaps(program: Program, kind: str) -> list[Diagnostic]:
    """Return the overlaps of different teams' prefixes that neither owner shares, at claims of one kind.

    A dataset is reported rather than a bucket, and the wider of two prefixes rather than the one inside it.
    """
    found = program.memo("overlaps", lambda: list(_find_conflicts(program)))
    return [_overlap_problem(reported, other) for reported, other in found if reported.item.kind == kind]


def _find_conflicts(program: Program) -> Iterator[tuple[PathClaim, PathClaim]]:
    """Yield each claim to report, and one that it conflicts with.

    Claims that can only conflict together are compared once: a dataset may have thousands of versions in one place.
    """
    by_url: dict[str, dict[Hashable, list[PathClaim]]] = {}
    for claim in sorted(_prefix_claims(program), key=_claim_rank):
        alike = (claim.team, claim.own_credentials, claim.endpoint, claim.shared_with, claim.bucket)
        by_url.setdefault(claim.url.rstrip("/"), {}).setdefault(alike, []).append(claim)
    told: set[tuple[tuple[str, str, str], tuple[str | int, ...]]] = set()
    for url in sorted(by_url):
        outer_claims = [found for each in _url_directories(url) for found in by_url.get(each, {}).values()]
        for inner, outer in product(by_url[url].values(), outer_claims):
            if not _claims_conflict(inner[0], outer[0]):
                continue
            for claims, other in ((inner, outer[0]), (outer, inner[0])):
                for claim in claims:
                    place = (claim.item.key, claim.path)
                    if _claim_rank(claim) > _claim_rank(other) and place not in told:
                        told.add(place)
                        yield claim, other


def _claim_rank(claim: PathClaim) -> tuple[bool, int, str, int, str]:
    file, index = claim.item.origin
    return not claim.bucket, -len(claim.url), file, index, str(claim.path)


def _claims_conflict(one: PathClaim, other: PathClaim) -> bool:
    if one.team == other.team or (one.own_credentials and other.own_credentials):
        return False
    if one.team in other.shared_with or other.team in one.shared_with:
        return False
    return one.endpoint is None or other.endpoint is None or one.endpoint == other.endpoint


def _overlap_problem(claim: PathClaim, other: PathClaim) -> Diagnostic:
    return Diagnostic(
        "not-shared",
        f"`{claim.url}` of team {claim.team} overlaps with `{other.url}` of team {other.team}, which is not shared",
        claim.item.span(*claim.path),
        hint=f"use another prefix, or let its owner share it: `sharedWith: [{claim.team}]` of {other.what}",
        notes=(Note(other.item.span(*other.path), other.what),),
    )
