"""The record of a forge, and what all forges tell about a pipeline run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.forges.connection import Connection, Sleep

if TYPE_CHECKING:
    from avactl.diagnostics import Diagnostic
    from avactl.forges.comments import Comments
    from avactl.forges.proposals import Proposals

Environ = Mapping[str, str]
"""Environment variables."""


class Unsupported(NamedTuple):
    """An ability that a forge lacks."""

    why_not: str
    """The reason, as users see it after `no … on FORGE: `."""


class UnsupportedError(HintedError):
    """A forge lacks an ability that is needed."""

    exit_code = USAGE


class EnvironmentProblem(HintedError):  # noqa: N818 - shown to the user as it is
    """The environment lacks something that is required."""

    exit_code = USAGE


class PipelineRun(NamedTuple):
    """One pipeline run, as the environment describes it."""

    forge: str
    """Name of the forge."""
    api: str
    """Root of the REST API, without a trailing slash."""
    project: str
    """The repository as the REST API names it: `owner/name`, or a number."""
    number: int | None = None
    """Number of the pull request; None if the run has none."""
    target: str | None = None
    """Branch that the change is to be merged into, as the clone names it. Not the commit that an event has as the base:
    it is of the last push to the change, and the branch has gone on since."""
    change: str | None = None
    """Full hash of the last commit of the change, if the forge tells it."""
    token: str = ""
    no_token: str = ""
    """Why there is no token, if the run has one that cannot write comments."""
    fork: bool = False
    """True if the pull request comes from a fork, so that the token is read-only."""
    artifacts: str = ""
    """URL of an artifact, with `{file}` for its path; of all artifacts if files have no URL of their own."""
    summary: Path | None = None
    """File whose contents the run shows on its summary page."""

    def link(self, file: str) -> str:
        """Return the URL of an artifact file; "" if it is unknown."""
        return self.artifacts.replace("{file}", file)

    def __repr__(self) -> str:  # keeps the token out of logs
        return f"<{self.forge} {self.project} #{self.number}>"


class CommitStatus(NamedTuple):
    """The status to set on a commit."""

    commit: str
    context: str
    """Name of the status; a later one with the same name replaces it."""
    state: str
    """`success`, `failure` or `pending`."""
    text: str


class StatusRequest(NamedTuple):
    """A POST that sets a commit status."""

    path: str
    """Below the root of the REST API."""
    body: dict[str, str]


class PipelineOptions(NamedTuple):
    """Options that decide which pipelines a new repository gets."""

    applies: bool
    """Pipelines apply stacks."""
    publishes: bool
    """Pipelines commit rendered objects to a branch that a GitOps engine follows."""
    environments: Sequence[str]
    pulumi: str
    """Version of the Pulumi engine."""


class Forge(NamedTuple):
    """Definition of a forge: facts about it, and hooks for its APIs and pipelines. No field needs another forge."""

    name: str
    """Its name in `delivery.forge` and in options."""
    title: str
    """Its name in messages."""
    marker: str
    """Environment variable that is set in its pipelines."""
    hosts: tuple[str, ...]
    """Words in the names of its hosts; others are not recognized by a URL."""
    api: Callable[[Environ, str], str]
    """Returns the root of the REST API, without a trailing slash, by the environment and the host with its port; ""
    for the host means the public instance. Returns "" if it is unknown."""
    api_default: str
    """The root of the REST API, for descriptions."""
    tokens: tuple[str, ...]
    """Environment variables with a token; the first one is named in messages."""
    token_hint: str
    """How a pipeline passes a token that can write comments."""
    headers: Callable[[str], dict[str, str]]
    """Returns the headers of requests with a token."""
    run: Callable[[Environ], PipelineRun]
    """Returns the pipeline run. Raises EnvironmentProblem."""
    comment_limit: int
    """Largest comment in bytes. Forges count characters, which are at least a byte each."""
    comments: Callable[[Connection, PipelineRun], Comments]
    """Returns the client for the comments of a pull request."""
    proposals: Callable[[Connection], Proposals] | Unsupported
    """Returns the client for the pull requests of a repository."""
    status: Callable[[str, CommitStatus], StatusRequest] | Unsupported
    """Returns the request that sets a commit status. Arguments: project, status."""
    project_variable: str
    """Environment variable with the project for commit statuses; "" if the repository's URL tells."""
    pipeline_paths: tuple[str, ...]
    """Files and directories (with a final slash), from the top of a repository, that define pipelines."""
    pipelines: Callable[[PipelineOptions], dict[str, str]] | Unsupported
    """Returns the pipelines of a new repository by path."""
    full_clone: str
    """Setting of a pipeline that fetches the whole history and all branches."""
    push_rights: str
    """Rights that a pipeline needs to push to a branch."""
    by_default: bool = False
    """True if `avactl init` writes its pipelines unless a forge is chosen."""
    report: Callable[[Sequence[Diagnostic]], str] | None = None
    """Returns problems in the format that its reviews show on lines; None if it has no such format."""

    @property
    def no_proposals(self) -> str:
        """Why pull requests cannot be opened; "" if they can."""
        return self._explain_lack("pull requests", self.proposals)

    @property
    def no_pipelines(self) -> str:
        """Why pipelines of a new repository cannot be written; "" if they can."""
        return self._explain_lack("pipelines", self.pipelines)

    def _explain_lack(self, noun: str, ability: object) -> str:
        return f"no {noun} on {self.title}: {ability.why_not}" if isinstance(ability, Unsupported) else ""

    def connect_comments(self, run: PipelineRun, sleep: Sleep) -> Comments:
        """Return the client for the comments on the pull request of a run."""
        return self.comments(Connection(run.api, run.project, self.headers(run.token), self.tokens[0], sleep), run)

    def connect_proposals(self, api: str, project: str, token: str, sleep: Sleep) -> Proposals:
        """Return the client for the pull requests of a repository. Raises UnsupportedError."""
        if isinstance(self.proposals, Unsupported):
            raise UnsupportedError(self.no_proposals)
        return self.proposals(Connection(api, project, self.headers(token), "the token", sleep))

    def status_request(self, project: str, status: CommitStatus) -> StatusRequest:
        """Return the request that sets a commit status. Raises UnsupportedError."""
        if isinstance(self.status, Unsupported):
            raise UnsupportedError(self._explain_lack("commit statuses", self.status))
        return self.status(project, status)

    def write_pipelines(self, options: PipelineOptions) -> dict[str, str]:
        """Return the pipelines of a new repository by path. Raises UnsupportedError."""
        if isinstance(self.pipelines, Unsupported):
            raise UnsupportedError(self.no_pipelines)
        return self.pipelines(options)


def find_token(env: Environ, names: Sequence[str]) -> str:
    """Return the first of these variables that is set. Its value never appears in a message."""
    for name in names:
        token = env.get(name, "").strip()
        if token:
            if not re.fullmatch(r"[\x21-\x7e]+", token):
                hint = "copy it again, without spaces or line breaks"
                raise EnvironmentProblem(f"{name} contains characters that are invalid in a token", hint)
            return token
    return ""


def actions_run(
    env: Environ, forge: str, api: str, tokens: Sequence[str], run_variable: str, artifacts: str
) -> PipelineRun:
    """Return the run of a pipeline with GitHub Actions' variables, which other forges set too. Raises
    EnvironmentProblem.

    `run_variable` names the variable with the run as its URL has it; `artifacts` is appended to that URL.
    """
    project = env.get("GITHUB_REPOSITORY", "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", project):
        said = f"GITHUB_REPOSITORY is `{project}`" if project else "GITHUB_REPOSITORY is not set"
        raise EnvironmentProblem(f"{said}: the repository is unknown", "set it to OWNER/NAME")
    pull = _pull_request(_read_event(env.get("GITHUB_EVENT_PATH", "")))
    base, head = (((pull.get(side) or {}).get("repo") or {}).get("full_name") for side in ("base", "head"))
    server = env.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
    run = env.get(run_variable, "")
    branch = env.get("GITHUB_BASE_REF") or (pull.get("base") or {}).get("ref")
    ref = re.fullmatch(r"refs/pull/(\d+)/(?:merge|head)", env.get("GITHUB_REF", ""))
    return PipelineRun(
        forge,
        api,
        project,
        number=int(ref[1]) if ref else parse_number(pull.get("number")),
        target=f"origin/{branch}" if branch else None,
        change=(pull.get("head") or {}).get("sha"),
        token=find_token(env, tokens),
        # The head repository of a deleted fork is null.
        fork=bool(pull.get("head")) and base is not None and base != head,
        artifacts=f"{server}/{project}/actions/runs/{run}{artifacts}" if run else "",
        summary=Path(env["GITHUB_STEP_SUMMARY"]) if env.get("GITHUB_STEP_SUMMARY") else None,
    )


def actions_status(project: str, status: CommitStatus) -> StatusRequest:
    """Return the request that sets a commit status on GitHub, and on forges with the same API for it."""
    body = {"state": status.state, "context": status.context, "description": status.text}
    return StatusRequest(f"/repos/{project}/statuses/{status.commit}", body)


def _pull_request(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pull request of an event: its own, a comment's, or that of a `workflow_run`."""
    if isinstance(event.get("pull_request"), dict):
        return dict(event["pull_request"])
    issue = event.get("issue")
    if isinstance(issue, dict) and "pull_request" in issue:
        return {"number": issue.get("number")}
    run = event.get("workflow_run")
    pulls = run.get("pull_requests") if isinstance(run, dict) else None
    return dict(pulls[0]) if isinstance(pulls, list) and len(pulls) == 1 and isinstance(pulls[0], dict) else {}


def _read_event(path: str) -> Mapping[str, Any]:
    if not path:
        return {}
    import json

    try:
        event = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        message = f"GITHUB_EVENT_PATH: {path} cannot be read: {error}"
        raise EnvironmentProblem(message, "set it to the path of the event's file") from None
    return event if isinstance(event, dict) else {}


def parse_number(value: object) -> int | None:
    """Return a number of a pull request; None if it is none."""
    return int(str(value)) if str(value or "").isdecimal() else None
