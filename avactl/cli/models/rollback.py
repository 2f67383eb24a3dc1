"""`avactl rollback`: serve the version of a model that was served before, by a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import USAGE
from avactl.cli.common import exit_with
from avactl.cli.environments import EnvironmentOption
from avactl.cli.models.change import Change, change_model, choose_model, clone_repository
from avactl.cli.models.promote import Branch, DryRun, Message, PullRequest, RemoteName, Service, Specs


def rollback(
    model: Annotated[str, typer.Argument(help="Model: NAME or TEAM/NAME.")],
    service: Service = "",
    specs: Specs = Path(),
    pull_request: PullRequest = False,
    dry_run: DryRun = False,
    branch: Branch = "main",
    remote: RemoteName = "origin",
    message: Message = "",
    environment: EnvironmentOption = "",
) -> None:
    """Serve the version of a model that was served before: commit its URL and version to the specs, and push.

    Which one that is, the history of the remote's branch says.
    """
    _, served = choose_model(specs, model, service)
    place = clone_repository(specs, branch, remote)
    place.fetch()
    before = place.before(served.target)
    if before is None:
        exit_with(f"{served.service.doc.file} never named another version of {served.name}", USAGE)
    wanted = Change(before.url, before.version, f"roll {served.name} back to version {before.version}", message)
    change_model(served, wanted, specs, branch, remote, pull_request, dry_run)
