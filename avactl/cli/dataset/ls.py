"""`avactl dataset ls`."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated

import typer

from avactl.cli.dataset.options import Endpoint, Exclude, Follow, Match


class ListFormat(str, Enum):  # noqa: UP042 - typer reads the values of str enums
    text = "text"
    jsonl = "jsonl"


def ls(
    source: Annotated[str, typer.Argument(metavar="MANIFEST|URL|DIR", help="Manifest, prefix or directory.")],
    label: Annotated[
        list[str], typer.Option("--label", "-l", metavar="NAME=VALUE", help="Only objects with this label. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    match: Match = [],  # noqa: B006
    exclude: Exclude = [],  # noqa: B006
    summary: Annotated[bool, typer.Option("--summary", "-s", help="Print only the sums.")] = False,
    format: Annotated[ListFormat, typer.Option("--format", "-f", help="`jsonl` prints a manifest.")] = ListFormat.text,
    endpoint: Endpoint = "",
    follow: Follow = False,
) -> None:
    """List the objects of a dataset, and sum them up by label."""
    from avactl.datasets.listing import SourceListing, sums_text
    from avactl.datasets.manifest import dump_entry
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.selection import choose, label_filter
    from avactl.datasets.text import object_line

    found = SourceListing(source, endpoint, follow, choose(match, exclude), label_filter(label))
    with PackProgress(sys.stderr, silent=not summary and sys.stdout.isatty()) as progress:
        for path, entry in found.entries(progress):
            if format is ListFormat.jsonl:
                sys.stdout.buffer.write(dump_entry(entry))
            elif not summary:
                sys.stdout.write(object_line(path, entry.size, entry.labels))
    sys.stdout.flush()
    text = "\n".join(sums_text(found)) + "\n"
    (sys.stderr if format is ListFormat.jsonl else sys.stdout).write(text)
