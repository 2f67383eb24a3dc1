"""The comments of a pull request on GitHub or GitLab, by their REST APIs.

Sources: docs.github.com/rest (issue comments, "Rate limits", "Best practices", "Pagination"), docs.gitlab.com/api
(notes, "Rate limit headers", pagination, "CI/CD job token").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import httpx

ATTEMPTS = 5
"""How often one request is sent before it counts as failed."""
LONGEST_WAIT = 180.0
"""Longest that a rate limit is waited for, seconds. GitLab counts by the minute, GitHub by the hour."""
_MOST_PAGES = 100
MAX_ANSWER = 128 * 1024 * 1024
"""Most bytes of an answer: a page of 100 notes of GitLab's longest."""
_DIGITS = 12
"""Digits of a time in seconds that are too many."""
_ABOUT_BODY = ("content-encoding", "content-length", "transfer-encoding")


class ForgeError(Exception):
    """A request that the forge refused or did not answer. The text is one line; `hint` is the remedy."""

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        """`status` is the HTTP status of the answer; 0: there was none, or it was a success."""
        super().__init__(message)
        self.hint, self.status = hint, status

    def explained(self, hints: Mapping[int, str]) -> ForgeError:
        """Return the same error with the remedy for its status, if there is one."""
        hint = hints.get(self.status)
        return self if hint is None else ForgeError(str(self), hint, self.status)


class ReadOnlyError(ForgeError):
    """The token may read, and not write comments."""


class GoneError(ForgeError):
    """What was asked for is not there."""


class UnsureError(ForgeError):
    """The forge failed while it wrote: whether it has written is not known."""


class Comment(NamedTuple):
    """A comment that is there."""

    id: int
    body: str
    author: str
    """Login of who wrote it."""


class Forge(Protocol):
    """The comments of one pull request."""

    noun: str
    """What the forge calls a pull request, with its number."""

    def comments(self) -> Iterator[Comment]: ...
    def create(self, body: str) -> None: ...
    def edit(self, comment: Comment, body: str) -> None: ...
    def own(self, comment: Comment) -> bool:
        """Whether a comment was written with this token."""
        ...


class Api:
    """Requests that are sent again where that helps: after 5xx, after a broken connection, after a rate limit."""

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
        """Raise ForgeError where a redirect leads to another host: httpx takes only `Authorization` out for it."""
        if request.url.host != self._host:
            raise ForgeError(
                f"the forge leads to another host, {request.url.host}", f"is {self._root} the forge's API?"
            )

    def _request(self, method: str, url: str, asked: str, options: Mapping[str, Any]) -> httpx.Response:
        """One answer, whole. Raises ForgeError where it is longer than `MAX_ANSWER`, and httpx's errors."""
        with self._client.stream(method, url, **options) as answer:
            body = bytearray()
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER:
                    raise ForgeError(f"{asked}: the answer has more than {MAX_ANSWER >> 20} MiB")
            headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _ABOUT_BODY]
            return httpx.Response(answer.status_code, headers=headers, content=bytes(body), request=answer.request)

    def send(self, method: str, path: str, *, asked: str, repeat: bool = True, **options: Any) -> httpx.Response:
        """The answer, whatever its status but 5xx and rate limits. `asked` names the request for people.

        A request that makes something is not sent again (`repeat=False`) after an error of the server, which may have
        made it: that raises UnsureError. Raises ForgeError.
        """
        url = path if "://" in path else f"{self._root}{path}"
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(2.0 ** (attempt - 1))
            try:
                answer = self._request(method, url, asked, options)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = f"cannot be reached: {error}"
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = f"{type(error).__name__}: {error}"
                if not repeat:
                    raise UnsureError(f"{asked}: {why}") from None
                continue
            wait = _rate_limit(answer)
            if wait is not None:
                if wait > LONGEST_WAIT or attempt == ATTEMPTS - 1:
                    hint = "run the job again later; a token of its own has a limit of its own"
                    raise ForgeError(f"{asked}: the forge limits requests for {wait:.0f} s more", hint)
                self._sleep(wait)
                continue
            if answer.status_code < 500:
                return answer
            why = f"the forge answered {answer.status_code}"
            if not repeat:
                raise UnsureError(f"{asked}: {why}")
        raise ForgeError(f"{asked}: {why} ({ATTEMPTS} times)", f"is {self._root} right, and the forge up?")

    def pages(self, path: str, *, asked: str, **params: Any) -> Iterator[list[dict[str, Any]]]:
        """All pages of a list: by the Link header, or by GitLab's x-next-page."""
        url, following = path, params
        for _ in range(_MOST_PAGES):
            answer = self.send("GET", url, asked=asked, params=following or None)
            want(answer, asked)
            entries = body_of(answer, asked)
            if not isinstance(entries, list):
                raise ForgeError(f"{asked}: the answer is no list", f"is {self._root} the forge's API?")
            yield [entry for entry in entries if isinstance(entry, dict)]
            link, page = answer.links.get("next", {}).get("url"), answer.headers.get("x-next-page")
            if link and httpx.URL(link).host == answer.url.host:
                url, following = link, {}
            elif page:
                url, following = path, {**params, "page": page}
            else:
                return


def _rate_limit(answer: httpx.Response) -> float | None:
    """Seconds to wait where the answer is a rate limit's, else None."""
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
    """The JSON of an answer. Raises ForgeError."""
    try:
        return answer.json()
    except ValueError:
        kind = answer.headers.get("content-type", "nothing").partition(";")[0]
        raise ForgeError(f"{asked}: the answer is {kind}, not JSON", "is the API's address right?") from None


def number_of(entry: Mapping[str, Any]) -> int:
    """The number of a comment; 0 of an entry that has none."""
    number = entry.get("id")
    return number if isinstance(number, int) else 0


def want(answer: httpx.Response, asked: str) -> None:
    """Raises GoneError for 404, ForgeError for every other answer that is no success."""
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
