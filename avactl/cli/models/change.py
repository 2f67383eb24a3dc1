"""The change of a model's version that `promote` and `rollback` commit."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from avactl.base.exit_codes import MISSING, USAGE
from avactl.base.terminal import inert_text, visible_text
from avactl.cli.common import exit_with
from avactl.cli.models.models import compile_specs, find

if TYPE_CHECKING:
    from avactl.daemons.delivery.commits.repository import Repository
    from avactl.daemons.delivery.models import DeliveredModel, ServiceModel
    from avactl.forges.proposals import Proposals


class Change(NamedTuple):
    """A version to serve, and the texts of its commit."""

    url: str
    version: str
    title: str
    message: str
    """Why; "" if it was not told."""


def choose_model(specs: Path, name: str, service: str) -> tuple[DeliveredModel, ServiceModel]:
    """Return the model, and the service that serves it; exits if that is unclear."""
    models = find(compile_specs(specs), name)
    if len(models) > 1:
        exit_with(f"several teams have a model {name}", USAGE, f"choose one: {', '.join(map(str, models))}")
    model = models[0]
    every = model.served
    found = [each for each in every if not service or service in (each.service.spec_name, str(each))]
    if not found:
        what = f"no service {service} serves {model}" if service else f"no service serves {model}"
        exit_with(
            what, USAGE, f"services: {', '.join(map(str, every))}" if every else "declare one with the model's URL"
        )
    if len(found) > 1:
        exit_with(f"several services serve {model}", USAGE, f"choose with --service: {', '.join(map(str, found))}")
    served = found[0]
    if not served.service.doc.file.endswith((".yaml", ".yml")):
        exit_with(f"{served.service.doc.file} is not YAML", USAGE, "edit the file")
    return model, served


def clone_repository(specs: Path, branch: str, remote: str) -> Repository:
    """Return the repository that a remote names, as a clone in avactl's cache; exits if there is none."""
    from avactl.base.directories import cache_directory
    from avactl.daemons.delivery.commits.repository import CommitAuthor, Repository
    from avactl.spec.repository.git import GitError, locate_repository, run_git
    from avactl.spec.repository.tree import find_root

    root = find_root(specs)

    def ask(*arguments: str) -> str:
        try:
            return run_git(root, *arguments).decode().strip()
        except GitError:
            return ""

    try:
        prefix = locate_repository(root).prefix
    except GitError as error:
        exit_with(str(error), MISSING, error.hint)
    url = ask("config", "--get", f"remote.{remote}.url")
    if not url:
        exit_with(
            f"the repository has no remote `{remote}`", USAGE, "`git remote add origin URL`; `--remote` names another"
        )
    author = CommitAuthor(ask("config", "user.name"), ask("config", "user.email"))
    if not all(author):
        exit_with(
            "git does not know who you are",
            MISSING,
            "`git config --global user.name NAME`, and `git config --global user.email ADDRESS`",
        )
    return Repository(url, branch, prefix, Path(cache_directory()) / "delivery", author)


def change_model(
    served: ServiceModel, wanted: Change, specs: Path, branch: str, remote: str, pull_request: bool, dry_run: bool
) -> None:
    """Commit a change and push it, or open a pull request; prints what is done."""
    from avactl.daemons.delivery.commits.repository import ModelOfService as Now

    place = clone_repository(specs, branch, remote)
    proposals = _make_proposals(place) if pull_request and not dry_run else None
    place.fetch()
    target = served.target
    now = place.served(target)
    if now.url == wanted.url:
        print(inert_text(visible_text(f"{served} serves version {now.version} of {served.name} already, on {branch}")))
        return
    print(inert_text(f"{target.file}: {served}, model {served.name}, on {branch} at {place.head[:10]}"))
    # The remote's branch, and its history, may have other specs than those that were compiled.
    for key, old, value in (("version", now.version, wanted.version), ("url    ", now.url, wanted.url)):
        print(inert_text(visible_text(f"  {key}  {old or '-'} → {value}")))
    if dry_run:
        return
    title = visible_text(f"{served.service.spec_name}: {wanted.title}")[:72]
    facts = "\n".join(map(visible_text, (f"Model: {wanted.url}", f"Before: {now.url or '-'}")))
    message = "\n\n".join([title, *([wanted.message] if wanted.message else []), facts])
    new = Now(wanted.url, wanted.version)
    if proposals is None:
        if not place.deploy(target, new, message + "\n", only=now.url):
            exit_with(f"{branch} has changed meanwhile", MISSING, "try again")
        print(f"pushed {place.head[:10]} to {branch}")
        return
    name = f"avactl/{served.service.team}/{served.service.spec_name}-{served.name}-{wanted.version}-{place.head[:8]}"
    place.propose(target, new, message + "\n", name)
    title, _, text = message.partition("\n\n")
    print(f"opened {proposals.open(name, branch, title, text)}")


def _make_proposals(place: Repository) -> Proposals:
    from avactl.forges import api_of, forge_of_host, host_and_path
    from avactl.forges.forge import find_token

    host, project = host_and_path(place.url)
    forge = forge_of_host(host)
    if forge is None:
        exit_with(
            f"the forge of {place.shown} is unknown", USAGE, "open the pull request there, or omit --pull-request"
        )
    if forge.no_proposals:
        exit_with(forge.no_proposals, USAGE, "omit --pull-request")
    token = find_token(os.environ, forge.tokens)
    if not token:
        exit_with(f"{forge.tokens[0]} is not set", MISSING, "a pull request needs a token of the forge")
    return forge.connect_proposals(api_of(forge, os.environ, host), project, token, time.sleep)
