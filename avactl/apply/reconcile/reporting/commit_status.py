"""Set the commit status at the forge to the state of the cluster.

Sources: https://docs.github.com/rest/commits/statuses, https://docs.gitlab.com/api/commits/#set-commit-pipeline-status
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import Literal
from urllib.parse import quote

import aiohttp

from avactl.apply.reconcile.reporting.report import Result
from avactl.apply.reconcile.source import Revision
from avactl.base.terminal import shortened, visible
from avactl.diagnostics.redaction import redact

State = Literal["success", "failure", "pending"]
_TIMEOUT = aiohttp.ClientTimeout(total=20)
_TRIES = 3
_MOST = 140
"""Longest description, in characters, that GitHub accepts."""


def words(result: Result) -> tuple[State, str]:
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


async def tell(revision: Revision, cluster: str, state: State, text: str) -> None:
    """Set the status if a token is in the environment and the repository is at a forge; log a refusal as a note."""
    request = _request(revision, cluster or "all clusters", state, visible(redact(shortened(text, 4096)))[:_MOST])
    if request is None:
        return
    url, headers, body = request
    said = ""
    async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session:
        for number in range(_TRIES):
            try:
                async with session.post(url, headers=headers, json=body) as response:
                    if response.status < 300:
                        return
                    said = f"{response.status} {response.reason}"
                    if response.status < 500 and response.status != 429:
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                said = type(error).__name__
            await asyncio.sleep(2.0**number)
    sys.stderr.write(f"avactl: note: could not set the status of commit {revision.commit[:12]}: {said}\n")


def _request(
    revision: Revision, cluster: str, state: State, text: str
) -> tuple[str, dict[str, str], dict[str, str]] | None:
    if not revision.commit:
        return None
    if token := os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN"):
        name = os.environ.get("GITHUB_REPOSITORY") or _path(revision.url)
        api = os.environ.get("GITHUB_API_URL", "https://api.github.com").rstrip("/")
        if name:
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
            body = {"state": state, "context": f"avactl/{cluster}", "description": text}
            return f"{api}/repos/{name}/statuses/{revision.commit}", headers, body
    if token := os.environ.get("GITLAB_TOKEN"):
        name = os.environ.get("CI_PROJECT_ID") or quote(_path(revision.url), safe="")
        api = os.environ.get("CI_API_V4_URL", "https://gitlab.com/api/v4").rstrip("/")
        if name:
            word = "failed" if state == "failure" else state
            body = {"state": word, "name": f"avactl/{cluster}", "description": text}
            return f"{api}/projects/{name}/statuses/{revision.commit}", {"PRIVATE-TOKEN": token}, body
    return None


def _path(url: str) -> str:
    """Return `owner/name` of `https://forge/owner/name.git` or `git@forge:owner/name.git`."""
    match = re.match(r"[a-z+]+://[^/]+/|[^/]*:(?!//)", url)
    return url[match.end() :].removesuffix("/").removesuffix(".git") if match else ""
