"""`avactl dataset`: the group of commands."""

from __future__ import annotations

import typer

from avactl.cli.dataset.diff import diff
from avactl.cli.dataset.label import label
from avactl.cli.dataset.labelling import label_results, label_tasks
from avactl.cli.dataset.ls import ls
from avactl.cli.dataset.pack import pack
from avactl.cli.dataset.process import process
from avactl.cli.dataset.query import query
from avactl.cli.dataset.snapshot import snapshot
from avactl.cli.dataset.verify import verify

dataset = typer.Typer(
    help="Snapshot, verify, compare, list, query, label, pack and process the data of datasets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
for _command in (snapshot, verify, diff, ls, query, label, label_tasks, label_results, pack, process):
    dataset.command()(_command)
