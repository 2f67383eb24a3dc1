"""`avactl local`: the group of commands."""

from __future__ import annotations

import typer

from avactl.cli.local.run import run

local = typer.Typer(
    help="Run a job as processes on this machine.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
local.command()(run)


@local.callback()
def _group() -> None:
    # With a callback, a group of one command still has it by name.
    pass
