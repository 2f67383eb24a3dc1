"""The comments of a pull request on GitHub or GitLab, by their REST APIs.

Sources: docs.github.com/rest (issue comments, "Rate limits", "Best practices", "Pagination"), docs.gitlab.com/api
(notes, "Rate limit headers", pagination, "CI/CD job token").
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import httpx

from avactl.base.errors import HintedError

ATTEMPTS = 5
"""Attempts per request before it counts as failed."""
LONGEST_WAIT = 180.0
"""Longest wait for a rate limit, in seconds. GitLab counts by the minute, GitHub by the hour."""
_MOST_PAGES = 100
MAX_ANSWER = 128 * 1024 * 1024
"""Largest response in bytes: a page of 100 of GitLab's longest notes."""
_DIGITS = 12
"""Digits from which a time in seconds is out of range."""
_ABOUT_BODY = ("content-encoding", "content-length", "transfer-encoding")


class ForgeError(HintedError):
    """A request failed."""

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        """`status` is the HTTP status of the answer; 0: there was none, or it was a success."""
        super().__init__(message, hint)
        self.status = status

    def explained(self, hints: Mapping[int, str]) -> ForgeError:
        """Return the same error with the remedy for its status, if there is one."""
        hint = hints.get(self.status)
        return self if hint is None else ForgeError(str(self), hint, self.status)


class ReadOnlyError(ForgeError):
    """The token can read but not write comments."""


class GoneError(ForgeError):
    """The requested object does not exist."""


class UnsureError(ForgeError):
    """The server failed during a write; the write may or may not have happened."""


class Comment(NamedTuple):
    """An existing comment."""

    id: int
    body: str
    author: str
    """Login of its author."""


class Api:
    """REST requests with retries after 5xx, connection errors and rate limits."""

    def __init__(self, root: str, headers: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> None:
        self._root = root
        self._sleep = sleep
        self._host = httpx.URL(root).host
        self._client = httpx.Client(
            headers={"User-Agent": "avactl", **headers},
            timeout=30.0,
            follow_redirects=True,
            event_hooks={"request": [self._want_host]},
        )

    def _want_host(self, request: httpx.Request) -> None:
        """Raise ForgeError for a redirect to another host: httpx removes only `Authorization` from it."""
        if request.url.host != self._host:
            raise ForgeError(
                f"the forge redirects to another host, {request.url.host}", f"is {self._root} the forge's API?"
            )

    def _request(self, method: str, url: str, asked: str, options: Mapping[str, Any]) -> httpx.Response:
        """Return one whole response. Raises ForgeError if it is longer than `MAX_ANSWER`, and httpx's errors."""
        with self._client.stream(method, url, **options) as answer:
            body = bytearray()
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER:
                    raise ForgeError(f"{asked}: the response is larger than {MAX_ANSWER >> 20} MiB")
            headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _ABOUT_BODY]
            return httpx.Response(answer.status_code, headers=headers, content=bytes(body), request=answer.request)

    def send(self, method: str, path: str, *, asked: str, repeat: bool = True, **options: Any) -> httpx.Response:
        """Return the response, whatever its status except 5xx and rate limits. `asked` names the request in messages.

        With `repeat=False`, a creating request is not retried after a server error, because it may have succeeded: that
        raises UnsureError. Raises ForgeError.
        """
        url = path if "://" in path else f"{self._root}{path}"
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(2.0 ** (attempt - 1))
            try:
                answer = self._request(method, url, asked, options)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = f"unreachable: {error}"
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = f"{type(error).__name__}: {error}"
                if not repeat:
                    raise UnsureError(f"{asked}: {why}") from None
                continue
            wait = _rate_limit(answer)
            if wait is not None:
                if wait > LONGEST_WAIT or attempt == ATTEMPTS - 1:
                    hint = "run the job again later, or use a separate token, which has its own limit"
                    raise ForgeError(f"{asked}: rate limited for another {wait:.0f} s", hint)
                self._sleep(wait)
                continue
            if answer.status_code < 500:
                return answer
            why = f"the forge answered {answer.status_code}"
            if not repeat:
                raise UnsureError(f"{asked}: {why}")
        raise ForgeError(f"{asked}: {why} ({ATTEMPTS} times)", f"is {self._root} correct, and is the forge up?")

    def pages(self, path: str, *, asked: str, **params: Any) -> Iterator[list[dict[str, Any]]]:
        """Yield all pages of a list, following the Link header or GitLab's x-next-page."""
        url, following = path, params
        for _ in range(_MOST_PAGES):
            answer = self.send("GET", url, asked=asked, params=following or None)
            want(answer, asked)
            entries = body_of(answer, asked)
            if not isinstance(entries, list):
                raise ForgeError(f"{asked}: the response is not a list", f"is {self._root} the forge's API?")
            yield [entry for entry in entries if isinstance(entry, dict)]
            link, page = answer.links.get("next", {}).get("url"), answer.headers.get("x-next-page")
            if link and httpx.URL(link).host == answer.url.host:
                url, following = link, {}
            elif page:
                url, following = path, {**params, "page": page}
            else:
                return


def _rate_limit(answer: httpx.Response) -> float | None:
    """Return the seconds to wait if the response is a rate limit, else None."""
    headers = answer.headers
    spent = headers.get("x-ratelimit-remaining", headers.get("ratelimit-remaining")) == "0"
    secondary = "secondary rate limit" in answer.text[:2000] if answer.status_code == 403 else False
    if answer.status_code != 429 and not (
        answer.status_code == 403 and (spent or secondary or "retry-after" in headers)
    ):
        return None
    after = headers.get("retry-after", "")
    if after.isdecimal() and len(after) < _DIGITS:
        return float(after)
    reset = headers.get("x-ratelimit-reset", headers.get("ratelimit-reset", ""))
    if spent and reset.isdecimal() and len(reset) < _DIGITS:
        return max(1.0, float(reset) - time.time())
    return 60.0  # GitHub: "wait for at least one minute"


def body_of(answer: httpx.Response, asked: str) -> Any:
    """Return the JSON of a response. Raises ForgeError."""
    try:
        return answer.json()
    except ValueError:
        kind = answer.headers.get("content-type", "nothing").partition(";")[0]
        raise ForgeError(f"{asked}: the response is {kind}, not JSON", "is the API URL correct?") from None


def comment_of(entry: Mapping[str, Any], user: str, login: str) -> Comment:
    """Return the comment of a list's entry; `user` and `login` are the keys of its author and of his login."""
    number = entry.get("id")
    return Comment(
        number if isinstance(number, int) else 0, str(entry.get("body") or ""), text_at(entry.get(user), login)
    )


def text_at(value: Any, key: str) -> str:
    """Return the text at a key of a mapping; "" if there is none."""
    return str(value.get(key) or "") if isinstance(value, dict) else ""


def want(answer: httpx.Response, asked: str) -> None:
    """Raise GoneError for 404, and ForgeError for any other response that is not a success."""
    if answer.is_success:
        return
    said = ""
    if answer.headers.get("content-type", "").startswith("application/json"):
        data = body_of(answer, asked)
        said = str(data.get("message") or data.get("error") or "") if isinstance(data, dict) else ""
    line = f"{asked}: the forge answered {answer.status_code}" + (f" ({said[:200]})" if said else "")
    if answer.status_code in (404, 410):
        raise GoneError(line, status=answer.status_code)
    raise ForgeError(line, status=answer.status_code)


class Forge(ABC):
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
    def _read_only(self) -> tuple[str, str]:
        """Return why a write was forbidden, and the remedy."""

    @abstractmethod
    def _login(self) -> str:
        """Return the login of the token's user."""

    def create(self, body: str) -> None:
        """Write a new comment. Raises ForgeError."""
        self._write("POST", self._list, body, f"commenting on {self.noun}", repeat=False)

    def own(self, comment: Comment) -> bool:
        """Return whether a comment was written with this token: another bot may quote the marker."""
        return bool(comment.author) and comment.author == self._me

    @cached_property
    def _me(self) -> str:
        return self._login()

    def _pages(self, asked: str, gone: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the entries of the list; `gone` is the remedy if it does not exist."""
        try:
            for page in self._api.pages(self._list, asked=asked, per_page=100, **params):
                yield from page
        except GoneError as error:
            raise ForgeError(str(error), gone) from None
        except ForgeError as error:
            raise error.explained(self._hints) from None

    def _write(self, method: str, path: str, body: str, asked: str, *, repeat: bool = True) -> None:
        answer = self._api.send(method, path, asked=asked, repeat=repeat, json={"body": body})
        if answer.status_code == 403:
            why, hint = self._read_only()
            raise ReadOnlyError(f"{asked}: {why}", hint)
        self._want(answer, asked)

    def _want(self, answer: httpx.Response, asked: str) -> None:
        """Raise as `want`, with the remedy for the status."""
        try:
            want(answer, asked)
        except GoneError:
            raise
        except ForgeError as error:
            raise error.explained(self._hints) from None
