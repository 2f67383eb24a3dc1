"""Comments and pull requests on Gitea, and on forges with its API.

Sources: docs.gitea.com/api (issue, repository), docs.gitea.com "API Usage"; Gitea's `routers/api/v1` for what the lists
contain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from avactl.forges.comments import Comment, Comments, parse_comment
from avactl.forges.forge import PipelineRun, Sleep
from avactl.forges.proposals import Proposals, same_repository
from avactl.forges.rest import Api, parse_json, text_at

_SCOPES = "a token needs the scopes `read:user`, `write:issue` and `write:repository`"
_PAGE = "50"
"""Entries of a page: the most that the forge returns with its default settings."""


def _hints(token: str) -> dict[int, str]:
    """Return remedies by HTTP status."""
    return {401: f"{token} is invalid or expired: {_SCOPES}", 403: f"{token} lacks permission: {_SCOPES}"}


class GiteaComments(Comments):
    """A pull request's comments are those of the issue with its number."""

    def __init__(self, run: PipelineRun, sleep: Sleep, variable: str) -> None:
        """`variable`: the environment variable with the token."""
        path = f"/repos/{run.project}/issues/{run.number}/comments"
        noun = f"pull request #{run.number} of {run.project}"
        super().__init__(Api(run.api, {"Authorization": f"token {run.token}"}, sleep), path, noun, _hints(variable))
        self._project, self._fork = run.project, run.fork

    def comments(self) -> Iterator[Comment]:
        """Yield all comments; the list has no pages."""
        gone = "does the pull request exist, and can the token read the repository?"
        for entry in self._pages(f"reading the comments of {self.noun}", gone):
            yield parse_comment(entry, "user", "login")

    def edit(self, comment: Comment, body: str) -> None:
        path = f"/repos/{self._project}/issues/comments/{comment.id}"
        self._write("PATCH", path, body, f"editing the comment on {self.noun}")

    def _explain_read_only(self) -> tuple[str, str]:
        if self._fork:
            return "the token of a pull request from a fork is read-only", ""
        return "the token is read-only", f"give the job `permissions: {{pull-requests: write}}`; {_SCOPES}"

    def _find_login(self) -> str:
        """The token of a job has a user of its own, too. Without `read:user` nothing tells whose comments are ours."""
        action = "identifying the token's user"
        response = self._api.send("GET", "/user", action=action)
        self._raise_for_status(response, action)
        return text_at(parse_json(response, action), "login")


class GiteaProposals(Proposals):
    """Pull requests of Gitea. Its list cannot be filtered by branch."""

    def __init__(self, api: str, project: str, token: str, sleep: Sleep) -> None:
        headers = {"Authorization": f"token {token}"}
        super().__init__(Api(api, headers, sleep), f"/repos/{project}/pulls", _hints("the token"))

    def _list_parameters(self, branch: str) -> dict[str, str]:
        return {"state": "all", "limit": _PAGE}

    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        head, base = ({} if not isinstance(side := entry.get(key), dict) else side for key in ("head", "base"))
        # Once the branch is deleted, `ref` is that of the pull request, and `label` is still the branch.
        return head.get("label") == branch and same_repository(head.get("repo_id"), base.get("repo_id"))

    def _parse_state(self, entry: Mapping[str, Any]) -> str:
        return "open" if entry.get("state") == "open" else "merged" if entry.get("merged") else "closed"

    def _new(self, branch: str, base: str, title: str, text: str) -> dict[str, Any]:
        return {"title": title, "body": text, "head": branch, "base": base}
