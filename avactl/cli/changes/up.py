"""`avactl up`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.changes.preview import (
    AdoptOption,
    CarriesOption,
    ContextOption,
    KubeconfigOption,
    PathArgument,
    RefreshOption,
    StackOption,
    each_stack,
    identify_stack,
    print_head,
    print_preview,
)
from avactl.cli.common import exit_with
from avactl.cli.environments import EnvironmentOption, SourceOption

if TYPE_CHECKING:
    from avactl.apply.pulumi.engine import Session
    from avactl.apply.pulumi.engine_report import EngineChange


def up(
    path: PathArgument = Path(),
    stack: StackOption = None,
    environment: EnvironmentOption = "",
    source: SourceOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply without asking.")] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    refresh: RefreshOption = False,
    adopt: AdoptOption = False,
    carries: CarriesOption = None,
) -> None:
    """Apply a stack with the Pulumi engine."""
    if not yes and not sys.stdin.isatty():
        exit_with("`up` asks for confirmation, but there is no terminal", USAGE, "add --yes")

    def apply(session: Session) -> None:
        from avactl.apply.pulumi.engine_report import change_line, report_summary, report_warnings

        print_head(session, kubeconfig, carries, refresh, apply=True)
        if not yes and not (print_preview(session) and typer.confirm("  apply?")):
            return
        if not yes:
            identify_stack(session, kubeconfig, carries, apply=True)  # the current context may have changed meanwhile

        def say(change: EngineChange) -> None:
            print(f"  {change_line(change)}", flush=True)

        done = session.up(say)
        for text in report_warnings(done):
            print(f"  {text}")
        print(f"  {report_summary(done)}")

    each_stack(path, stack or (), kubeconfig, context or (), adopt, apply, apply=True)
