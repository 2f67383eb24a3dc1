"""Buckets of a team that contain a location, and the credentials that its pods get for it."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.diagnostics import Diagnostic, Note
from avactl.program import dataset_access
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.team import Bucket


def relative_path(base: str, url: str) -> str | None:
    """Return the path of an object-store URL relative to another; None if it is not below it."""
    base = base.rstrip("/")
    if url.rstrip("/") == base:
        return ""
    return url[len(base) + 1 :] if url.startswith(f"{base}/") else None


def team_bucket(program: Program, item: Item, url: str) -> Bucket | None:
    """Return the bucket of the item's team that contains a URL; None if there is none."""
    for bucket in program.team(str(item.team)).spec.buckets:
        if relative_path(bucket.url, url) is not None:
            return bucket
    return None


def written_through(program: Program, item: Item, url: str) -> tuple[Item[CacheTierSpec], str] | None:
    """Return the cache tier and the directory by which the pods of an item write to a location, if any."""
    found = None
    for bucket in dataset_access.mounted_buckets(program, item):
        rest = relative_path(bucket.url, url)
        if rest is not None and bucket.access == "readWrite" and bucket.tier:
            found = program.tier(bucket.tier), f"/buckets/{bucket.name}/{rest}".rstrip("/")
    return found


def bucket_problems(
    item: Item, program: Program, url: str, path: tuple[str | int, ...], *, writes: bool
) -> Iterator[Diagnostic]:
    """Yield a problem if the team's pods cannot read a location, or `writes` and they cannot write to it.

    A team without buckets has other access to its stores.
    """
    team = program.team(str(item.team))
    if not team.spec.buckets:
        return
    bucket = team_bucket(program, item, url)
    if bucket is None:
        shared = [known.name for known in team.spec.buckets if relative_path(_bucket_root(known.url), url) is not None]
        yield Diagnostic(
            "unbound-bucket",
            f"`{url}` is not in a bucket of team {team.name}: pods get no credentials for it",
            item.span(*path),
            severity="warning",
            label=f"bucket `{shared[0]}` of the team covers another prefix of this store" if shared else "",
            hint=f"use one of the team's buckets, or add the location to `buckets` of Team {team.name}",
            notes=(Note(team.span("spec", "buckets", key=True), "the team's buckets"),),
        )
    elif writes and bucket.access == "read":
        index = team.spec.buckets.index(bucket)
        yield Diagnostic(
            "bucket-access",
            f"`{url}` is in bucket `{bucket.name}`, which is read-only for team {team.name}",
            item.span(*path),
            hint="use another bucket, or set `access: readWrite` on this one",
            notes=(Note(team.span("spec", "buckets", index, "access"), "read only"),),
        )


def _bucket_root(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
