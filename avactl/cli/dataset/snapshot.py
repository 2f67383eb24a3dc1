"""`avactl dataset snapshot`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.terminal import count_text
from avactl.cli.dataset.options import Endpoint, Exclude, Follow, Match, Url


def snapshot(
    source: Annotated[str, typer.Argument(metavar="URL|DIR", help="Prefix of an object store, or a directory.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Manifest. Default: standard output.")
    ] = None,
    labels: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Label objects by directories, from the left: `split/class`; `_` skips one."
        ),
    ] = "",
    checksum: Annotated[bool, typer.Option("--checksum", help="Read all content and record its SHA-256.")] = False,
    url: Url = "",
    match: Match = [],  # noqa: B006 - typer copies it
    exclude: Exclude = [],  # noqa: B006
    endpoint: Endpoint = "",
    follow: Follow = False,
) -> None:
    """Write a manifest of what a store or a directory holds: names, sizes, checksums.

    Without --checksum, the ETag of the store identifies the content; files of a directory have none. Credentials come
    from the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, …).
    """
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.selection import choose, directory_labels
    from avactl.datasets.snapshot import SnapshotOptions, write_manifest
    from avactl.datasets.snapshot import snapshot_entries as entries
    from avactl.datasets.stores.locations import parse_location
    from avactl.datasets.stores.opening import open_store
    from avactl.datasets.text import size_text

    base = parse_location(url).url if url else ""
    options = SnapshotOptions(base, choose(match, exclude), directory_labels(labels), checksum)
    store = open_store(source, endpoint, follow)
    with PackProgress(sys.stderr, silent=out is None and sys.stdout.isatty()) as progress:
        written = write_manifest(out or sys.stdout.buffer, entries(store, options, progress), store.location)
    name = out or store.location
    print(f"{name}: {count_text(written.objects, 'object')}, {size_text(written.bytes)}", file=sys.stderr)
    print(f"sha256: {written.sha256}", file=sys.stderr)
    if written.blanks:
        text = "with blanks, which `manifest` of a Dataset does not accept: use `url`, or pack the data"
        print(f"note: {count_text(written.blanks, 'name')} {text}", file=sys.stderr)
