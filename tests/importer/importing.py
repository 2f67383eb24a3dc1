"""Imports in memory."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from avactl.workbench.importer.reading import read, read_objects
from avactl.workbench.importer.session import Imported, import_objects
from avactl.workbench.importer.sources.context import ImportOptions

IMAGES = {name: f"registry.example.com/{name}@sha256:{'ab' * 32}" for name in ("kubectl", "fetch")}


def imported(text: str, directory: Path, **options: object) -> Imported:
    """Return the import of manifests into an empty repository."""
    merged = ImportOptions(**{"images": IMAGES, **options})  # type: ignore[arg-type]
    made, _ = import_objects(read_objects("a.yaml", text.encode()), merged, directory)
    return made


def imported_file(path: Path, directory: Path) -> Imported:
    """Return the import of one file."""
    made, _ = import_objects(read([path], BytesIO()), ImportOptions(images=IMAGES), directory)
    return made
