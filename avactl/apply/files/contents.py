"""Manifests as text: the content of each object's file, and all objects as one stream.

A file does not depend on other objects, so a change rewrites only the files of changed objects.
"""

from __future__ import annotations

from collections.abc import Iterable

from avactl.base.yaml_output import dump
from avactl.program.manifest import Manifest
from avactl.program.program import Item


def _file_header(item: Item) -> str:
    """Return a comment with the spec that the object comes from, without the line number, which would change with every
    other spec in the file and clutter diffs of rendered output."""
    text = f"# {item}, from {item.doc.file}"
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def object_text(manifest: Manifest) -> str:
    """Return the content of an object's file."""
    return f"{_file_header(manifest.item)}\n{dump(manifest.body)}"


def stream(manifests: Iterable[Manifest]) -> Iterable[str]:
    """Yield all objects as documents of one YAML stream, in order."""
    for manifest in manifests:
        yield "---\n" + object_text(manifest)
