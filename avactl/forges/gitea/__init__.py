"""Gitea with Gitea Actions, whose runner sets the variables of GitHub Actions, too.

Sources: docs.gitea.com "API Usage", "Gitea Actions"; Gitea's `services/actions/context.go` for the variables.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from avactl.forges.comments import Comments
    from avactl.forges.proposals import Proposals

_TOKENS = ("GITEA_TOKEN",)


def _api(env: Environ, host: str) -> str:
    # Outside of its pipelines, GITHUB_API_URL is another forge's, which must not get the token.
    given = env.get("GITEA_API_URL") or (env.get("GITHUB_API_URL") if env.get("GITEA_ACTIONS") else "")
    return (given or (f"https://{host}/api/v1" if host else "")).rstrip("/")


def _run(env: Environ) -> PipelineRun:
    """Return the run: a pipeline checks out the last commit of the change, `refs/pull/N/head`, and no merge."""
    return actions_run(env, FORGE.name, _api(env, ""), _TOKENS, "GITHUB_RUN_ID", "")


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


def _comments(connection: Connection, run: PipelineRun) -> Comments:
    from avactl.forges.gitea.client import GiteaComments

    return GiteaComments(connection, run)


def _proposals(connection: Connection) -> Proposals:
    from avactl.forges.gitea.client import GiteaProposals

    return GiteaProposals(connection)


def _pipelines(options: PipelineOptions) -> dict[str, str]:
    from avactl.forges.gitea.pipelines import GITEA, pipelines

    return pipelines(options, GITEA)


FORGE = Forge(
    name="gitea",
    title="Gitea",
    marker="GITEA_ACTIONS",
    hosts=("gitea",),
    api=_api,
    api_default="`https://HOST/api/v1` of Gitea",
    tokens=_TOKENS,
    token_hint="`env: {GITEA_TOKEN: ${{ secrets.GITEA_TOKEN }}}` passes the job's own token",  # noqa: S106
    headers=_headers,
    run=_run,
    comment_limit=65_000,  # it accepts more; a comment of this size still renders fast
    comments=_comments,
    proposals=_proposals,
    status=actions_status,
    project_variable="",
    pipeline_paths=(".gitea/",),
    pipelines=_pipelines,
    full_clone="`fetch-depth: 0`",
    push_rights="`permissions: {contents: write}`",
)
