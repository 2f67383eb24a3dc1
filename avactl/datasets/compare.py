"""Differences of two manifests, by a merge of both in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from avactl.datasets.manifest import ManifestEntry, ManifestReader, read_valid
from avactl.datasets.ordering import valid_in_order
from avactl.datasets.progress import PackProgress
from avactl.datasets.selection import label_text
from avactl.datasets.text import size_text

Kind = Literal["added", "removed", "changed", "relabeled"]
KINDS: tuple[Kind, ...] = ("added", "removed", "changed", "relabeled")


class EntryChange(NamedTuple):
    """One object that differs."""

    kind: Kind
    path: str
    """Path below the compared directory."""
    old: ManifestEntry | None
    new: ManifestEntry | None

    @property
    def text(self) -> str:
        """Return what changed: `98.1 kB`, `98.1 kB → 97.0 kB, class: cat → dog`."""
        if self.old is None or self.new is None:
            entry = self.new or self.old
            return size_text(entry.size) if entry else ""
        old, new = self.old, self.new
        parts = []
        if old.size != new.size:
            parts.append(f"{size_text(old.size)} → {size_text(new.size)}")
        elif self.kind == "changed":
            parts.append(f"{size_text(new.size)}, other content")
        for name in sorted({*old.labels, *new.labels}):
            before, after = (label_text(labels.get(name, "-")) for labels in (old.labels, new.labels))
            if before != after:
                parts.append(f"{name}: {before} → {after}")
        return ", ".join(parts)

    def data(self) -> dict[str, Any]:
        """Return the change as JSON data."""
        sides = {
            name: {"size": side.size, "sha256": side.sha256, "etag": side.etag, "labels": side.labels}
            for name, side in (("old", self.old), ("new", self.new))
            if side is not None
        }
        return {"kind": self.kind, "path": self.path, **sides}


@dataclass
class Total:
    """Objects of one kind of change, and their bytes on both sides."""

    objects: int = 0
    old: int = 0
    new: int = 0

    def add(self, old: ManifestEntry | None, new: ManifestEntry | None) -> None:
        """Count an object."""
        self.objects += 1
        self.old += (old.size or 0) if old else 0
        self.new += (new.size or 0) if new else 0


@dataclass
class ManifestComparison:
    """Two manifests, and the sums of their changes once `changes` has been consumed."""

    old: str
    """Directory that is compared, with a slash at its end."""
    new: str
    _sides: tuple[ManifestReader, ManifestReader]
    totals: dict[Kind, Total] = field(default_factory=lambda: {kind: Total() for kind in KINDS})
    unchanged: Total = field(default_factory=Total)
    by_size: int = 0
    """Unchanged objects that only their sizes compare: a side has no checksum."""

    @property
    def differs(self) -> bool:
        """Return True if there are changes."""
        return any(total.objects for total in self.totals.values())

    def changes(self, progress: PackProgress) -> Iterator[EntryChange]:
        """Yield the changes in the order of paths. Raises DatasetError for duplicates."""
        progress.start("comparing", max(side.objects for side in self._sides))
        left = progress.counted(valid_in_order(self._sides[0]))
        right = valid_in_order(self._sides[1])
        old, new = next(left, None), next(right, None)
        while old is not None or new is not None:
            before = old.url[len(self.old) :] if old else None
            after = new.url[len(self.new) :] if new else None
            if after is None or (before is not None and before < after):
                yield self._count("removed", before or "", old, None)
                old = next(left, None)
            elif before is None or after < before:
                yield self._count("added", after, None, new)
                new = next(right, None)
            elif old is not None and new is not None:
                kind = self._kind(old, new)
                if kind is None:
                    self.unchanged.add(old, new)
                else:
                    yield self._count(kind, after, old, new)
                old, new = next(left, None), next(right, None)

    def _count(self, kind: Kind, path: str, old: ManifestEntry | None, new: ManifestEntry | None) -> EntryChange:
        self.totals[kind].add(old, new)
        return EntryChange(kind, path, old, new)

    def _kind(self, old: ManifestEntry, new: ManifestEntry) -> Kind | None:
        if None not in (old.size, new.size) and old.size != new.size:
            return "changed"
        for one, other in ((old.sha256, new.sha256), (old.md5, new.md5), (old.etag, new.etag)):
            if one and other:
                if one != other:
                    return "changed"
                break
        else:
            self.by_size += old.labels == new.labels
        return None if old.labels == new.labels else "relabeled"


def compare(old: Path, new: Path, progress: PackProgress) -> ManifestComparison:
    """Read two manifests for a comparison. Raises DatasetError for a bad line.

    Versions in different directories are compared by the paths below these.
    """
    sides = []
    for path in (old, new):
        progress.start(f"reading {path.name}:")
        sides.append(read_valid(path, progress.counted))
    left, right = (side.directory for side in sides)
    if left.startswith(right) or right.startswith(left):
        left = right = min(left, right, key=len)
    return ManifestComparison(left, right, (sides[0], sides[1]))
