"""Options that several dataset commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Endpoint = Annotated[
    str, typer.Option(metavar="URL", help="S3 endpoint of the store.", show_default="$AWS_ENDPOINT_URL, or AWS")
]
Follow = Annotated[bool, typer.Option("--follow-symlinks", help="Follow symbolic links of directories.")]
Match = Annotated[
    list[str],
    typer.Option("--match", metavar="GLOB", help="Only these paths; without `/`, names of files. Repeatable."),
]
Exclude = Annotated[list[str], typer.Option("--exclude", metavar="GLOB", help="Not these paths. Repeatable.")]
Url = Annotated[
    str,
    typer.Option("--url", metavar="URL", help="Directory to write in URLs, for data that is uploaded there later."),
]
