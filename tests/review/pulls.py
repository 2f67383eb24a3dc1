"""Local servers that answer as GitHub and GitLab document, as far as opening and finding pull requests goes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "ghs_" + "t0ken" * 8
Answer = tuple[int, Any]


class FakePulls:
    """The pull requests of `acme/specs` on one forge."""

    def __init__(self, forge: str) -> None:
        self.forge = forge
        self.pulls: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.lost = 0
        """Answers to the next writes that are lost although the write is done."""
        self.url = ""

    def close(self, *, merged: bool = False) -> None:
        """Close the newest one."""
        self.pulls[-1]["state"] = "merged" if merged else "closed"

    def find(self, query: dict[str, list[str]]) -> Answer:
        """Answer a request for the newest of a branch."""
        branch = query["head"][0].removeprefix("acme:") if self.forge == "github" else query["source_branch"][0]
        found = [self.shown(each) for each in reversed(self.pulls) if each["branch"] == branch]
        return 200, found[: int(query["per_page"][0])]

    def create(self, body: dict[str, Any]) -> Answer:
        """Open one, if its branch has none."""
        github = self.forge == "github"
        branch = body["head" if github else "source_branch"]
        if any(each["branch"] == branch and each["state"] == "open" for each in self.pulls):
            return (422, {"message": "Validation Failed"}) if github else (409, {"message": ["already exists"]})
        made = {
            "branch": branch, "state": "open", "title": body["title"], "number": len(self.pulls) + 1,
            "base": body["base" if github else "target_branch"], "text": body["body" if github else "description"],
        }  # fmt: skip
        self.pulls.append(made)
        return 201, self.shown(made)

    def shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        """Return one as the forge shows it."""
        url, state = f"{self.url}/acme/specs/pull/{pull['number']}", pull["state"]
        if self.forge == "github":
            merged = "2026-01-01T00:00:00Z" if state == "merged" else None
            return {"state": "open" if state == "open" else "closed", "merged_at": merged, "html_url": url}
        return {"state": "opened" if state == "open" else state, "web_url": url}


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
            if token != TOKEN:
                status, body = 401, {"message": "Bad credentials"}
            elif unquote(parts.path) != path:
                status, body = 404, {"message": "Not Found"}
            else:
                status, body = made(parts)
            if self.command == "POST" and fake.lost:
                fake.lost -= 1
                self.close_connection = True
                return
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
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
