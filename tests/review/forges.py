"""Local servers that answer as the forges document, as far as comments go."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, dict[str, str], Any]
Fault = Callable[["FakeForge", str, str], Answer | None]
"""What happens before a request is looked at: an answer that comes instead, or None. It may change the forge."""

TOKEN = "ghs_" + "t0ken" * 8


@dataclass
class FakeForge:
    """One pull request of a forge, number 7 of `acme/platform`."""

    me: str | None = None
    """Login of the token's user; None of a job's token, which has none."""
    app: str = "github-actions[bot]"
    """Login of the app whose token it is, where it is no user's."""
    comments: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    """Used up from the front, one a request."""
    log: list[str] = field(default_factory=list)
    """Requests as `METHOD path?query`."""
    page: int = 100
    """Most entries of a page."""
    readable_only: bool = False
    url: str = ""
    public: str = ""
    """Root of its API in its own links, if it is not `url`."""
    name: str = "github"
    """Name of the forge."""
    ids: int = 0

    def add(self, body: str, login: str = "github-actions[bot]", **more: Any) -> dict[str, Any]:
        """A comment that is there."""
        self.ids += 1
        entry: dict[str, Any] = {"id": self.ids, "body": body, **self.writer(login), **more}
        self.comments.append(entry)
        return entry

    def bodies(self) -> list[str]:
        return [comment["body"] for comment in self.comments]

    # what the forges do differently

    def authorised(self, headers: Any) -> bool:
        raise NotImplementedError

    def writer(self, login: str) -> dict[str, Any]:
        raise NotImplementedError

    def user(self) -> Answer:
        raise NotImplementedError

    def viewer(self) -> Answer:
        return 404, {}, {"message": "Not Found"}

    def paths(self) -> tuple[str, str, str]:
        """Path of the list, of one comment before its id, and the method that edits."""
        raise NotImplementedError

    def links(self, path: str, query: dict[str, list[str]], page: int, more: bool) -> dict[str, str]:
        raise NotImplementedError

    def size(self, query: dict[str, list[str]]) -> int:
        """Entries of a page."""
        return min(self.page, int(query.get("per_page", ["30"])[0]))

    # common

    def answer(self, method: str, target: str, headers: Any, body: Any) -> Answer:
        self.log.append(f"{method} {target}")
        if self.faults:
            found = self.faults.pop(0)(self, method, target)
            if found is not None:
                return found
        if not self.authorised(headers):
            return 401, {}, {"message": "Bad credentials"}
        parts = urlsplit(target)
        query = parse_qs(parts.query)
        listed, one, edits = self.paths()
        if parts.path.endswith("/user"):
            return self.user()
        if parts.path == "/graphql":
            return self.viewer()
        if parts.path == listed and method == "GET":
            page, size = int(query.get("page", ["1"])[0]), self.size(query)
            begin = (page - 1) * size
            more = begin + size < len(self.comments)
            return 200, self.links(parts.path, query, page, more), self.comments[begin : begin + size]
        if self.readable_only and method != "GET":
            return 403, {}, {"message": "Resource not accessible by integration"}
        if parts.path == listed and method == "POST":
            return 201, {}, self.add(body["body"], self.me or self.app)
        if parts.path.startswith(one) and method == edits:
            for comment in self.comments:
                if str(comment["id"]) == parts.path.removeprefix(one):
                    comment["body"] = body["body"]
                    return 200, {}, comment
        return 404, {}, {"message": "Not Found"}


class FakeGitHub(FakeForge):
    def authorised(self, headers: Any) -> bool:
        return bool(headers.get("Authorization") == f"Bearer {TOKEN}")

    def writer(self, login: str) -> dict[str, Any]:
        return {"user": {"login": login, "type": "Bot" if login.endswith("[bot]") else "User"}}

    def viewer(self) -> Answer:
        return 200, {}, {"data": {"viewer": {"login": self.me or self.app}}}

    def user(self) -> Answer:
        if self.me is None:
            return 403, {}, {"message": "Resource not accessible by integration"}
        return 200, {}, {"login": self.me}

    def paths(self) -> tuple[str, str, str]:
        root = "/repos/acme/platform/issues"
        return f"{root}/7/comments", f"{root}/comments/", "PATCH"

    def links(self, path: str, query: dict[str, list[str]], page: int, more: bool) -> dict[str, str]:
        size = query.get("per_page", ["30"])[0]
        url = f"{self.public or self.url}{path}?per_page={size}&page={page + 1}"
        return {"Link": f'<{url}>; rel="next"'} if more else {}


class FakeGitLab(FakeForge):
    def authorised(self, headers: Any) -> bool:
        return bool(headers.get("PRIVATE-TOKEN") == TOKEN)

    def writer(self, login: str) -> dict[str, Any]:
        return {"author": {"username": login}, "system": False}

    def user(self) -> Answer:
        return 200, {}, {"username": self.me}

    def paths(self) -> tuple[str, str, str]:
        root = "/projects/42/merge_requests/7/notes"
        return root, f"{root}/", "PUT"

    def links(self, path: str, query: dict[str, list[str]], page: int, more: bool) -> dict[str, str]:
        return {"x-page": str(page), "x-next-page": str(page + 1) if more else ""}


@dataclass
class FakeGitea(FakeForge):
    """Gitea, and Forgejo: lists of comments have no pages, and every token has a user."""

    scopes: bool = True
    """False if the token lacks the scope `read:user`."""

    def authorised(self, headers: Any) -> bool:
        return bool(headers.get("Authorization") == f"token {TOKEN}")

    def writer(self, login: str) -> dict[str, Any]:
        return {"user": {"id": 7, "login": login, "username": login}, "issue_url": "", "assets": []}

    def user(self) -> Answer:
        if not self.scopes:
            return 403, {}, {"message": "token does not have at least one of required scope(s): [read:user]"}
        return 200, {}, {"id": 7, "login": self.me, "username": self.me}

    def paths(self) -> tuple[str, str, str]:
        root = "/repos/acme/platform/issues"
        return f"{root}/7/comments", f"{root}/comments/", "PATCH"

    def links(self, path: str, query: dict[str, list[str]], page: int, more: bool) -> dict[str, str]:
        return {"X-Total-Count": str(len(self.comments))}

    def size(self, query: dict[str, list[str]]) -> int:
        return len(self.comments) + 1


@contextmanager
def serving(forge: FakeForge) -> Iterator[FakeForge]:
    """The forge on a port of this machine; `forge.url` is the root of its API."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = forge.answer(
                self.command, self.path, self.headers, json.loads(data) if data else None
            )
            if status == 0:  # the connection breaks
                self.close_connection = True
                return
            text = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            kind = "text/html" if isinstance(body, bytes) else "application/json; charset=utf-8"
            for name, value in {"Content-Type": kind, "Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = _any  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    forge.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield forge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
