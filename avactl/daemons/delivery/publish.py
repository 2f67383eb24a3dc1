"""Publication of a model: an immutable directory for each version, which appears at once.

`stage` copies a model to `TO/VERSION/` and then writes `manifest.sha256` and `manifest.jsonl`, with the SHA-256 of each
file: pods that serve the model check by the first that they have what was published. `seal` writes
`lineage.json` last: a directory without it is not a version. Each may be killed at any point and run again, with the
same result; neither changes what another run has written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from avactl.base.terminal import shorten_middle, visible_text
from avactl.contracts.delivery import CopiedOutput, VersionLineage
from avactl.contracts.document import DocumentError, dump, load
from avactl.datasets.concurrent import in_threads
from avactl.datasets.errors import ArgumentError, DatasetError
from avactl.datasets.manifest import ManifestEntry, ManifestProblem, dump_entry, parse_line
from avactl.datasets.snapshot import content_digest
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import CHUNK, FoundObject, Store

LINEAGE, MANIFEST, ORIGIN, SUMS = "lineage.json", "manifest.jsonl", "origin.json", "manifest.sha256"
"""Files that a version has beside the model. `origin.json` says which output is being copied, before it is."""
OWN = frozenset((LINEAGE, MANIFEST, ORIGIN, SUMS))
THREADS = 4
"""Files copied at once."""
_FIND_NUMBERS = re.compile("[0-9]+").findall
VERSION = re.compile("[1-9][0-9]{0,8}").fullmatch


class Staged(NamedTuple):
    """Facts of a copied model."""

    source: str
    """Path of the copied output below the checkpoint directory; "" for all of it."""
    files: int
    bytes: int


class _File(NamedTuple):
    """A file of a model."""

    key: str
    """Path in the version."""
    found: FoundObject


def version_of(store: Store) -> int:
    """Return the number of the version that a location is. Raises ArgumentError."""
    name = store.location.path.rstrip("/").rpartition("/")[2]
    if not VERSION(name):
        raise ArgumentError(f"{store.location} is not the directory of a version", "name `DIRECTORY/NUMBER`")
    return int(name)


# -- stage ---------------------------------------------------------------------------------------------------------


class UnchangedError(DatasetError):
    """The newest output is published already."""


class RejectedError(DatasetError):
    """The newest output has been rejected."""


class NoOutputError(DatasetError):
    """No output that matches the pattern is complete yet."""


def stage_version(
    source: Store,
    target: Store,
    output: str = "",
    marker: str = "",
    versions: Store | None = None,
    rejected: str = "",
) -> Staged:
    """Copy a model to the directory of a version.

    `versions`: the directory of all versions; raises UnchangedError if the newest of several outputs is that of the
    newest published version. `rejected`: raises RejectedError if it is this one. Raises NoOutputError if none of
    several is complete, DatasetError, StoreError.
    """
    version_of(target)
    if source.location.contains(target.location) or target.location.contains(source.location):
        raise ArgumentError(f"{source.location} and {target.location} overlap", "publish to another directory")
    done = _read_staged(target)
    if done is not None:
        return done
    chosen = _choose_output(source, target, output, marker, versions if "*" in output else None, rejected)
    files = _output_files(source, chosen)
    known = {found.key: found for found in _list_objects(target) if found.key not in OWN}
    foreign = sorted(known.keys() - {file.key for file in files})
    if foreign:
        raise _other_content(target, foreign[0])

    def copy(file: _File) -> ManifestEntry:
        return _copy_file(source, target, file, known.get(file.key))

    entries = sorted(in_threads(copy, files, THREADS, 2 * THREADS), key=lambda entry: entry.url.encode())
    changed = {file.found for file in files} ^ {file.found for file in _output_files(source, chosen)}
    if changed:
        name = visible_text(shorten_middle(min(each.key for each in changed), 200))
        raise DatasetError(
            f"{source.location.url}/{chosen} has changed while it was copied: {name}",
            "write the marker after all other files, and each export into a directory of its own",
        )
    base = f"{target.location.url}/"
    target.write(SUMS, "".join(f"{entry.sha256}  {entry.url.removeprefix(base)}\n" for entry in entries).encode())
    target.write(MANIFEST, b"".join(dump_entry(entry) for entry in entries))
    return Staged(chosen, len(entries), sum(entry.size or 0 for entry in entries))


def _read_staged(target: Store) -> Staged | None:
    """Return what has been copied; None if the copy is not complete."""
    if target.find(MANIFEST) is None:
        return None
    entries, origin = _read_manifest(target), _origin_of(target)
    return Staged("" if origin is None else origin.output, len(entries), sum(entry.size or 0 for entry in entries))


def _choose_output(
    source: Store, target: Store, output: str, marker: str, versions: Store | None, rejected: str
) -> str:
    """Return the output to copy. The choice is written down: a run that goes on after a kill copies the same one."""
    found = _origin_of(target)
    if found is not None:
        return found.output
    chosen = choose(source, output, marker)
    if rejected and chosen == rejected:
        raise RejectedError(f"{source.location.url}/{chosen} was rejected before", "nothing is to be done")
    origin = dump(CopiedOutput(directory=source.location.url, output=chosen)).encode()
    if versions is not None:
        last = _newest_version(versions, version_of(target))
        known = versions.find(f"{last}/{ORIGIN}") if last else None
        if known is not None and versions.read(known) == origin:
            raise UnchangedError(f"{source.location.url}/{chosen} is version {last} already", "nothing is to be done")
    target.write(ORIGIN, origin)
    return chosen


def _origin_of(target: Store) -> CopiedOutput | None:
    """Return what a version is copied from; None if that is not written down yet."""
    found = target.find(ORIGIN)
    if found is None:
        return None
    try:
        return load(CopiedOutput, target.read(found) if found.size <= CopiedOutput.MAX_BYTES else None)
    except DocumentError:
        raise DatasetError(f"{target.location.url}/{ORIGIN} is damaged", "publish under another number") from None


def _newest_version(versions: Store, below: int) -> int:
    """Return the number of the newest published version below another; 0 if there is none."""
    numbers = (int(name) for name in versions.directories() if VERSION(name) and int(name) < below)
    found = (number for number in sorted(numbers, reverse=True) if versions.find(f"{number}/{LINEAGE}") is not None)
    return next(found, 0)


def choose(source: Store, output: str, marker: str = "") -> str:
    """Return the path of the model below a checkpoint directory: the newest complete one for `*`.

    Raises DatasetError if there is none.
    """
    directory, _, last = output.rpartition("/")
    if "*" not in last:
        keys = [found.key for found in _list_objects(source, output)]
        if not keys:
            raise DatasetError(f"there is no model in {source.location.url}/{output}", "check `output` of the pipeline")
        if marker and f"{output}/{marker}" not in keys:
            raise DatasetError(f"{source.location.url}/{output} has no `{marker}`", "the training did not complete it")
        return output
    start, _, end = last.partition("*")
    base = f"{directory}/" if directory else ""
    # A job without end may have saved thousands of directories: their files are not listed.
    names = source.directories(directory) if marker else _files_of(source, directory)
    known = [
        base + name
        for name in names
        if name.startswith(start) and name.endswith(end) and len(name) >= len(start) + len(end)
    ]
    known.sort(key=lambda path: ([int(number) for number in _FIND_NUMBERS(path[len(base) :])], path), reverse=True)
    chosen = next((path for path in known if not marker or source.find(f"{path}/{marker}") is not None), None)
    if chosen is None:
        what = f"no directory with `{marker}`" if marker else "no file"
        hint = "the training has saved none yet" if marker else "for directories, name the file that completes one"
        raise NoOutputError(f"{source.location.url}/{output} is {what}", hint)
    return chosen


def _files_of(source: Store, directory: str) -> list[str]:
    """Return the names of the files directly below a directory."""
    base = f"{directory}/" if directory else ""
    keys = [found.key for found in _list_objects(source, directory)]
    return [key[len(base) :] for key in keys if key.startswith(base) and "/" not in key[len(base) :]]


def _output_files(source: Store, chosen: str) -> list[_File]:
    single = source.find(chosen) if chosen else None
    if single is not None:
        return [_File(chosen.rpartition("/")[2], single)]
    base = f"{chosen}/" if chosen else ""
    files = [
        _File(found.key[len(base) :], found) for found in _list_objects(source, chosen) if found.key.startswith(base)
    ]
    if not files:
        raise DatasetError(f"there is no model in {source.location.url}/{chosen}", "it was removed while it was copied")
    taken = next((file.key for file in files if file.key in OWN), None)
    if taken is not None:
        raise DatasetError(
            f"{source.location.url}/{chosen} has a file `{taken}`, which versions have themselves", "name it otherwise"
        )
    return files


def _copy_file(source: Store, target: Store, file: _File, known: FoundObject | None) -> ManifestEntry:
    """Copy one file, unless it is there, and return its entry."""
    if known is None:
        digest = hashlib.sha256()
        if file.found.size <= CHUNK:
            content = source.read(file.found)
            digest.update(content)
            target.write(file.key, content)
        else:
            target.write(file.key, _read_ahead(source, file.found, digest.update))
        sha256 = digest.hexdigest()
    else:
        sha256 = content_digest(source, file.found)
        if known.size != file.found.size or content_digest(target, known) != sha256:
            raise _other_content(target, file.key)
    return ManifestEntry(f"{target.location.url}/{file.key}", file.found.size, sha256, "", "", {}, 0)


def _read_ahead(source: Store, found: FoundObject, seen: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield the content of a file, read in a thread: one store cannot ask another while it takes the content."""
    with ThreadPoolExecutor(1) as pool:
        chunks = source.stream(found)
        pending = pool.submit(next, chunks, b"")
        while chunk := pending.result():
            pending = pool.submit(next, chunks, b"")
            seen(chunk)
            yield chunk


def _other_content(target: Store, key: str) -> DatasetError:
    name = visible_text(shorten_middle(f"{target.location.url}/{key}", 200))
    return DatasetError(f"{name} is not of this model", "versions never change: publish under another number")


def _list_objects(store: Store, below: str = "") -> list[FoundObject]:
    """Return the objects below a path; none if there is no such directory."""
    where = store.location
    if where.scheme == "file":
        path = Path(where.path) / below
        if path.is_file():
            found = store.find(below)
            return [found] if found is not None else []
        if not path.is_dir():
            return []
    return list(store.objects(below))


def _read_manifest(target: Store) -> list[ManifestEntry]:
    found = target.find(MANIFEST)
    if found is None:
        raise DatasetError(f"{target.location} has no {MANIFEST}", "run `avactl delivery stage` first")
    entries = []
    for number, line in enumerate(target.read(found).splitlines(), 1):
        entry = parse_line(line, number)
        if isinstance(entry, ManifestProblem):
            raise DatasetError(f"{target.location.url}/{MANIFEST}: {entry.message}", "publish under another number")
        entries.append(entry)
    return entries


# -- seal ----------------------------------------------------------------------------------------------------------


def seal_version(target: Store, lineage: VersionLineage) -> VersionLineage:
    """Publish a staged version by its lineage, and return that. Raises DatasetError, StoreError.

    It is an error if the version has another lineage already, or if its files are not those that were staged.
    """
    version, entries = version_of(target), _read_manifest(target)
    base = f"{target.location.url}/"
    sizes = {found.key: found.size for found in _list_objects(target) if found.key not in OWN}
    for entry in entries:
        if sizes.pop(entry.url.removeprefix(base), None) != entry.size:
            raise DatasetError(
                f"{visible_text(shorten_middle(entry.url, 200))} is not as staged", "publish another run"
            )
    if sizes:
        raise _other_content(target, min(sizes))
    manifest = target.find(MANIFEST)
    assert manifest is not None
    origin = _origin_of(target)
    document = lineage.replace(
        source=lineage.source if origin is None else f"{origin.directory}/{origin.output}".rstrip("/"),
        version=version,
        files=len(entries),
        bytes=sum(entry.size or 0 for entry in entries),
        manifest_sha256=content_digest(target, manifest),
    )
    content = dump(document, indent=True).encode()
    known = target.find(LINEAGE)
    if known is None:
        target.write(LINEAGE, content)
    elif target.read(known) != content:
        raise DatasetError(
            f"{target.location} is published with another lineage", "versions never change: publish another run"
        )
    return document


def prune_versions(directory: str, newest: int, keep: int, protected: frozenset[int], endpoint: str = "") -> list[int]:
    """Remove old versions of a directory and return their numbers.

    Kept are the `keep` newest published ones up to `newest`, those of `protected`, and all above `newest`, of which
    some may be on their way. Directories without lineage below it are of runs that failed. The lineage is removed
    first: what is left after a kill is no version.
    """
    store = open_store(directory, endpoint)
    found: dict[int, list[str]] = {}
    for each in _list_objects(store):
        name, slash, _ = each.key.partition("/")
        if slash and VERSION(name):
            found.setdefault(int(name), []).append(each.key)
    published = sorted(
        (number for number, keys in found.items() if f"{number}/{LINEAGE}" in keys and number <= newest), reverse=True
    )
    kept = {*published[:keep], *protected, newest}
    removed = sorted(number for number in found if number < newest and number not in kept)
    for number in removed:
        for key in sorted(found[number], key=lambda key, own=f"{number}/{LINEAGE}": key != own):  # type: ignore[misc]
            store.remove(key)
    return removed
