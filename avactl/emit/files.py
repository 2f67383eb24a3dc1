"""Manifests as text: what stands in the file of each one, and all of them as one stream.

Nothing in a file depends on other objects, so a change touches the files that it is about.
"""

from __future__ import annotations

from collections.abc import Iterable

from avactl.emit.yaml import dump
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item


def _header(item: Item) -> str:
    """The comment that says which spec asked for the object. Without the line: that would change with every other
    spec in the file, and fill the diffs of rendered files with noise."""
    text = f"# {item}, from {item.doc.file}"
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def object_text(manifest: Manifest) -> str:
    """The content of an object's file."""
    return f"{_header(manifest.item)}\n{dump(manifest.body)}"


def stream(manifests: Iterable[Manifest]) -> Iterable[str]:
    """All objects as documents of one YAML stream, in their order."""
    for manifest in manifests:
        yield "---\n" + object_text(manifest)
