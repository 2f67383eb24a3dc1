"""`avactl delivery`: the steps of pipelines that publish models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from avactl.cli.common import fail
from avactl.exit_codes import USAGE
from avactl.terminal import plural

delivery = typer.Typer(add_completion=False, rich_markup_mode=None, help="Publish models, as the Jobs of pipelines do.")
To = Annotated[str, typer.Option("--to", help="Directory of the version: URL/NUMBER.")]
Endpoint = Annotated[str, typer.Option(help="URL of an S3 service. Default: AWS_ENDPOINT_URL.")]


@delivery.command()
def stage(
    to: To,
    source: Annotated[str, typer.Option("--from", help="Directory where the training has saved.")],
    output: Annotated[
        str, typer.Option("--model", help="File or directory below it; `*` in its last name: the highest number.")
    ] = "",
    marker: Annotated[str, typer.Option(help="File that completes a directory.")] = "",
    result: Annotated[
        str, typer.Option(help="File that gets the text `unchanged` if the newest output is published already.")
    ] = "",
    endpoint: Endpoint = "",
) -> None:
    """Copy a model to the directory of a version, with the SHA-256 of each file. It is not published yet."""
    from avactl.datasets.stores.opening import open_store
    from avactl.datasets.text import size_text
    from avactl.delivery import publish
    from avactl.delivery.decide import UNCHANGED

    versions = open_store(to.rstrip("/").rpartition("/")[0], endpoint) if "/" in to.rstrip("/") else None
    try:
        done = publish.stage(open_store(source, endpoint), open_store(to, endpoint), output, marker, versions)
    except publish.UnchangedError as error:
        print(error)
        if result:
            Path(result).write_text(UNCHANGED)
        return
    print(f"{to}: {plural(done.files, 'file')}, {size_text(done.bytes)}")


@delivery.command()
def seal(
    to: To,
    keep: Annotated[int, typer.Option(min=0, help="Published versions to keep; 0: all.")] = 0,
    keep_versions: Annotated[str, typer.Option(help="Numbers of versions that are kept in any case: `3,7`.")] = "",
    endpoint: Endpoint = "",
) -> None:
    """Publish a staged version: write lineage.json, of the JSON object in AVACTL_LINEAGE, and remove old versions."""
    import orjson

    from avactl.datasets.stores.opening import open_store
    from avactl.datasets.text import size_text
    from avactl.delivery import publish

    text = os.environ.get("AVACTL_LINEAGE", "") or "{}"
    try:
        lineage = orjson.loads(text) if len(text) <= publish.MAX_LINEAGE else None
    except orjson.JSONDecodeError:
        lineage = None
    if not isinstance(lineage, dict):
        fail("AVACTL_LINEAGE is not a JSON object", USAGE, 'write e.g. {"commit": "…", "metrics": {}}')
    numbers = [part.strip() for part in keep_versions.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        fail(f"--keep-versions {keep_versions[:80]} is not a list of numbers", USAGE, "write e.g. `3,7`")
    target = open_store(to, endpoint)
    done = publish.seal(target, lineage)
    print(f"{to}: published, {plural(done['files'], 'file')}, {size_text(done['bytes'])}")
    if keep:
        directory = to.rstrip("/").rpartition("/")[0]
        removed = publish.prune(directory, done["version"], keep, frozenset(map(int, numbers)), endpoint)
        if removed:
            print(f"removed: {', '.join(map(str, removed))}")
