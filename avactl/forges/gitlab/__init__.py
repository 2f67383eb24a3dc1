"""GitLab, gitlab.com or self-managed, with GitLab CI.

Sources: docs.gitlab.com "Predefined CI/CD variables", docs.gitlab.com/api/commits/#set-commit-pipeline-status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from avactl.forges.connection import Connection
from avactl.forges.forge import (
    CommitStatus,
    Environ,
    EnvironmentProblem,
    Forge,
    PipelineOptions,
    PipelineRun,
    StatusRequest,
    find_token,
    parse_number,
)
from avactl.forges.gitlab.hints import ACCESS_HINT

if TYPE_CHECKING:
    from avactl.diagnostics import Diagnostic
    from avactl.forges.comments import Comments
    from avactl.forges.proposals import Proposals

_TOKENS = ("GITLAB_TOKEN",)


def _api(env: Environ, host: str) -> str:
    server = f"https://{host}" if host else env.get("CI_SERVER_URL", "https://gitlab.com").rstrip("/")
    return (env.get("CI_API_V4_URL") or f"{server}/api/v4").rstrip("/")


def _run(env: Environ) -> PipelineRun:
    # In a fork's pipeline, the merge request belongs to the target project.
    project = env.get("CI_MERGE_REQUEST_PROJECT_ID") or env.get("CI_PROJECT_ID") or env.get("CI_PROJECT_PATH", "")
    if not project:
        raise EnvironmentProblem("CI_PROJECT_ID is not set: the project is unknown", "set it to its number")
    token, job = find_token(env, _TOKENS), env.get("CI_JOB_URL", "")
    own, branch = env.get("CI_PROJECT_ID", project), env.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
    return PipelineRun(
        FORGE.name,
        _api(env, ""),
        project,
        number=parse_number(env.get("CI_MERGE_REQUEST_IID")),
        target=f"origin/{branch}" if branch else None,
        # Set for pipelines of merged results and merge trains only; the others run on the last commit itself.
        change=env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or None,
        token=token,
        no_token="CI_JOB_TOKEN cannot write comments, and GITLAB_TOKEN is not set" if env.get("CI_JOB_TOKEN") else "",
        fork=env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID", own) != project,
        artifacts=f"{job}/artifacts/file/{{file}}" if job else "",
    )


def _headers(token: str) -> dict[str, str]:
    return {"PRIVATE-TOKEN": token}


def _comments(connection: Connection, run: PipelineRun) -> Comments:
    from avactl.forges.gitlab.client import GitLabComments

    return GitLabComments(connection, run)


def _proposals(connection: Connection) -> Proposals:
    from avactl.forges.gitlab.client import GitLabProposals

    return GitLabProposals(connection)


def _status(project: str, status: CommitStatus) -> StatusRequest:
    state = "failed" if status.state == "failure" else status.state
    body = {"state": state, "name": status.context, "description": status.text}
    return StatusRequest(f"/projects/{quote(project, safe='')}/statuses/{status.commit}", body)


def _pipelines(options: PipelineOptions) -> dict[str, str]:
    from avactl.forges.gitlab.pipelines import pipelines

    return pipelines(options)


def _report(diagnostics: Sequence[Diagnostic]) -> str:
    from avactl.forges.gitlab.code_quality import render_code_quality

    return render_code_quality(diagnostics)


FORGE = Forge(
    name="gitlab",
    title="GitLab",
    marker="GITLAB_CI",
    hosts=("gitlab",),
    api=_api,
    api_default="`https://HOST/api/v4` of GitLab",
    tokens=_TOKENS,
    token_hint=ACCESS_HINT,
    headers=_headers,
    run=_run,
    comment_limit=200_000,  # it accepts 1,000,000 characters, but renders them slowly
    comments=_comments,
    proposals=_proposals,
    status=_status,
    project_variable="CI_PROJECT_ID",
    pipeline_paths=(".gitlab/", ".gitlab-ci.yml"),
    pipelines=_pipelines,
    full_clone='`GIT_DEPTH: "0"`',
    push_rights="a project access token",
    by_default=True,
    report=_report,
)
