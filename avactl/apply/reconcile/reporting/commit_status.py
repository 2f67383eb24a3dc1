"""Set the commit status at the forge to the state of the cluster."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Literal

import aiohttp
from yarl import URL

from avactl.apply.reconcile.reporting.report import StepResult
from avactl.apply.reconcile.source import SourceRevision
from avactl.base.terminal import shorten_middle, visible_text
from avactl.diagnostics.redaction import redact_text
from avactl.forges import FORGES, api_of, current_forge, forge_of_host, host_and_path
from avactl.forges.forge import CommitStatus, Environ, EnvironmentProblem, Forge, UnsupportedError, find_token

State = Literal["success", "failure", "pending"]
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=20)
_MAX_ATTEMPTS = 3
_MAX_DESCRIPTION = 140
"""Longest description, in characters, that all forges accept."""


def status_words(result: StepResult) -> tuple[State, str]:
    """Return the commit state and description of a run."""
    if result.ok:
        return "success", result.summary()
    if result.problem:
        return "failure", result.problem
    ill = [name for name, health in result.health.items() if health.state.value in ("failed", "progressing")]
    if result.failed and all(step.lacks_rights for step in result.failed if not step.blocked):
        return "failure", f"an administrator must run `avactl reconcile --once`: {result.summary()}"
    first = result.failed[0].title if result.failed else ill[0] if ill else ""
    return "failure", f"{first}: {result.summary()}"


async def set_status(revision: SourceRevision, cluster: str, state: State, text: str) -> None:
    """Set the status if a token is in the environment and the repository is at a forge; log a refusal as a note."""
    said = ""
    try:
        destination = _find_destination(os.environ, revision.url)
    except EnvironmentProblem as error:
        sys.stderr.write(f"avactl: note: could not set the status of commit {revision.commit[:12]}: {error}\n")
        return
    if destination is None or not revision.commit:
        return
    forge, api, project, token = destination
    description = visible_text(redact_text(shorten_middle(text, 4096)))[:_MAX_DESCRIPTION]
    status = CommitStatus(revision.commit, f"avactl/{cluster or 'all clusters'}", state, description)
    try:
        path, body = forge.status_request(project, status)
    except UnsupportedError as error:
        sys.stderr.write(f"avactl: note: {error}\n")
        return
    headers = forge.headers(token)
    url = URL(f"{api}{path}", encoded=True)
    async with aiohttp.ClientSession(timeout=_REQUEST_TIMEOUT, trust_env=True) as session:
        for number in range(_MAX_ATTEMPTS):
            try:
                # aiohttp would send a GET after some redirects, and GitLab's token to any host.
                async with session.post(url, headers=headers, json=body, allow_redirects=False) as response:
                    if response.status < 300:
                        return
                    said = f"{response.status} {response.reason}"
                    if response.status in (307, 308):  # a repository that has moved
                        target = url.join(URL(response.headers.get("Location", "")))
                        if target.origin() != url.origin():
                            said = f"the forge redirects to another origin, {target.origin()}"
                            break
                        url = target
                        continue
                    if response.status < 500 and response.status != 429:
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                said = type(error).__name__
            except ValueError:
                said = "the forge redirects to what is no URL"
                break
            await asyncio.sleep(2.0**number)
    sys.stderr.write(f"avactl: note: could not set the status of commit {revision.commit[:12]}: {said}\n")


def _find_destination(env: Environ, url: str) -> tuple[Forge, str, str, str] | None:
    """Return the forge of a repository, the root of its API, the project and the token; None without them.

    A host whose name does not tell the forge has that of the pipeline, or of the first token. Raises
    EnvironmentProblem.
    """
    host, path = host_and_path(url)
    named = forge_of_host(host)
    for forge in [named] if named else [current_forge(env), *FORGES]:
        token = find_token(env, forge.tokens) if forge else ""
        if forge and token:
            api, project = api_of(forge, env, host if named else ""), env.get(forge.project_variable) or path
            return (forge, api, project, token) if api and project else None
    return None
