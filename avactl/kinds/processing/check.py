"""Checks of a processing: its versions, its job, and who reads what it makes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

from avactl.contracts.processing import BESIDE
from avactl.diagnostics import Diagnostic, Note, Reference
from avactl.diagnostics.suggest import WordIndex, did_you_mean
from avactl.kinds.dataset.lower import dataset_readers
from avactl.kinds.processing.job import Versions, find_versions, located_job, target_url
from avactl.kinds.processing.spec import ProcessingJob, ProcessingJobSpec
from avactl.kinds.training.check import check as check_job
from avactl.program import dataset_access
from avactl.program.dataset_listing import version_directory
from avactl.program.program import Item, Program
from avactl.spec.platform.dataset import DatasetSpec, Version


def check(item: Item[ProcessingJobSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one processing."""
    yield from _check_references(item, program)
    versions = find_versions(item, program)
    if versions is None:
        return
    yield from _check_versions(item, program, versions)
    job = located_job(item, program)
    if job is not None:
        yield from check_job(job, program)
    yield from _check_readers(item, program, versions)


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield processings that make the same version."""
    first: dict[tuple[str | None, str, str], Item[ProcessingJobSpec]] = {}
    for item in sorted(program.of_kind(ProcessingJob), key=lambda item: item.origin):
        other = first.setdefault((item.team, item.spec.dataset, item.spec.to), item)
        if other is not item:
            yield Diagnostic(
                "duplicate-entry",
                f"{item} and {other} make the same version `{item.spec.to}` of `{item.spec.dataset}`",
                item.span("spec", "to"),
                hint="make a version of its own",
                notes=(Note(other.span("spec", "to"), str(other)),),
            )


def _check_references(item: Item[ProcessingJobSpec], program: Program) -> Iterator[Diagnostic]:
    name = item.spec.dataset
    dataset = dataset_access.find(program, item.team, name)
    if dataset is None or dataset.team != item.team:
        if program.is_broken_dataset(name):
            return
        known = program.names("Dataset", item.team)
        yield Diagnostic(
            "missing-reference",
            f"team {item.team} has no Dataset `{name}`",
            item.span("spec", "dataset"),
            hint="a team makes versions of its own datasets"
            if dataset is not None
            else did_you_mean(name, known, "datasets of the team"),
            reference=Reference("Dataset", name, known.closest(name) or ""),
        )
        return
    names = WordIndex(version.name for version in dataset.spec.versions)
    for key, version in (("from", item.spec.from_version), ("to", item.spec.to)):
        if version not in names.words:
            yield Diagnostic(
                "missing-reference",
                f"{dataset} has no version `{version}`",
                item.span("spec", key),
                hint=did_you_mean(version, names, "its versions"),
                notes=(Note(dataset.span("spec", "versions", key=True), "its versions"),),
            )


def _check_versions(item: Item[ProcessingJobSpec], program: Program, versions: Versions) -> Iterator[Diagnostic]:
    dataset, source, target = versions
    order = [version.name for version in dataset.spec.versions]
    at = ("spec", "versions", order.index(target.name))
    note = Note(dataset.span(*at), f"version {target.name}")
    if order.index(source.name) >= order.index(target.name):
        yield Diagnostic(
            "conflicting-keys",
            f"version `{target.name}` does not come after `{source.name}`, from which it is made",
            item.span("spec", "to"),
            hint="versions are in the order of their making: the oldest one is the first",
            notes=(note,),
        )
        return
    url = target_url(versions)
    if not url or _is_bucket(url):
        yield Diagnostic(
            "missing-key",
            f"version `{target.name}` needs `url`, a directory of a bucket: its manifest is written beside it",
            item.span("spec", "to"),
            hint="write `url: s3://bucket/directory`; its manifest is then s3://bucket/directory.manifest",
            notes=(note,),
        )
        return
    for other in _overlapping(item, program, versions, url)[:1]:
        name = f"version `{other.version.name}`" if other.dataset is dataset else f"{other.dataset}"
        yield Diagnostic(
            "conflicting-keys",
            f"version `{target.name}` is made in a directory that overlaps with that of {name}: one would change the "
            "other",
            item.span("spec", "to"),
            hint="give each version a directory of its own; `DIRECTORY.manifest` belongs to it",
            notes=(note, Note(other.dataset.span("spec", "versions", other.number), f"{other.url}")),
        )
    cluster = program.cluster(item.cluster)
    if not cluster.spec.daemons.scheduler:
        yield Diagnostic(
            "missing-daemon",
            f"jobs that read the version wait for it by the daemon `scheduler`, which cluster {cluster.name} does not "
            "run",
            item.span("spec", "to"),
            hint=f"write `daemons: {{scheduler: true}}` in Cluster {cluster.name}",
            notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
        )


class _Place(NamedTuple):
    """The directory of a version."""

    url: str
    """With a slash at its end."""
    dataset: Item[DatasetSpec]
    number: int
    version: Version


def _places(program: Program) -> list[_Place]:
    """Return the directories of all versions that have one, sorted."""
    found = [
        _Place(f"{version_directory(dataset, program, version).rstrip('/')}/", dataset, index, version)
        for dataset in program.datasets()
        for index, version in enumerate(dataset.spec.versions)
        if version.url is not None
    ]
    return sorted(found, key=lambda place: place.url)


def _beginning_with(places: list[_Place], url: str) -> Iterator[_Place]:
    """Yield the places in a directory, itself first."""
    first = bisect_left(places, url, key=lambda place: place.url)
    return takewhile(lambda place: place.url.startswith(url), islice(places, first, None))


def _overlapping(item: Item[ProcessingJobSpec], program: Program, versions: Versions, url: str) -> list[_Place]:
    """Return versions of the team in, or around, what a processing writes; `find_overlaps` reports other teams'."""
    places = program.memo("version places", lambda: _places(program))
    found = []
    for own in (f"{url}/", f"{url}{BESIDE}/"):
        above = [own[: match.end()] for match in re.finditer("(?<!/)/(?!/)", own)][:-1]
        around = (place for each in above for place in _beginning_with(places, each) if place.url == each)
        found += [
            place
            for place in (*around, *_beginning_with(places, own))
            if place.dataset.team == item.team
            and (place.dataset is not versions.dataset or place.version is not versions.target)
        ]
    return found


def _is_bucket(url: str) -> bool:
    return not url.partition("://")[2].partition("/")[2]


def _check_readers(item: Item[ProcessingJobSpec], program: Program, versions: Versions) -> Iterator[Diagnostic]:
    """Yield a warning if pods elsewhere read the version: they cannot wait for this job."""
    places = dataset_readers(program).get(versions.dataset.key, {})
    others = sorted(
        f"{namespace} of cluster {cluster}"
        for (cluster, namespace, _), names in places.items()
        if versions.target.name in names and (cluster, namespace) != (item.cluster, item.ns)
    )
    if others:
        yield Diagnostic(
            "other-cluster",
            f"pods in namespace {others[0]} read version `{versions.target.name}`, and do not wait for this job",
            item.span("spec", "to"),
            severity="warning",
            hint="declare what they read when the version is complete: pods wait for Jobs of their own namespace",
        )
