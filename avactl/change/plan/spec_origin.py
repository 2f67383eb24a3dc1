"""The spec of a workload, and its location."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from avactl.program.program import Item


class SpecOrigin:
    """Identity and location of a spec; pickled without the spec itself."""

    __slots__ = ("_item", "_line", "file", "key")

    def __init__(self, key: tuple[str, str, str], file: str, line: int = 0, item: Item | None = None) -> None:
        """With an `item`, the line is computed on demand, because that reads the file again."""
        self.key, self.file, self._line, self._item = key, file, line, item

    @classmethod
    def of(cls, item: Item) -> SpecOrigin:
        """Return the origin of a spec of this process."""
        return cls(item.key, item.doc.file, item=item)

    @property
    def line(self) -> int:
        """Return the first line of the spec."""
        return self._line if self._item is None else self._item.span("kind", key=True).line

    def __reduce__(self) -> tuple[type[SpecOrigin], tuple[tuple[str, str, str], str, int]]:
        return SpecOrigin, (self.key, self.file, self.line)
