"""Open and withdraw pull requests, and ask what became of them, on any forge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from avactl.base.terminal import shorten_middle
from avactl.forges.connection import Connection
from avactl.forges.rest import MAX_PAGES, Api, ForgeError, GoneError, parse_json, raise_for_status

_MAX_TITLE = 250
"""Longest title, in characters."""
_MAX_TEXT = 60_000
"""Longest description, in characters."""


_WITHDRAWN = "Withdrawn: "
"""Beginning of the title of one that was withdrawn, which people have not closed."""


class Proposal(NamedTuple):
    """A pull request."""

    state: Literal["open", "closed", "merged", "withdrawn"]
    """`closed`: by people, without a merge."""
    url: str


class Proposals(ABC):
    """Pull requests of one repository."""

    EXISTS = 409
    """HTTP status for a second one of the same branch."""
    URL = "html_url"
    """Key with the URL of a pull request."""
    NUMBER = "number"
    """Key with its number."""
    TEXT = "body"
    """Key with its description."""
    CLOSE: tuple[str, Mapping[str, str]] = ("PATCH", {"state": "closed"})
    """Method and body of the request that closes one."""

    def __init__(self, connection: Connection, path: str, hints: Mapping[int, str]) -> None:
        """`path` lists them; `hints` are remedies by HTTP status."""
        self._api = Api(connection.api, connection.headers, connection.sleep)
        self._path, self._hints = path, hints

    @abstractmethod
    def _list_parameters(self, branch: str) -> dict[str, str]:
        """Return the query that lists those of a branch, newest first; the list may have others, too."""

    @abstractmethod
    def _is_own(self, entry: Mapping[str, Any], branch: str) -> bool:
        """Return True for one from this branch of the repository itself, not of a fork."""

    @abstractmethod
    def _parse_state(self, entry: Mapping[str, Any]) -> Literal["open", "closed", "merged"]:
        """Return `open`, `closed` or `merged`."""

    def _new(self, branch: str, base: str, title: str, text: str) -> dict[str, Any]:
        """Return the body of the request that opens one."""
        return {"title": title, "body": text, "head": branch, "base": base}

    def state(self, branch: str) -> str:
        """Return `open`, `closed` (without a merge) or `merged` for the newest one of a branch; "" if there is none.

        Raises ForgeError.
        """
        entry = self._find_newest(branch)
        return "" if entry is None else self._parse_state(entry)

    def find(self, branch: str) -> Proposal | None:
        """Return the newest one of a branch; None if there is none. Raises ForgeError."""
        entry = self._find_newest(branch)
        if entry is None:
            return None
        state = self._parse_state(entry)
        withdrawn = state == "closed" and str(entry.get("title", "")).startswith(_WITHDRAWN)
        return Proposal("withdrawn" if withdrawn else state, str(entry.get(self.URL, "")))

    def withdraw(self, branch: str, reason: str) -> None:
        """Close the open one of a branch, and say why in its title and description. Raises ForgeError."""
        entry = self._find_newest(branch)
        if entry is None or self._parse_state(entry) != "open":
            return
        action = f"closing the pull request of {branch}"
        method, body = self.CLOSE
        title, text = (str(entry.get(key) or "") for key in ("title", self.TEXT))
        changes = {
            **body,
            # In the same request: one that is closed without this title was closed by people.
            "title": shorten_middle(_WITHDRAWN + title.removeprefix(_WITHDRAWN), _MAX_TITLE),
            self.TEXT: f"{_WITHDRAWN}{reason}\n\n{text}"[:_MAX_TEXT],
        }
        path = f"{self._path}/{quote(str(entry.get(self.NUMBER)), safe='')}"
        try:
            raise_for_status(self._api.send(method, path, action=action, json=changes), action)
        except ForgeError as error:
            raise self._explain(error) from None

    def open(self, branch: str, base: str, title: str, text: str) -> str:
        """Open one to merge `branch` into `base`, and return its URL. Raises ForgeError.

        If the branch has an open one already, its URL is returned.
        """
        more = len(text) - _MAX_TEXT
        text = text if more <= 0 else f"{text[:_MAX_TEXT]}\n\n… {more:,} more characters"
        action = f"opening a pull request for {branch}"
        body = self._new(branch, base, shorten_middle(title, _MAX_TITLE), text)
        # Repeated after an unclear response: the forges allow one for a branch.
        response = self._api.send("POST", self._path, action=action, json=body)
        if response.status_code == self.EXISTS:
            entry = self._find_newest(branch)
            if entry is not None and self._parse_state(entry) == "open":
                return str(entry.get(self.URL, ""))
        try:
            raise_for_status(response, action)
        except ForgeError as error:
            raise self._explain(error) from None
        created = parse_json(response, action)
        return str(created.get(self.URL, "")) if isinstance(created, dict) else ""

    def _find_newest(self, branch: str) -> dict[str, Any] | None:
        action = f"reading the pull requests of {branch}"
        try:
            pages = self._api.pages(self._path, action=action, **self._list_parameters(branch))
            # Newest first. Beyond these pages there is none of ours that matters: opening another one is refused.
            for page in islice(pages, MAX_PAGES):
                for entry in page:
                    # Anyone may open one from a fork, whose branch has the same name.
                    if self._is_own(entry, branch):
                        return entry
        except ForgeError as error:
            raise self._explain(error) from None
        return None

    def _explain(self, error: ForgeError) -> ForgeError:
        if isinstance(error, GoneError):
            return ForgeError(str(error), "does the repository exist, and may the token read it?", error.status)
        return error.explained(self._hints)


def same_repository(one: object, other: object) -> bool:
    """Return True if two numbers of repositories are equal; one of a deleted fork is missing."""
    return isinstance(one, int) and one == other
