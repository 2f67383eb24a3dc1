"""`avactl dataset pack`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from avactl.base.terminal import count_text
from avactl.cli.dataset.options import Endpoint, Exclude, Follow, Match, Url
from avactl.datasets.pack.model import PackFormat, SplitAt


def pack(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Directory, prefix of a store, or manifest.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Empty directory or prefix of a store.")],
    format: Annotated[PackFormat, typer.Option("--format", "-f", help="Format of the shards.")],
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of a shard before resizing.")] = "1Gi",
    shard_records: Annotated[int, typer.Option(min=1, help="Maximum number of files in a shard.")] = 100_000,
    resize: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Resize images: `256`: the shorter side; `256x256`: scaled and cropped."),
    ] = "",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out samples whose image cannot be decoded.")
    ] = False,
    labels: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Label files by directories, from the left: `split/class`; `_` skips one."),
    ] = "",
    class_label: Annotated[
        str | None, typer.Option("--class", metavar="LABEL", help="Label that is the class.", show_default="class")
    ] = None,
    part_label: Annotated[
        str | None,
        typer.Option("--by", metavar="LABEL", help="Label of which a shard has one value.", show_default="split"),
    ] = None,
    classes: Annotated[
        str, typer.Option(metavar="FILE", help="Numbers of classes: the `classes.json` of an earlier pack.")
    ] = "",
    split_at: Annotated[
        SplitAt | None, typer.Option(help="Where names with several dots end, and their extensions begin.")
    ] = None,
    url: Url = "",
    match: Match = [],  # noqa: B006 - typer copies it
    exclude: Exclude = [],  # noqa: B006
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Processes.", show_default="one per core")] = 0,
    endpoint: Endpoint = "",
    source_endpoint: Annotated[
        str, typer.Option(metavar="URL", help="S3 endpoint of the source.", show_default="--endpoint")
    ] = "",
    follow: Follow = False,
) -> None:
    """Pack many small files into few shards: WebDataset tar, TFRecord, MXNet RecordIO, or LMDB for Caffe.

    TARGET/manifest.jsonl lists the shards, TARGET/records the files in them. Labels go along: those of a manifest, or
    of directories. Run the same command again to continue after an interruption: complete shards are kept. The same
    files give the same bytes.
    """
    from avactl.datasets.errors import ArgumentError
    from avactl.datasets.images import is_image
    from avactl.datasets.pack.classes import read_classes
    from avactl.datasets.pack.images import parse_resize, pillow_version
    from avactl.datasets.pack.model import Settings, shard_bytes
    from avactl.datasets.pack.packer import PackOptions
    from avactl.datasets.pack.packer import pack as run
    from avactl.datasets.progress import PackProgress
    from avactl.datasets.sources import is_remote, open_source
    from avactl.datasets.stores.locations import parse_location
    from avactl.datasets.stores.opening import open_store
    from avactl.datasets.text import display_name, size_text

    if split_at is not None and format.takes_one_file:
        raise ArgumentError("a record of this format is one file, whatever its name", "leave `--split-at` out")
    pillow = ""
    if resize:
        parse_resize(resize)
        pillow = pillow_version()
    base = parse_location(url).url if url else ""
    settings = Settings(
        format,
        shard_bytes(shard_size),
        shard_records,
        resize,
        skip_unreadable,
        (*match,),
        (*exclude,),
        base,
        pillow,
        split_at,
        labels,
        class_label,
        part_label,
        read_classes(classes, format),
    )
    # One endpoint may serve both, or only the side that is a store.
    from_endpoint = source_endpoint or (endpoint if is_remote(source) else "")
    to_endpoint = endpoint if is_remote(target) or not is_remote(source) else ""
    cores = len(os.sched_getaffinity(0))
    with PackProgress(sys.stderr, "file") as progress:
        opened = open_source(source, from_endpoint, follow, progress)
        options = PackOptions(settings, jobs or cores, from_endpoint, to_endpoint, follow)
        packed = run(opened, open_store(target, to_endpoint), options, progress)
    kept = f", {packed.kept:,} kept from an earlier run" if packed.kept else ""
    print(f"{target}: {count_text(packed.shards, 'shard')}{kept}")
    samples = f"{count_text(packed.samples, 'sample')}, " if packed.samples != packed.files else ""
    print(f"{count_text(packed.files, 'file')}, {samples}{size_text(packed.read)} → {size_text(packed.written)}")
    if resize:
        resized = sum(count for kind, count in packed.kinds.items() if is_image(f".{kind}"))
        print(f"resized {resized - len(packed.skipped):,} of {count_text(packed.files, 'file')}")
    if format.takes_one_file and len(packed.kinds) > 1:
        most = sorted(packed.kinds.items(), key=lambda kind: -kind[1])
        told = ", ".join(f"{display_name(kind) or 'none'} {count:,}" for kind, count in most[:5])
        told += f", {len(most) - 5:,} more" if len(most) > 5 else ""
        print(f"records of files with several extensions: {told} (`--match '*.jpg'` packs those of one)")
    if packed.skipped:
        print(f"left out {count_text(len(packed.skipped), 'unreadable image')}: {display_name(packed.skipped[0])}, …")
    print(f"manifest: {target.rstrip('/')}/manifest.jsonl, sha256 {packed.sha256}")
