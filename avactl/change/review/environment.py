"""Detect the CI environment and its pull request, from the variables of GitHub Actions and GitLab CI.

Sources: docs.github.com "Variables reference", docs.gitlab.com "Predefined CI/CD variables".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE

ForgeName = Literal["github", "gitlab"]

LIMITS: dict[ForgeName, int] = {"github": 65_000, "gitlab": 200_000}
"""Largest comment in bytes. Both forges count characters, which are at least a byte each: GitHub accepts 65,536;
GitLab accepts 1,000,000 but renders them slowly."""


class EnvironmentProblem(HintedError):  # noqa: N818 - shown to the user as it is
    """The environment lacks something that is required."""

    exit_code = USAGE


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline run, as the environment describes it."""

    forge: ForgeName
    api: str
    """Root of the REST API, without a trailing slash."""
    project: str
    """`owner/name` on GitHub; the project's number or path on GitLab."""
    number: int | None = None
    """Number of the pull request; None if the run has none."""
    target: str | None = None
    """Branch that the change is to be merged into, as the clone names it. Not the commit that an event has as the base:
    it is of the last push to the change, and the branch has gone on since."""
    change: str | None = None
    """Full hash of the last commit of the change, if the forge tells it."""
    token: str = ""
    job_token: bool = False
    """True if the only token is GitLab's CI_JOB_TOKEN, which cannot write comments."""
    fork: bool = False
    """True if the pull request comes from a fork, so that the token is read-only."""
    run: str = ""
    """URL of the run."""
    summary: Path | None = None
    """File whose contents the run shows on its summary page."""

    def link(self, file: str) -> str:
        """Return the URL of an artifact file; of all artifacts if files have no URL of their own."""
        if not self.run:
            return ""
        return f"{self.run}#artifacts" if self.forge == "github" else f"{self.run}/artifacts/file/{file}"

    def __repr__(self) -> str:  # keeps the token out of logs
        return f"<{self.forge} {self.project} #{self.number}>"


def detect(env: Mapping[str, str], forge: ForgeName | None = None, number: int | None = None) -> Pipeline | None:
    """Return the current pipeline; None outside of both forges. Raises EnvironmentProblem."""
    if forge is None:
        forge = "github" if env.get("GITHUB_ACTIONS") else "gitlab" if env.get("GITLAB_CI") else None
    if forge is None:
        return None
    found = _github(env) if forge == "github" else _gitlab(env)
    return found if number is None else replace(found, number=number)


def _github(env: Mapping[str, str]) -> Pipeline:
    project = env.get("GITHUB_REPOSITORY", "")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", project):
        said = f"GITHUB_REPOSITORY is `{project}`" if project else "GITHUB_REPOSITORY is not set"
        raise EnvironmentProblem(f"{said}: the repository is unknown", "set it to OWNER/NAME")
    event = _event(env.get("GITHUB_EVENT_PATH", ""))
    pull = _pull(event)
    sides: list[Any] = [((pull.get(side) or {}).get("repo") or {}).get("full_name") for side in ("base", "head")]
    server = env.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
    run = env.get("GITHUB_RUN_ID", "")
    branch = env.get("GITHUB_BASE_REF") or (pull.get("base") or {}).get("ref")
    return Pipeline(
        "github",
        (env.get("GITHUB_API_URL") or "https://api.github.com").rstrip("/"),
        project,
        number=_ref_number(env.get("GITHUB_REF", "")) or _number(pull.get("number")),
        target=f"origin/{branch}" if branch else None,
        change=(pull.get("head") or {}).get("sha"),
        token=token(env, "GITHUB_TOKEN", "GH_TOKEN"),
        # The head repository of a deleted fork is null.
        fork=bool(pull.get("head")) and sides[0] is not None and sides[0] != sides[1],
        run=f"{server}/{project}/actions/runs/{run}" if run else "",
        summary=Path(env["GITHUB_STEP_SUMMARY"]) if env.get("GITHUB_STEP_SUMMARY") else None,
    )


def _ref_number(ref: str) -> int | None:
    found = re.fullmatch(r"refs/pull/(\d+)/(?:merge|head)", ref)
    return int(found[1]) if found else None


def _pull(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pull request of an event: its own, a comment's, or that of a `workflow_run`."""
    if isinstance(event.get("pull_request"), dict):
        return dict(event["pull_request"])
    issue = event.get("issue")
    if isinstance(issue, dict) and "pull_request" in issue:
        return {"number": issue.get("number")}
    run = event.get("workflow_run")
    ran = run.get("pull_requests") if isinstance(run, dict) else None
    return dict(ran[0]) if isinstance(ran, list) and len(ran) == 1 and isinstance(ran[0], dict) else {}


def _event(path: str) -> Mapping[str, Any]:
    if not path:
        return {}
    try:
        event = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        message = f"GITHUB_EVENT_PATH: {path} cannot be read: {error}"
        raise EnvironmentProblem(message, "set it to the path of the event's file") from None
    return event if isinstance(event, dict) else {}


def _gitlab(env: Mapping[str, str]) -> Pipeline:
    api = env.get("CI_API_V4_URL") or f"{env.get('CI_SERVER_URL', 'https://gitlab.com').rstrip('/')}/api/v4"
    # In a fork's pipeline, the merge request belongs to the target project.
    project = env.get("CI_MERGE_REQUEST_PROJECT_ID") or env.get("CI_PROJECT_ID") or env.get("CI_PROJECT_PATH", "")
    if not project:
        raise EnvironmentProblem("CI_PROJECT_ID is not set: the project is unknown", "set it to its number")
    secret = token(env, "GITLAB_TOKEN")
    own, branch = env.get("CI_PROJECT_ID", project), env.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
    return Pipeline(
        "gitlab", api.rstrip("/"), project, number=_number(env.get("CI_MERGE_REQUEST_IID")),
        target=f"origin/{branch}" if branch else None,
        # Set for pipelines of merged results and merge trains only; the others run on the last commit itself.
        change=env.get("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA") or None,
        token=secret,
        job_token=not secret and bool(env.get("CI_JOB_TOKEN")),
        fork=env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID", own) != project, run=env.get("CI_JOB_URL", ""),
    )  # fmt: skip


def _number(value: Any) -> int | None:
    return int(value) if str(value or "").isdecimal() else None


def token(env: Mapping[str, str], *names: str) -> str:
    """Return the first of these variables that is set. Its value never appears in a message."""
    for name in names:
        found = env.get(name, "").strip()
        if found:
            if not re.fullmatch(r"[\x21-\x7e]+", found):
                hint = "copy it again, without spaces or line breaks"
                raise EnvironmentProblem(f"{name} contains characters that are invalid in a token", hint)
            return found
    return ""
