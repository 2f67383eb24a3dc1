"""Where a pipeline runs, and for which pull request: read from what GitHub Actions and GitLab CI set.

Sources: docs.github.com "Variables reference", docs.gitlab.com "Predefined CI/CD variables".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from avactl.errors import HintedError

ForgeName = Literal["github", "gitlab"]

LIMITS: dict[ForgeName, int] = {"github": 65_000, "gitlab": 200_000}
"""Most bytes of a comment. Both count characters, and none is shorter than a byte: GitHub takes 65,536; GitLab takes
1,000,000, and shows so many slowly."""


class EnvironmentProblem(HintedError):  # noqa: N818 - told to the user as it is
    """Something that is needed is not in the environment. The text is one line; `hint` is the remedy."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One run of a pipeline, as far as the environment tells."""

    forge: ForgeName
    api: str
    """Root of the REST API, without a slash at its end."""
    project: str
    """`owner/name` on GitHub; the number or the path of the project on GitLab."""
    number: int | None = None
    """Of the pull request; None where the run is not one's."""
    base: str | None = None
    """Revision to compare with."""
    token: str = ""
    job_token: bool = False
    """Whether the only token is GitLab's CI_JOB_TOKEN, which may not write comments."""
    fork: bool = False
    """Whether the pull request comes from another repository, so that the token may only read."""
    run: str = ""
    """Address of the run, for people."""
    summary: Path | None = None
    """File whose text the run shows on its page."""

    def link(self, file: str) -> str:
        """Address of a file that the job keeps; of all that it keeps where a file has none of its own."""
        if not self.run:
            return ""
        return f"{self.run}#artifacts" if self.forge == "github" else f"{self.run}/artifacts/file/{file}"

    def __repr__(self) -> str:  # a token must not get into a log
        return f"<{self.forge} {self.project} #{self.number}>"


def detect(env: Mapping[str, str], forge: ForgeName | None = None, number: int | None = None) -> Pipeline | None:
    """The pipeline that runs, None outside of both forges. Raises EnvironmentProblem."""
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
        raise EnvironmentProblem(f"{said}: which repository is not known", "set it to OWNER/NAME")
    event = _event(env.get("GITHUB_EVENT_PATH", ""))
    pull = _pull(event)
    sides: list[Any] = [((pull.get(side) or {}).get("repo") or {}).get("full_name") for side in ("base", "head")]
    server = env.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/")
    run = env.get("GITHUB_RUN_ID", "")
    base = (pull.get("base") or {}).get("sha") or (
        f"origin/{env['GITHUB_BASE_REF']}" if env.get("GITHUB_BASE_REF") else None
    )
    return Pipeline(
        "github",
        (env.get("GITHUB_API_URL") or "https://api.github.com").rstrip("/"),
        project,
        number=_ref_number(env.get("GITHUB_REF", "")) or _number(pull.get("number")),
        base=base,
        token=_token(env, "GITHUB_TOKEN", "GH_TOKEN"),
        # A fork that was deleted meanwhile has no repository any more.
        fork=bool(pull.get("head")) and sides[0] is not None and sides[0] != sides[1],
        run=f"{server}/{project}/actions/runs/{run}" if run else "",
        summary=Path(env["GITHUB_STEP_SUMMARY"]) if env.get("GITHUB_STEP_SUMMARY") else None,
    )


def _ref_number(ref: str) -> int | None:
    found = re.fullmatch(r"refs/pull/(\d+)/(?:merge|head)", ref)
    return int(found[1]) if found else None


def _pull(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pull request of an event: its own, that of a comment on it, or the one that another workflow ran for."""
    if isinstance(event.get("pull_request"), dict):
        return dict(event["pull_request"])
    issue = event.get("issue")
    if isinstance(issue, dict) and "pull_request" in issue:
        return {"number": issue.get("number")}
    ran = (
        (event.get("workflow_run") or {}).get("pull_requests") if isinstance(event.get("workflow_run"), dict) else None
    )
    return dict(ran[0]) if isinstance(ran, list) and len(ran) == 1 and isinstance(ran[0], dict) else {}


def _event(path: str) -> Mapping[str, Any]:
    if not path:
        return {}
    try:
        event = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(
            f"GITHUB_EVENT_PATH: {path} cannot be read: {error}", "name the event's file"
        ) from None
    return event if isinstance(event, dict) else {}


def _gitlab(env: Mapping[str, str]) -> Pipeline:
    api = env.get("CI_API_V4_URL") or f"{env.get('CI_SERVER_URL', 'https://gitlab.com').rstrip('/')}/api/v4"
    # In a pipeline of a fork the merge request belongs to the project that it wants to go into.
    project = env.get("CI_MERGE_REQUEST_PROJECT_ID") or env.get("CI_PROJECT_ID") or env.get("CI_PROJECT_PATH", "")
    if not project:
        raise EnvironmentProblem("CI_PROJECT_ID is not set: which project is not known", "set it to its number")
    token = _token(env, "GITLAB_TOKEN")
    own = env.get("CI_PROJECT_ID", project)
    return Pipeline(
        "gitlab",
        api.rstrip("/"),
        project,
        number=_number(env.get("CI_MERGE_REQUEST_IID")),
        base=env.get("CI_MERGE_REQUEST_DIFF_BASE_SHA") or None,
        token=token,
        job_token=not token and bool(env.get("CI_JOB_TOKEN")),
        fork=env.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID", own) != project,
        run=env.get("CI_JOB_URL", ""),
    )


def _number(value: Any) -> int | None:
    return int(value) if str(value or "").isdecimal() else None


def _token(env: Mapping[str, str], *names: str) -> str:
    """The first of these variables. Nothing of its value is ever told."""
    for name in names:
        token = env.get(name, "").strip()
        if token:
            if not re.fullmatch(r"[\x21-\x7e]+", token):
                hint = "copy it again: one word, without blanks and line ends"
                raise EnvironmentProblem(f"{name} holds characters that no token has", hint)
            return token
    return ""
