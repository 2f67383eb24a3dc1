"""Comments of a pull request on any forge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import httpx

from avactl.forges.rest import Api, ForgeError, GoneError, raise_for_status, text_at


class ReadOnlyError(ForgeError):
    """The token can read but not write comments."""


class Comment(NamedTuple):
    """An existing comment."""

    id: int
    body: str
    author: str
    """Login of its author."""


def parse_comment(entry: Mapping[str, Any], user: str, login: str) -> Comment:
    """Return the comment of a list's entry; `user` and `login` are the keys of its author and of their login."""
    number = entry.get("id")
    return Comment(
        number if isinstance(number, int) else 0, str(entry.get("body") or ""), text_at(entry.get(user), login)
    )


class Comments(ABC):
    """The comments of one pull request."""

    def __init__(self, api: Api, path: str, noun: str, hints: Mapping[int, str]) -> None:
        """`path` lists the comments; `noun` is the forge's term for a pull request, with its number; `hints` are
        remedies by HTTP status."""
        self._api, self._list, self.noun, self._hints = api, path, noun, hints

    @abstractmethod
    def comments(self) -> Iterator[Comment]:
        """Yield all comments, oldest first. Raises ForgeError."""

    @abstractmethod
    def edit(self, comment: Comment, body: str) -> None:
        """Replace the text of a comment. Raises ForgeError; GoneError if it was deleted."""

    @abstractmethod
    def _explain_read_only(self) -> tuple[str, str]:
        """Return why a write was forbidden, and the remedy."""

    @abstractmethod
    def _find_login(self) -> str:
        """Return the login of the token's user."""

    def create(self, body: str) -> None:
        """Write a new comment. Raises ForgeError."""
        self._write("POST", self._list, body, f"commenting on {self.noun}", repeat=False)

    def own(self, comment: Comment) -> bool:
        """Return whether a comment was written with this token: another bot may quote the marker."""
        return bool(comment.author) and comment.author == self._me

    @cached_property
    def _me(self) -> str:
        return self._find_login()

    def _pages(self, action: str, gone: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the entries of the list; `gone` is the remedy if it does not exist."""
        try:
            for page in self._api.pages(self._list, action=action, **params):
                yield from page
        except GoneError as error:
            raise ForgeError(str(error), gone) from None
        except ForgeError as error:
            raise error.explained(self._hints) from None

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
