"""Requests to the REST API of a forge, with retries, rate limits and pages.

Sources: docs.github.com/rest ("Rate limits", "Best practices", "Pagination"), docs.gitlab.com/api ("Rate limit
headers", pagination), docs.gitea.com ("API Usage", pagination).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from avactl.base.errors import HintedError

MAX_ATTEMPTS = 5
"""Attempts per request before it counts as failed."""
MAX_WAIT_S = 180.0
"""Longest wait for a rate limit, in seconds. GitLab counts by the minute, GitHub by the hour."""
MAX_PAGES = 100
MAX_RESPONSE_BYTES = 128 * 1024 * 1024
"""Largest response in bytes: a page of 100 of GitLab's longest notes."""
_MAX_DIGITS = 12
"""Digits from which a time in seconds is out of range."""
_PORTS = {"http": 80, "https": 443}
_BODY_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class ForgeError(HintedError):
    """A request failed."""

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        """`status` is the HTTP status of the response; 0: there was none, or it was a success."""
        super().__init__(message, hint)
        self.status = status

    def explained(self, hints: Mapping[int, str]) -> ForgeError:
        """Return the same error with the remedy for its status, if there is one."""
        hint = hints.get(self.status)
        return self if hint is None else ForgeError(str(self), hint, self.status)


class GoneError(ForgeError):
    """The requested object does not exist."""


class UnsureError(ForgeError):
    """The server failed during a write; the write may or may not have happened."""


class Api:
    """REST requests with retries after 5xx, connection errors and rate limits."""

    def __init__(self, root: str, headers: Mapping[str, str], sleep: Callable[[float], None] = time.sleep) -> None:
        self._root = root
        self._sleep = sleep
        self._origin = _origin(httpx.URL(root))
        self._client = httpx.Client(
            headers={"User-Agent": "avactl", **headers},
            timeout=30.0,
            follow_redirects=True,
            event_hooks={"request": [self._forbid_other_origin]},
        )

    def _forbid_other_origin(self, request: httpx.Request) -> None:
        """Raise ForgeError for a redirect to another host, port or scheme: httpx removes only `Authorization` from it,
        and nothing from one to another port of the same host."""
        if _origin(request.url) != self._origin:
            raise ForgeError(
                f"the forge redirects to another origin, {':'.join(map(str, _origin(request.url)))}",
                f"is {self._root} the forge's API?",
            )

    def _request(self, method: str, url: str, action: str, options: Mapping[str, Any]) -> httpx.Response:
        """Return one whole response. Raises ForgeError if it exceeds `MAX_RESPONSE_BYTES`, and httpx's errors."""
        with self._client.stream(method, url, **options) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise ForgeError(f"{action}: the response is larger than {MAX_RESPONSE_BYTES >> 20} MiB")
            headers = [(name, value) for name, value in response.headers.multi_items() if name not in _BODY_HEADERS]
            return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=response.request)

    def send(self, method: str, path: str, *, action: str, repeat: bool = True, **options: Any) -> httpx.Response:
        """Return the response, whatever its status except 5xx and rate limits. `action` names the request in messages.

        With `repeat=False`, a creating request is not retried after a server error, because it may have succeeded: that
        raises UnsureError. Raises ForgeError.
        """
        url = path if "://" in path else f"{self._root}{path}"
        why = ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                self._sleep(2.0 ** (attempt - 1))
            try:
                response = self._request(method, url, action, options)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = f"unreachable: {error}"
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = f"{type(error).__name__}: {error}"
                if not repeat:
                    raise UnsureError(f"{action}: {why}") from None
                continue
            wait = _rate_limit(response)
            if wait is not None:
                if wait > MAX_WAIT_S or attempt == MAX_ATTEMPTS - 1:
                    hint = "run the job again later, or use a separate token, which has its own limit"
                    raise ForgeError(f"{action}: rate limited for another {wait:.0f} s", hint)
                self._sleep(wait)
                continue
            if response.status_code < 500:
                return response
            why = f"the forge answered {response.status_code}"
            if not repeat:
                raise UnsureError(f"{action}: {why}")
        raise ForgeError(f"{action}: {why} ({MAX_ATTEMPTS} times)", f"is {self._root} correct, and is the forge up?")

    def pages(self, path: str, *, action: str, **params: Any) -> Iterator[list[dict[str, Any]]]:
        """Yield all pages of a list, following the Link header or GitLab's x-next-page.

        Of a link, only the parameters are followed: its host is what the forge takes for its own name.
        """
        following = params
        for _ in range(MAX_PAGES):
            response = self.send("GET", path, action=action, params=following or None)
            raise_for_status(response, action)
            entries = parse_json(response, action)
            if not isinstance(entries, list):
                raise ForgeError(f"{action}: the response is not a list", f"is {self._root} the forge's API?")
            yield [entry for entry in entries if isinstance(entry, dict)]
            link, page = response.links.get("next", {}).get("url"), response.headers.get("x-next-page")
            if link:
                following = dict(httpx.URL(link).params)
            elif page:
                following = {**params, "page": page}
            else:
                return
        raise ForgeError(f"{action}: the list has more than {MAX_PAGES} pages", "nothing was written")


def _origin(url: httpx.URL) -> tuple[str, int]:
    """Return the scheme and host of a URL as text, and the port."""
    return f"{url.scheme}://{url.host}", url.port or _PORTS.get(url.scheme, 0)


def _rate_limit(response: httpx.Response) -> float | None:
    """Return the seconds to wait if the response is a rate limit, else None."""
    headers = response.headers
    spent = headers.get("x-ratelimit-remaining", headers.get("ratelimit-remaining")) == "0"
    secondary = "secondary rate limit" in response.text[:2000] if response.status_code == 403 else False
    if response.status_code != 429 and not (
        response.status_code == 403 and (spent or secondary or "retry-after" in headers)
    ):
        return None
    after = headers.get("retry-after", "")
    if after.isdecimal() and len(after) < _MAX_DIGITS:
        return float(after)
    reset = headers.get("x-ratelimit-reset", headers.get("ratelimit-reset", ""))
    if spent and reset.isdecimal() and len(reset) < _MAX_DIGITS:
        return max(1.0, float(reset) - time.time())
    return 60.0  # GitHub: "wait for at least one minute"


def parse_json(response: httpx.Response, action: str) -> Any:
    """Return the JSON of a response. Raises ForgeError."""
    try:
        return response.json()
    except ValueError:
        kind = response.headers.get("content-type", "nothing").partition(";")[0]
        raise ForgeError(f"{action}: the response is {kind}, not JSON", "is the API URL correct?") from None


def _redact(said: str) -> str:
    """Return a server's text without credentials: some, and proxies, repeat the token or the URL of a request."""
    from avactl.diagnostics.redaction import redact_text  # its patterns take long to compile

    return redact_text(said[:2000])


def text_at(value: Any, key: str) -> str:
    """Return the text at a key of a mapping; "" if there is none."""
    return str(value.get(key) or "") if isinstance(value, dict) else ""


def raise_for_status(response: httpx.Response, action: str) -> None:
    """Raise GoneError for 404, and ForgeError for any other response that is not a success."""
    if response.is_success:
        return
    said = ""
    if response.headers.get("content-type", "").startswith("application/json"):
        data = parse_json(response, action)
        said = str(data.get("message") or data.get("error") or "") if isinstance(data, dict) else ""
        said = _redact(said)
    line = f"{action}: the forge answered {response.status_code}" + (f" ({said[:200]})" if said else "")
    if response.status_code in (404, 410):
        raise GoneError(line, status=response.status_code)
    raise ForgeError(line, status=response.status_code)
