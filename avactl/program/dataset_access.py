"""Dataset and bucket access for pods: claims, and the paths of object-store URLs in a cache tier."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import WordIndex, closest_word, one_of
from avactl.program.dataset_listing import version_directory
from avactl.program.images import require_image
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec, Durable, UnderStore
from avactl.spec.platform.dataset import Dataset, DatasetSpec, Version
from avactl.spec.platform.team import Bucket
from avactl.spec.schema.compute import DatasetMount

PUSHED = ".pushed"
"""Suffix of the directory that shows the object store, beside the directory that files were written to."""

TEAM_BUCKETS = "team-buckets"
"""ConfigMap with the URL of each bucket, in every namespace of a team that has buckets."""
BUCKET_PREFIX = "AVACTL_BUCKET_"
"""Prefix of its keys as environment variables, so that members, who may write ConfigMaps, can set no others."""


class DatasetAccess(NamedTuple):
    """Access of a pod to one dataset version: through a claim, or copied from `url`."""

    claim: str | None
    url: str
    secret: str | None
    size: str | None
    manifest: str | None = None
    """ConfigMap with the version's object list, if it has one."""


def find(program: Program, team: str | None, reference: str) -> Item[DatasetSpec] | None:
    """Return the dataset that a team's reference names: `NAME` in the team or the platform, or `TEAM/NAME`."""
    owner, slash, name = reference.rpartition("/")
    if slash:
        item = program.find_dataset(name, owner)
        return item if item is not None and item.team == owner else None
    return program.find_dataset(name, team)


def may_read(dataset: Item[DatasetSpec], team: str | None) -> bool:
    """Return True if a team may read a dataset: its own, the platform's, or one shared with it."""
    return dataset.team in (None, team) or team in dataset.spec.shared_with


def version_of(dataset: Item[DatasetSpec], name: str | None) -> Version | None:
    """Return the version with that name, or the newest; None if it does not exist."""
    versions = dataset.spec.versions
    if name is None:
        return versions[-1]
    return next((version for version in versions if version.name == name), None)


def list_in_pods(version: Version) -> bool:
    """Return True if pods get the version's object list: a ConfigMap named like the claim, in the same namespace."""
    return version.manifest is not None and version.manifest_url is None


def claim_name(dataset: Item[DatasetSpec], version: str, reader: str | None) -> str:
    """Name of the claim for a dataset version in the reading team's namespaces."""
    owner = f"{dataset.team}-" if dataset.team and dataset.team != reader else ""
    return f"dataset-{owner}{dataset.name}-{version}"


def full_name(dataset: Item[DatasetSpec]) -> str:
    """Name of a dataset in a namespace with those of other teams."""
    return f"{dataset.team}-{dataset.name}" if dataset.team else dataset.name


def bucket_claim(bucket: str) -> str:
    """Name of the claim for a team's bucket in the team's namespaces."""
    return f"bucket-{bucket}"


def pushed_claim(bucket: str) -> str:
    """Name of the read-only claim for a team's bucket as the object store has it, in a tier that pushes."""
    return f"pushed-bucket-{bucket}"


def resolve(program: Program, reader: Item, mount: DatasetMount) -> DatasetAccess:
    """Return the access of `reader` to a dataset, whose reference must be valid."""
    dataset = find(program, reader.team, mount.name)
    version = version_of(dataset, mount.version) if dataset is not None else None
    if dataset is None or version is None:
        raise LookupError(f"no dataset {mount.name}")
    claim = claim_name(dataset, version.name, reader.team)
    listed = claim if list_in_pods(version) else None
    if dataset.spec.tier is None:
        url = version_directory(dataset, program, version)
        return DatasetAccess(None, url, dataset.spec.secret, dataset.spec.size, listed)
    return DatasetAccess(claim, version.url or "", None, dataset.spec.size, listed)


def dataset_mounts(item: Item) -> Sequence[DatasetMount]:
    """The dataset mounts of a spec: `spec.datasets`, in any kind that has such a list."""
    found: Sequence[DatasetMount] = getattr(item.spec, "datasets", ())
    return found


def mounted_versions(reader: Item, program: Program) -> list[tuple[tuple[str, str, str], str]]:
    """Datasets and versions that the pods of a spec mount."""
    found = []
    for mount in dataset_mounts(reader):
        dataset = find(program, reader.team, mount.name)
        version = version_of(dataset, mount.version) if dataset is not None else None
        if dataset is not None and version is not None:
            found.append((dataset.key, version.name))
    return found


def mounted_buckets(program: Program, item: Item) -> list[Bucket]:
    """Buckets of the item's team that are mounted through a cache tier of the item's cluster."""
    if item.team is None:
        return []
    team = program.team(item.team)
    return [
        bucket for bucket in team.spec.buckets if bucket.tier and program.tier(bucket.tier).spec.cluster == item.cluster
    ]


def under_store(tier: Item[CacheTierSpec], url: str) -> UnderStore | None:
    """Return the under-store of a tier that contains an object-store URL; None if there is none."""
    inside = [
        store for store in tier.spec.under_stores if f"{url.rstrip('/')}/".startswith(f"{store.url.rstrip('/')}/")
    ]
    return max(inside, key=lambda store: len(store.url.rstrip("/")), default=None)


def tier_path(tier: Item[CacheTierSpec], url: str) -> str | None:
    """Path of an object-store URL in a tier's namespace; None if no under-store contains it."""
    store = under_store(tier, url)
    if store is None:
        return None
    rest = url[len(store.url.rstrip("/")) :].strip("/")
    return "/".join(filter(None, (store.mount.rstrip("/"), rest))) or "/"


def durable_store(tier: Item[CacheTierSpec]) -> Durable | None:
    """Return the durable store that a tier writes to, from which the cache daemon pushes to the under-stores; None if
    it writes to none."""
    back = tier.spec.write_back
    return back.durable if tier.spec.role == "write" and back.mode == "push" else None


def has_durable_store(tier: Item[CacheTierSpec]) -> bool:
    """Return True if a tier writes to a durable store."""
    return durable_store(tier) is not None


def pushed_path(tier: Item[CacheTierSpec], url: str) -> str | None:
    """Path in a tier's namespace that shows an object-store URL as the store has it; None if its own path does."""
    store = under_store(tier, url)
    if store is None or store.read_only or not has_durable_store(tier):
        return None
    mount = store.mount.rstrip("/")
    path = tier_path(tier, url) or mount
    return f"{mount}{PUSHED}{path.removeprefix(mount)}"


def may_hold_unpersisted(tier: Item[CacheTierSpec]) -> bool:
    """Return True if a tier's workers may hold data that is not yet in a store."""
    return tier.spec.role == "write" and tier.spec.write_back.mode == "async"


def cached_files(tier: Item[CacheTierSpec], program: Program) -> int:
    """Number of files of all versions of the datasets in a tier, as far as they declare it."""

    def count() -> dict[str, int]:
        found: dict[str, int] = {}
        for dataset in program.datasets():
            if dataset.spec.tier and dataset.spec.files:
                files = dataset.spec.files * len(dataset.spec.versions)
                found[dataset.spec.tier] = found.get(dataset.spec.tier, 0) + files
        return found

    counts = program.memo("files by tier", count)
    return counts.get(tier.spec_name, 0)


def host_path(tier: Item[CacheTierSpec], path: str) -> str:
    """Directory on each machine where FUSE exposes a path of the tier's namespace."""
    return f"{tier.spec.fuse.path.rstrip('/')}/{tier.name}{path if path != '/' else ''}"


def volume_directory(tier: Item[CacheTierSpec]) -> str:
    """Directory on each machine with the volumes of a tier."""
    return f"{tier.spec.fuse.path.rstrip('/')}/.volumes/{tier.name}"


def volume_path(tier: Item[CacheTierSpec], path: str) -> str:
    """Directory on each machine that pods mount for a path of the tier's namespace."""
    words = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:40].strip("-")
    return f"{volume_directory(tier)}/{words}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def mount_problems(
    item: Item, program: Program, mounts: Sequence[DatasetMount], path: tuple[str | int, ...]
) -> list[Diagnostic]:
    """Return the problems of a workspace's or job's dataset mounts; `path` is the list's path in the document."""
    problems: list[Diagnostic] = []
    for index, mount in enumerate(mounts):
        here = (*path, index)
        clash = _same_place(item, mounts, index, path)
        if clash is not None:
            problems.append(clash)
        problems += read_problems(item, program, mount, here)
    return problems


def read_problems(item: Item, program: Program, mount: DatasetMount, here: tuple[str | int, ...]) -> list[Diagnostic]:
    """Return the problems of a reference to a dataset: `name` and `version` below the path `here`."""
    problem = _unreadable_problem(item, program, mount, here)
    if problem is not None:
        return [problem]
    dataset = find(program, item.team, mount.name)
    return [] if dataset is None else _unreachable_problems(item, program, dataset, mount, here)


def _same_place(
    item: Item, mounts: Sequence[DatasetMount], index: int, path: tuple[str | int, ...]
) -> Diagnostic | None:
    """Return the conflict between a dataset mount and the mounts before it, if any."""
    mount = mounts[index]
    place = mount.mount.rstrip("/")
    where = (*path, index, "mount")  # computing a span reads the file again: only when there is a problem
    own = f"/{mount.name.rpartition('/')[2]}"
    if not place:
        hint = f"write a directory, e.g. `mount: {own}`"
        return Diagnostic(
            "mount-conflict", "a dataset mounted at `/` would hide the image's files", item.span(*where), hint=hint
        )
    for before in range(index):
        other = mounts[before].mount.rstrip("/")
        if place == other:
            message = f"two datasets are mounted at `{mount.mount}`"
        elif f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/"):
            # The outer mount is read-only, so the mount point of the inner one cannot be created.
            message = f"`{mount.mount}` and `{mounts[before].mount}` overlap: one contains the other"
        else:
            continue
        return Diagnostic(
            "mount-conflict",
            message,
            item.span(*where),
            hint=f"mount them in separate directories, e.g. `mount: {other}-{index + 1}`",
            notes=(Note(item.span(*path, before, "mount"), "first mount"),),
        )
    return None


def _readable_datasets(program: Program, team: str | None) -> WordIndex:
    """Return the datasets that a team may read, by the name to write."""

    def read() -> WordIndex:
        datasets = [each for each in program.datasets() if may_read(each, team)]
        mine = (None, team)
        return WordIndex(each.spec_name if each.team in mine else f"{each.team}/{each.spec_name}" for each in datasets)

    return program.memo(("readable datasets", team), read)


def _unreadable_problem(
    item: Item, program: Program, mount: DatasetMount, here: tuple[str | int, ...]
) -> Diagnostic | None:
    """Return the diagnostic for a dataset name or version that the team cannot resolve, if any."""
    dataset = find(program, item.team, mount.name)
    owner, _, name = mount.name.rpartition("/")
    if dataset is None:
        if program.is_broken_dataset(name):
            return None
        known = _readable_datasets(program, item.team)
        shared = next((written for written in known.words if written.endswith(f"/{name}")), None)
        near = shared or known.closest(mount.name)
        hidden = next((d for d in program.datasets() if d.spec_name == name and (not owner or d.team == owner)), None)
        if near is None and hidden is not None:
            return _not_shared(item, hidden, here)
        hint = f"did you mean `{near}`?" if near else f"team {item.team} may read {known.listed}"
        message = f"no Dataset `{mount.name}` is available to team {item.team}"
        about, span = Reference(Dataset.KIND, mount.name, near or ""), item.span(*here, "name")
        return Diagnostic("missing-reference", message, span, hint=hint, reference=about)
    if not may_read(dataset, item.team):
        return _not_shared(item, dataset, here)
    if version_of(dataset, mount.version) is None:
        names = [version.name for version in dataset.spec.versions]
        if len(set(names)) < len(names):
            return None  # one of two with the same name may be this one, which is reported
        near = closest_word(str(mount.version), names)
        hint = f"did you mean `{near}`?" if near else f"available versions: {one_of(names)}"
        return Diagnostic(
            "missing-reference",
            f"{dataset} does not have version `{mount.version}`",
            item.span(*here, "version"),
            hint=hint,
            notes=(Note(dataset.span("spec", "versions", key=True), "its versions"),),
        )
    return None


def _not_shared(item: Item, dataset: Item[DatasetSpec], here: tuple[str | int, ...]) -> Diagnostic:
    return Diagnostic(
        "not-shared",
        f"{dataset} is not shared with team {item.team}",
        item.span(*here, "name"),
        hint=f"add `{item.team}` to `sharedWith` of {dataset}, then write `{dataset.team}/{dataset.spec_name}`",
        notes=(Note(dataset.span("metadata", "name"), "declared here"),),
    )


def _unreachable_problems(
    item: Item, program: Program, dataset: Item[DatasetSpec], mount: DatasetMount, here: tuple[str | int, ...]
) -> list[Diagnostic]:
    """Return the problem that keeps a readable dataset from the item's cluster, if any."""
    if dataset.spec.tier:
        tier = program.find_tier(dataset.spec.tier)
        if tier is None or tier.spec.cluster == item.cluster:
            return []
        where = one_of([tier.spec.cluster])
        note = Note(tier.span("spec", "cluster"), f"cache tier {tier.spec_name} runs on this cluster")
    elif item.cluster in dataset.clusters:
        return require_image(item, program, "fetch", (*here, "name"))
    else:
        where, note = one_of(dataset.clusters), Note(dataset.span("spec", "cluster"), "declared for that cluster here")
    return [
        Diagnostic(
            "other-cluster",
            f"{item} runs on cluster `{item.cluster}`, but {dataset} is only available on {where}",
            item.span(*here, "name"),
            hint=f"run it on that cluster, or declare the dataset for cluster `{item.cluster}`",
            notes=(note,),
        )
    ]
