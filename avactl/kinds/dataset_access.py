"""How pods reach data: claims of datasets and buckets, and the paths of object-store URLs in a cache tier."""

from __future__ import annotations

from typing import Any, NamedTuple

from avactl.kinds.compute import DatasetMount
from avactl.kinds.program import Item, Program


class Access(NamedTuple):
    """How one dataset version gets into a pod: by a claim, or copied from `url`."""

    claim: str | None
    url: str
    secret: str | None
    size: str | None


def find(program: Program, team: str | None, reference: str) -> Item | None:
    """The dataset that a reference of a team means: `NAME` of the team or the platform, or `TEAM/NAME`."""
    owner, slash, name = reference.rpartition("/")
    if slash:
        item = program.find("Dataset", name, owner)
        return item if item is not None and item.team == owner else None
    return program.find("Dataset", name, team)


def may_read(dataset: Item, team: str | None) -> bool:
    """Whether a team may read a dataset: its own, the platform's, or one that is shared with it."""
    return dataset.team in (None, team) or team in dataset.spec.shared_with


def version_of(dataset: Item, name: str | None) -> Any:
    """The `Version` of that name, or the newest. None if there is no such version."""
    versions = dataset.spec.versions
    if name is None:
        return versions[-1]
    return next((version for version in versions if version.name == name), None)


def claim_name(dataset: Item, version: str, reader: str | None) -> str:
    """The claim of a dataset version in the namespaces of a reading team."""
    owner = f"{dataset.team}-" if dataset.team and dataset.team != reader else ""
    return f"dataset-{owner}{dataset.name}-{version}"


def bucket_claim(bucket: str) -> str:
    """The claim of a team's bucket in the team's namespaces."""
    return f"bucket-{bucket}"


def resolve(program: Program, reader: Item, mount: DatasetMount) -> Access:
    """How `reader` gets a dataset; its reference has been checked."""
    dataset = find(program, reader.team, mount.name)
    if dataset is None:
        raise LookupError(f"no dataset {mount.name}")
    version = version_of(dataset, mount.version)
    claim = claim_name(dataset, version.name, reader.team) if dataset.spec.tier else None
    return Access(claim, version.url or "", dataset.spec.secret, dataset.spec.size)


def buckets(program: Program, item: Item) -> list[Any]:
    """The `Bucket`s of an item's team that are mounted through a cache tier of the item's cluster."""
    if item.team is None:
        return []
    team = program.get("Team", item.team)
    return [
        bucket
        for bucket in team.spec.buckets
        if bucket.tier and program.get("CacheTier", bucket.tier).spec.cluster == item.cluster
    ]


def tier_path(tier: Item, url: str) -> str | None:
    """The path of an object-store URL in a tier's namespace; None where no under-store holds it."""
    best: tuple[int, str] | None = None
    for store in tier.spec.under_stores:
        base = store.url.rstrip("/")
        if url.rstrip("/") == base or url.startswith(base + "/"):
            rest = url[len(base) :].strip("/")
            path = store.mount.rstrip("/") + ("/" + rest if rest else "")
            if best is None or len(base) > best[0]:
                best = (len(base), path or "/")
    return best[1] if best else None


def host_path(tier: Item, path: str) -> str:
    """The directory on each machine at which a path of a tier's namespace is seen through FUSE."""
    return f"{tier.spec.fuse.path.rstrip('/')}/{tier.name}{path if path != '/' else ''}"
