"""Comments of a pull request on any forge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import httpx

from avactl.forges.connection import Connection
from avactl.forges.rest import Api, ForgeError, GoneError, parse_json, raise_for_status, text_at


class ReadOnlyError(ForgeError):
    """The token can read but not write comments."""


class Comment(NamedTuple):
    """An existing comment."""

    id: int
    body: str
    author: str
    """Login of its author."""


class Comments(ABC):
    """The comments of one pull request."""

    GONE: str
    """Remedy if the list does not exist."""
    LIST: Mapping[str, Any] = {}
    """Query of the list, oldest first."""
    EDIT = "PATCH"
    """Method that replaces the text of a comment."""
    AUTHOR = "user"
    """Key of a comment's author."""
    LOGIN = "login"
    """Key of a user's login."""

    def __init__(self, connection: Connection, path: str, noun: str, hints: Mapping[int, str]) -> None:
        """`path` lists the comments; `noun` is the forge's term for a pull request, with its number; `hints` are
        remedies by HTTP status."""
        self._api = Api(connection.api, connection.headers, connection.sleep)
        self._list, self.noun, self._hints = path, noun, hints

    @abstractmethod
    def _path_of(self, comment: Comment) -> str:
        """Return the path of one comment."""

    @abstractmethod
    def _explain_read_only(self) -> tuple[str, str]:
        """Return why a write was forbidden, and the remedy."""

    def comments(self) -> Iterator[Comment]:
        """Yield all comments, oldest first. Raises ForgeError."""
        try:
            for page in self._api.pages(self._list, action=f"reading the comments of {self.noun}", **self.LIST):
                for entry in page:
                    if not entry.get("system"):  # GitLab's record of an event
                        number, author = entry.get("id"), text_at(entry.get(self.AUTHOR), self.LOGIN)
                        yield Comment(number if isinstance(number, int) else 0, str(entry.get("body") or ""), author)
        except GoneError as error:
            raise ForgeError(str(error), self.GONE) from None
        except ForgeError as error:
            raise error.explained(self._hints) from None

    def edit(self, comment: Comment, body: str) -> None:
        """Replace the text of a comment. Raises ForgeError; GoneError if it was deleted."""
        self._write(self.EDIT, self._path_of(comment), body, f"editing the comment on {self.noun}")

    def _find_login(self) -> str:
        """Return the login of the token's user."""
        action = "identifying the token's user"
        response = self._api.send("GET", "/user", action=action)
        self._raise_for_status(response, action)
        return text_at(parse_json(response, action), self.LOGIN)

    def create(self, body: str) -> None:
        """Write a new comment. Raises ForgeError."""
        self._write("POST", self._list, body, f"commenting on {self.noun}", repeat=False)

    def own(self, comment: Comment) -> bool:
        """Return whether a comment was written with this token: another bot may quote the marker."""
        return bool(comment.author) and comment.author == self._me

    @cached_property
    def _me(self) -> str:
        return self._find_login()

    def _write(self, method: str, path: str, body: str, action: str, *, repeat: bool = True) -> None:
        response = self._api.send(method, path, action=action, repeat=repeat, json={"body": body})
        if response.status_code == 403:
            why, hint = self._explain_read_only()
            raise ReadOnlyError(f"{action}: {why}", hint)
        self._raise_for_status(response, action)

    def _raise_for_status(self, response: httpx.Response, action: str) -> None:
        """Raise as `raise_for_status`, with the remedy for the status."""
        try:
            raise_for_status(response, action)
        except GoneError:
            raise
        except ForgeError as error:
            raise error.explained(self._hints) from None


class IssueComments(Comments):
    """The comments of a pull request that are those of the issue with its number, as in GitHub's API."""

    WRITE_HINT: str
    """How to give a job's token the permission to write comments."""

    def __init__(self, connection: Connection, number: int | None, fork: bool, hints: Mapping[int, str]) -> None:
        """`number`: of the pull request; `fork`: it comes from one; `hints`: remedies by HTTP status."""
        self._issues, self._fork = f"/repos/{connection.project}/issues", fork
        noun = f"pull request #{number} of {connection.project}"
        super().__init__(connection, f"{self._issues}/{number}/comments", noun, hints)

    def _path_of(self, comment: Comment) -> str:
        return f"{self._issues}/comments/{comment.id}"

    def _explain_read_only(self) -> tuple[str, str]:
        if self._fork:
            return "the token of a pull request from a fork is read-only", ""
        return "the token is read-only", self.WRITE_HINT
