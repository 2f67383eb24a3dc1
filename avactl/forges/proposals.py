"""Open pull requests, and ask what became of them, on any forge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Any

from avactl.base.terminal import shorten_middle
from avactl.forges.connection import Connection
from avactl.forges.rest import MAX_PAGES, Api, ForgeError, GoneError, parse_json, raise_for_status

_MAX_TITLE = 250
"""Longest title, in characters."""
_MAX_TEXT = 60_000
"""Longest description, in characters."""


class Proposals(ABC):
    """Pull requests of one repository."""

    EXISTS = 409
    """HTTP status for a second one of the same branch."""
    URL = "html_url"
    """Key with the URL of a pull request."""

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
    def _parse_state(self, entry: Mapping[str, Any]) -> str:
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
