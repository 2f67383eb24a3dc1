"""`avactl promote`: serve another version of a model, by a commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from avactl.base.exit_codes import MISSING, USAGE
from avactl.base.terminal import join_words
from avactl.cli.common import exit_with
from avactl.cli.environments import EnvironmentOption
from avactl.cli.models.change import Change, change_model, choose_model
from avactl.cli.models.models import Endpoint
from avactl.forges import FORGES

Service = Annotated[str, typer.Option(help="Service that serves the model: NAME or TEAM/NAME, if there are several.")]
Specs = Annotated[Path, typer.Option("--specs", metavar="DIR", help="Directory of the specs.")]
_TOKENS = join_words([forge.tokens[0] for forge in FORGES if not forge.no_proposals], "or")
PullRequest = Annotated[bool, typer.Option("--pull-request", help=f"Open a pull request; needs {_TOKENS}.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the change.")]
Branch = Annotated[str, typer.Option(help="Branch of the remote that is followed.")]
RemoteName = Annotated[str, typer.Option("--remote", help="Remote of the repository of the specs.")]
Message = Annotated[str, typer.Option("--message", "-m", help="Why, for the commit message.")]
_NUMBER = re.compile("[1-9][0-9]{0,8}").fullmatch


def promote(
    model: Annotated[str, typer.Argument(help="Model: NAME or TEAM/NAME.")],
    version: Annotated[str, typer.Argument(help="Published version.", show_default="the newest")] = "",
    service: Service = "",
    specs: Specs = Path(),
    pull_request: PullRequest = False,
    dry_run: DryRun = False,
    branch: Branch = "main",
    remote: RemoteName = "origin",
    message: Message = "",
    endpoint: Endpoint = "",
    environment: EnvironmentOption = "",
) -> None:
    """Serve a published version of a model: commit its URL and version to the specs, and push.

    The commit is made on the newest commit of the remote's branch; work tree, index and branches here are not touched.
    The service's rollout brings the version to its requests.
    """
    from avactl.daemons.delivery.models import published_versions
    from avactl.datasets.errors import DatasetError, ObjectStoreError

    found, served = choose_model(specs, model, service)
    if not found.directory:
        exit_with(
            f"{found} is published by no pipeline",
            USAGE,
            f"`avactl set {served.service.doc.file} --name {served.service.spec_name} …` changes its version",
        )
    if version and not _NUMBER(version):
        exit_with(f"`{version[:40]}` is not the number of a version", USAGE, f"`avactl models {model}` lists them")
    try:
        known = published_versions(found.directory, endpoint)
    except (DatasetError, ObjectStoreError) as error:
        exit_with(f"{found.directory}: {error}", MISSING, "the store's credentials are needed: is the version there?")
    if not known:
        exit_with(f"no version of {found} is published", USAGE)
    number = int(version) if version else max(known)
    if number not in known:
        listed = ", ".join(map(str, list(known)[-10:]))
        exit_with(f"version {number} of {found} is not published", USAGE, f"published: {listed}")
    wanted = Change(f"{found.directory}/{number}", str(number), f"promote {served.name} to version {number}", message)
    change_model(served, wanted, specs, branch, remote, pull_request, dry_run)
