"""`avactl dataset label`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.terminal import count_text


def label(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Manifest of the objects.")],
    labels: Annotated[
        Path,
        typer.Argument(metavar="LABELS", help="CSV with a header, or JSON lines: `url` or `path`, and labels."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The new manifest.")],
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Leave out rows of objects that the manifest does not list.")
    ] = False,
) -> None:
    """Write labels into a manifest, as a new one: the next version of a dataset.

    An empty cell of a CSV changes nothing; null in JSON lines removes a label.
    """
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.query.labels import label_manifest

    with PackProgress(sys.stderr) as progress:
        done = label_manifest(manifest, labels, out, ignore_unknown, progress)
    print(f"{out}: {count_text(done.objects, 'object')}, {done.changed:,} with other labels")
    if done.unknown:
        print(f"left out {count_text(done.unknown, 'row')} of unknown objects")
    print(f"sha256: {done.sha256}")
