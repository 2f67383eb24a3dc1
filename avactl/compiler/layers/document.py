"""A document merged of layers: every value is located in the layer that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from avactl.compiler.layers.merge import LayerPart, merge_values, removing_part, trace_parts
from avactl.diagnostics import Span
from avactl.spec.documents.document import Document, Path

SPEC = "spec"
OVERLAY = "overlay"
TEMPLATE = "template"
TEAM_DEFAULT = "team default"
PLATFORM_DEFAULT = "platform default"


class Layer(NamedTuple):
    """A part of a document that contributes to a spec."""

    role: str
    document: Document
    root: Path
    """Path of `value` in the document."""
    value: dict[str, Any]
    """Partial spec: some of `apiVersion`, `kind`, `metadata`, `spec`, `patches`."""


class LayeredLocator:
    """Finds values of merged layers in their own files."""

    __slots__ = ("layers",)

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers

    @property
    def parts(self) -> list[LayerPart]:
        """The whole of each layer, lowest first."""
        return [LayerPart(index, layer.root, layer.value) for index, layer in enumerate(self.layers)]

    def locate(self, index: int, path: Path, key: bool) -> Span:
        parts, rest = trace_parts(self.parts, path)
        part = parts[-1]
        if len(parts) > 1 or rest:
            # A mapping of several layers: the spec's own, where its author looks first.
            part = next((each for each in parts if self.layers[each.layer].role == SPEC), part)
        return self.layers[part.layer].document.span(*part.path, *rest, key=key)


class LayeredDocument(Document):
    """A spec with its layers. `file` and `index` are those of the spec itself."""

    __slots__ = ("layers",)

    def __init__(self, layers: Sequence[Layer]) -> None:
        """`layers`: lowest first; the spec is one of them, or the only one."""
        spec = next((each for each in layers if each.role == SPEC), layers[-1]).document
        value = reduce(merge_values, (layer.value for layer in layers))
        super().__init__(spec.file, spec.index, value, LayeredLocator(layers))
        self.layers = layers

    @property
    def sources(self) -> Sequence[Document]:
        """The spec itself and its overlays, whose files must be allowed to declare it."""
        return [layer.document for layer in self.layers if layer.role in (SPEC, OVERLAY)]

    def removed(self, *path: str | int) -> Span | None:
        """Return the location of the `null` that removes a key of the merged spec, if there is one."""
        parts, rest = trace_parts(LayeredLocator(self.layers).parts, path)
        found = removing_part(parts, rest[0]) if len(rest) == 1 else None
        return self.layers[found.layer].document.span(*found.path, key=True) if found else None
