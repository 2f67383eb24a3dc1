"""GitHub, github.com or GitHub Enterprise, with GitHub Actions.

Sources: docs.github.com "Variables reference", docs.github.com/rest/commits/statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from avactl.forges.connection import Connection
from avactl.forges.forge import (
    Environ,
    Forge,
    PipelineOptions,
    PipelineRun,
    actions_run,
    actions_status,
)
from avactl.forges.github.hints import TOKEN_HINT

if TYPE_CHECKING:
    from avactl.diagnostics import Diagnostic
    from avactl.forges.comments import Comments
    from avactl.forges.proposals import Proposals

_TOKENS = ("GITHUB_TOKEN", "GH_TOKEN")


def _api(env: Environ, host: str) -> str:
    default = "https://api.github.com" if host in ("", "github.com") else f"https://{host}/api/v3"
    return (env.get("GITHUB_API_URL") or default).rstrip("/")


def _run(env: Environ) -> PipelineRun:
    return actions_run(env, FORGE.name, _api(env, ""), _TOKENS, "GITHUB_RUN_ID", "#artifacts")


def _headers(token: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }


def _comments(connection: Connection, run: PipelineRun) -> Comments:
    from avactl.forges.github.client import GitHubComments

    return GitHubComments(connection, run)


def _proposals(connection: Connection) -> Proposals:
    from avactl.forges.github.client import GitHubProposals

    return GitHubProposals(connection)


def _pipelines(options: PipelineOptions) -> dict[str, str]:
    from avactl.forges.github.pipelines import pipelines

    return pipelines(options)


def _report(diagnostics: Sequence[Diagnostic]) -> str:
    from avactl.forges.github.annotations import render_annotations

    return render_annotations(diagnostics)


FORGE = Forge(
    name="github",
    title="GitHub",
    marker="GITHUB_ACTIONS",
    hosts=("github",),
    api=_api,
    api_default="`https://api.github.com`, or `https://HOST/api/v3` of GitHub Enterprise",
    tokens=_TOKENS,
    token_hint=TOKEN_HINT,
    headers=_headers,
    run=_run,
    comment_limit=65_000,  # it accepts 65,536 characters
    comments=_comments,
    proposals=_proposals,
    status=actions_status,
    project_variable="GITHUB_REPOSITORY",
    pipeline_paths=(".github/",),
    pipelines=_pipelines,
    full_clone="`fetch-depth: 0`",
    push_rights="`permissions: {contents: write}`",
    by_default=True,
    report=_report,
)
