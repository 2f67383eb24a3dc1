"""Local servers that answer as GitHub and GitLab document, as far as opening and finding pull requests goes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

TOKEN = "ghs_" + "t0ken" * 8
Answer = tuple[int, Any, dict[str, str]]


class FakePulls:
    """The pull requests of `acme/specs` on one forge."""

    def __init__(self, forge: str) -> None:
        self.forge = forge
        self.pulls: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.lost = 0
        """Answers to the next writes that are lost although the write is done."""
        self.url = ""

    def open_from_fork(self, branch: str, state: str = "open") -> None:
        """Add one from a fork, which anyone may open."""
        self.pulls.append({"branch": branch, "state": state, "number": len(self.pulls) + 1, "fork": 1})

    def close(self, *, merged: bool = False) -> None:
        """Close the newest one."""
        self.pulls[-1]["state"] = "merged" if merged else "closed"

    def find(self, query: dict[str, list[str]]) -> Answer:
        """Answer a request for the newest of a branch."""
        branch = query["head"][0].removeprefix("acme:") if self.forge == "github" else query["source_branch"][0]
        found = [self.shown(each) for each in reversed(self.pulls) if each["branch"] == branch]
        size, page = int(query["per_page"][0]), int(query.get("page", ["1"])[0])
        following = {"X-Next-Page": str(page + 1)} if len(found) > size * page else {}
        if following and self.forge == "github":
            link = f"{self.url}/repos/acme/specs/pulls?{urlencode(query | {'page': [page + 1]}, doseq=True)}"
            following = {"Link": f'<{link}>; rel="next"'}
        return 200, found[size * (page - 1) : size * page], following

    def create(self, body: dict[str, Any]) -> Answer:
        """Open one, if its branch has none."""
        github = self.forge == "github"
        branch = body["head" if github else "source_branch"]
        if any(each["branch"] == branch and each["state"] == "open" and "fork" not in each for each in self.pulls):
            known = (422, {"message": "Validation Failed"}) if github else (409, {"message": ["already exists"]})
            return *known, {}
        made = {
            "branch": branch, "state": "open", "title": body["title"], "number": len(self.pulls) + 1,
            "base": body["base" if github else "target_branch"], "text": body["body" if github else "description"],
        }  # fmt: skip
        self.pulls.append(made)
        return 201, self.shown(made), {}

    def shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        """Return one as the forge shows it."""
        url, state = f"{self.url}/acme/specs/pull/{pull['number']}", pull["state"]
        if self.forge == "github":
            merged = "2026-01-01T00:00:00Z" if state == "merged" else None
            head, base = {"repo": {"id": pull.get("fork", 7)}}, {"repo": {"id": 7}}
            shown = "open" if state == "open" else "closed"
            return {"state": shown, "merged_at": merged, "html_url": url, "head": head, "base": base}
        ids = {"source_project_id": pull.get("fork", 7), "target_project_id": 7}
        return {"state": "opened" if state == "open" else state, "web_url": url, **ids}


@contextmanager
def serve_pulls(forge: str) -> Iterator[FakePulls]:
    """Serve the pull requests of `github` or `gitlab`."""
    fake = FakePulls(forge)
    path = "/repos/acme/specs/pulls" if forge == "github" else "/projects/acme/specs/merge_requests"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(lambda parts: fake.find(parse_qs(parts.query)))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(lambda parts: fake.create(body))

        def _answer(self, made: Any) -> None:
            parts = urlsplit(self.path)
            fake.requests.append(f"{self.command} {parts.path}")
            token = self.headers.get("PRIVATE-TOKEN") or self.headers.get("Authorization", "").removeprefix("Bearer ")
            more: dict[str, str]
            if token != TOKEN:
                status, body, more = 401, {"message": "Bad credentials"}, {}
            elif unquote(parts.path) != path:
                status, body, more = 404, {"message": "Not Found"}, {}
            else:
                status, body, more = made(parts)
            if self.command == "POST" and fake.lost:
                fake.lost -= 1
                self.close_connection = True
                return
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
