"""Lists of objects by glob and label, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from avactl.base.terminal import count_text
from avactl.datasets.manifest import ManifestEntry, numbered_lines, parse_line, read_valid
from avactl.datasets.progress import PackProgress
from avactl.datasets.selection import Chooses, label_text
from avactl.datasets.sources import is_manifest
from avactl.datasets.stores.opening import open_store
from avactl.datasets.text import display_name, size_text

MAX_VALUES = 20
"""Values of a label that are counted one by one; all further ones are counted together."""
MAX_LABELS = 100
"""Labels that are counted: a manifest could have other ones on each line."""
_REST_KEY = "\0"


@dataclass
class Sums:
    """Sums of listed objects."""

    objects: int = 0
    bytes: int = 0
    without_size: int = 0
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    """Label → objects by value, of the first MAX_LABELS; `_REST_KEY` stands for values after the first MAX_VALUES."""
    uncounted: bool = False
    """True if there are more labels."""

    def add(self, entry: ManifestEntry) -> None:
        """Count an object."""
        self.objects += 1
        self.bytes += entry.size or 0
        self.without_size += entry.size is None
        for name, value in entry.labels.items():
            if name not in self.labels and len(self.labels) >= MAX_LABELS:
                self.uncounted = True
                continue
            values, text = self.labels.setdefault(name, Counter()), label_text(value)
            values[text if text in values or len(values) < MAX_VALUES else _REST_KEY] += 1


@dataclass
class SourceListing:
    """Objects of a manifest, a prefix or a directory that fit; `sums` holds for those that were consumed."""

    source: str
    endpoint: str
    follow: bool
    chosen: Chooses
    labelled: Callable[[Any], bool]
    sums: Sums = field(default_factory=Sums)
    directory: str = ""
    """URL of the directory that the paths are relative to, with a slash at its end."""

    def entries(self, progress: PackProgress) -> Iterator[tuple[str, ManifestEntry]]:
        """Yield paths and entries in the order of the source. Raises DatasetError, StoreError, ArgumentError."""
        for path, entry in self._all(progress):
            if self.chosen(path) and self.labelled(entry.labels):
                self.sums.add(entry)
                yield path, entry

    def _all(self, progress: PackProgress) -> Iterator[tuple[str, ManifestEntry]]:
        progress.start("listing")
        if not is_manifest(self.source):
            store = open_store(self.source, self.endpoint, self.follow)
            self.directory = f"{store.location.url}/"
            for number, found in enumerate(progress.counted(store.objects()), 1):
                yield found.key, ManifestEntry(self.directory + found.key, found.size, "", "", found.etag, {}, number)
            return
        path = Path(self.source)
        self.directory = read_valid(path, progress.counted).directory
        for number, line in numbered_lines(path):
            if isinstance(entry := parse_line(line, number), ManifestEntry):
                yield entry.url[len(self.directory) :], entry


def sums_text(listing: SourceListing) -> Iterator[str]:
    """Yield the lines that sum up a list."""
    sums = listing.sums
    unknown = f" ({sums.without_size:,} without a size)" if sums.without_size else ""
    place = display_name(listing.directory.rstrip("/")) or display_name(listing.source)
    yield f"{count_text(sums.objects, 'object')}, {size_text(sums.bytes)}{unknown} in {place}"
    for name, values in sorted(sums.labels.items()):
        rest = values.get(_REST_KEY, 0)
        told = [f"{display_name(value)} {count:,}" for value, count in values.most_common() if value != _REST_KEY]
        yield f"{display_name(name)}: {', '.join(told)}" + (f", {rest:,} with other values" if rest else "")
    if sums.uncounted:
        yield f"more than {MAX_LABELS} labels: only the first {MAX_LABELS} are counted"
