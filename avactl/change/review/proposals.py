"""Open pull requests, and ask what became of them: GitHub and GitLab, by their REST APIs.

Sources: docs.github.com/rest/pulls, docs.gitlab.com/api/merge_requests.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from avactl.base.terminal import shortened
from avactl.change.review.forge import Api, ForgeError, GoneError, body_of, want

_LONGEST_TITLE = 250
_LONGEST_TEXT = 60_000


class Proposals(ABC):
    """Pull requests of one repository."""

    def __init__(self, api: Api, path: str, hints: Mapping[int, str]) -> None:
        """`path` lists them; `hints` are remedies by HTTP status."""
        self._api, self._path, self._hints = api, path, hints

    @abstractmethod
    def state(self, branch: str) -> str:
        """Return `open`, `closed` (without a merge) or `merged` for the newest one of a branch; "" if there is none.

        Raises ForgeError.
        """

    @abstractmethod
    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """Open one to merge `branch` into `base`, and return its URL. Raises ForgeError.

        If the branch has an open one already, its URL is returned.
        """

    def _newest(self, branch: str, params: Mapping[str, str]) -> dict[str, Any] | None:
        asked = f"reading the pull requests of {branch}"
        try:
            for page in self._api.pages(self._path, asked=asked, per_page="20", **params):
                # Anyone may open one from a fork, whose branch has the same name.
                if (found := next(filter(self._own, page), None)) is not None:
                    return found
        except ForgeError as error:
            raise self._explained(error) from None
        return None

    @abstractmethod
    def _own(self, entry: Mapping[str, Any]) -> bool:
        """Return True for one from a branch of the repository itself."""

    def _create(self, branch: str, body: Mapping[str, Any], key: str, exists: int) -> str:
        """Create one; the status `exists` says that there is one."""
        asked = f"opening a pull request for {branch}"
        # Repeated after an unclear answer: the forges allow one for a branch.
        answer = self._api.send("POST", self._path, asked=asked, json=body)
        if answer.status_code == exists and self.state(branch) == "open":
            return self._url(branch)
        self._want(answer, asked)
        made = body_of(answer, asked)
        return str(made.get(key, "")) if isinstance(made, dict) else ""

    @abstractmethod
    def _url(self, branch: str) -> str:
        """Return the URL of the newest one of a branch."""

    def _want(self, answer: Any, asked: str) -> None:
        try:
            want(answer, asked)
        except ForgeError as error:
            raise self._explained(error) from None

    def _explained(self, error: ForgeError) -> ForgeError:
        if isinstance(error, GoneError):
            return ForgeError(str(error), "does the repository exist, and may the token read it?", error.status)
        return error.explained(self._hints)


def _shortened(text: str) -> str:
    more = len(text) - _LONGEST_TEXT
    return text if more <= 0 else f"{text[:_LONGEST_TEXT]}\n\n… {more:,} more characters"


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, int) and one == other


class GitHubProposals(Proposals):
    """Pull requests of GitHub, also of GitHub Enterprise."""

    def __init__(self, api: str, project: str, token: str, sleep: Callable[[float], None] = time.sleep) -> None:
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        needed = "the token needs `Pull requests: read and write` and `Contents: read and write`"
        super().__init__(
            Api(api, headers, sleep), f"/repos/{project}/pulls", {401: "the token is not valid", 403: needed}
        )
        self._owner = project.partition("/")[0]

    def state(self, branch: str) -> str:
        found = self._found(branch)
        if found is None:
            return ""
        return "open" if found.get("state") == "open" else "merged" if found.get("merged_at") else "closed"

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        body = {"title": shortened(title, _LONGEST_TITLE), "body": _shortened(text), "head": branch, "base": base}
        return self._create(branch, body, "html_url", 422)

    def _found(self, branch: str) -> dict[str, Any] | None:
        return self._newest(branch, {
            "head": f"{self._owner}:{branch}", "state": "all", "sort": "created", "direction": "desc"
        })  # fmt: skip

    def _own(self, entry: Mapping[str, Any]) -> bool:
        sides = [each.get("repo") if isinstance(each := entry.get(side), dict) else None for side in ("head", "base")]
        one, other = (each.get("id") if isinstance(each, dict) else None for each in sides)
        return _same(one, other)

    def _url(self, branch: str) -> str:
        return str((self._found(branch) or {}).get("html_url", ""))


class GitLabProposals(Proposals):
    """Merge requests of GitLab."""

    def __init__(self, api: str, project: str, token: str, sleep: Callable[[float], None] = time.sleep) -> None:
        needed = "create a project access token with the role Developer and the scope `api`"
        path = f"/projects/{quote(project, safe='')}/merge_requests"
        super().__init__(Api(api, {"PRIVATE-TOKEN": token}, sleep), path, {401: needed, 403: needed})

    def state(self, branch: str) -> str:
        found = (self._found(branch) or {}).get("state", "")
        return "open" if found in ("opened", "locked") else str(found)

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        body = {
            "title": shortened(title, _LONGEST_TITLE), "description": _shortened(text), "source_branch": branch,
            "target_branch": base, "remove_source_branch": True,
        }  # fmt: skip
        return self._create(branch, body, "web_url", 409)

    def _found(self, branch: str) -> dict[str, Any] | None:
        return self._newest(branch, {"source_branch": branch, "state": "all", "order_by": "created_at", "sort": "desc"})

    def _own(self, entry: Mapping[str, Any]) -> bool:
        return _same(entry.get("source_project_id"), entry.get("target_project_id"))

    def _url(self, branch: str) -> str:
        return str((self._found(branch) or {}).get("web_url", ""))


class FromFile:
    """Pull requests with a token that is read anew for each call: a changed Secret needs no restart."""

    def __init__(self, make: Callable[[str], Proposals], file: Path) -> None:
        self._make, self._file = make, file

    def state(self, branch: str) -> str:
        """As `Proposals.state`."""
        return self._now().state(branch)

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """As `Proposals.open`."""
        return self._now().open(branch, base, title, text)

    def _now(self) -> Proposals:
        try:
            token = self._file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ForgeError(f"{self._file}: {error}", "the Secret needs the key `password`, a token") from None
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ForgeError(f"{self._file} contains characters that are invalid in a token", "copy it again")
        return self._make(token)


def open_proposals(forge: str, api: str, project: str, credentials: Path | None) -> FromFile:
    """Return the pull requests of a repository of `github` or `gitlab`; the token is `credentials`/password."""
    kind = GitHubProposals if forge == "github" else GitLabProposals
    return FromFile(lambda token: kind(api, project, token), (credentials or Path()) / "password")
