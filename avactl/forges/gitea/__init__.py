"""Gitea with Gitea Actions, whose runner sets the variables of GitHub Actions, too.

Sources: docs.gitea.com "API Usage", "Gitea Actions"; Gitea's `services/actions/context.go` for the variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from avactl.forges.forge import (
    CommitStatus,
    Environ,
    Forge,
    PipelineOptions,
    PipelineRun,
    Sleep,
    StatusRequest,
    actions_run,
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


def _comments(run: PipelineRun, sleep: Sleep) -> Comments:
    from avactl.forges.gitea.client import GiteaComments

    return GiteaComments(run, sleep, _TOKENS[0])


def _proposals(api: str, project: str, token: str, sleep: Sleep) -> Proposals:
    from avactl.forges.gitea.client import GiteaProposals

    return GiteaProposals(api, project, token, sleep)


def _status(project: str, token: str, status: CommitStatus) -> StatusRequest:
    body = {"state": status.state, "context": status.context, "description": status.text}
    return StatusRequest(f"/repos/{project}/statuses/{status.commit}", {"Authorization": f"token {token}"}, body)


def _pipelines(options: PipelineOptions) -> dict[str, str]:
    from avactl.forges.gitea.pipelines import pipelines

    return pipelines(options)


FORGE = Forge(
    name="gitea",
    title="Gitea",
    marker="GITEA_ACTIONS",
    hosts=("gitea",),
    api=_api,
    api_default="`https://HOST/api/v1` of Gitea",
    tokens=_TOKENS,
    token_hint="`env: {GITEA_TOKEN: ${{ secrets.GITEA_TOKEN }}}` passes the job's own token",  # noqa: S106
    run=_run,
    comment_limit=65_000,  # it accepts more; a comment of this size still renders fast
    comments=_comments,
    proposals=_proposals,
    status=_status,
    project_variable="",
    pipeline_paths=(".gitea/",),
    pipelines=_pipelines,
    full_clone="`fetch-depth: 0`",
    push_rights="`permissions: {contents: write}`",
)
