"""Local servers that answer as the forges document, as far as opening and finding pull requests goes."""

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

    @property
    def gitea(self) -> bool:
        """True for Gitea, and Forgejo with the same API."""
        return self.forge in ("gitea", "forgejo")

    def open_from_fork(self, branch: str, state: str = "open") -> None:
        """Add one from a fork, which anyone may open."""
        self.pulls.append({"branch": branch, "state": state, "number": len(self.pulls) + 1, "fork": 1})

    def close(self, *, merged: bool = False) -> None:
        """Close the newest one."""
        self.pulls[-1]["state"] = "merged" if merged else "closed"

    def find(self, query: dict[str, list[str]]) -> Answer:
        """Answer a request for the newest of a branch."""
        page = int(query.get("page", ["1"])[0])
        if self.gitea:  # no filter by branch, and a page has as many as the server's settings allow
            branch, size = "", min(20, int(query["limit"][0]))
        else:
            branch = query["head"][0].removeprefix("acme:") if self.forge == "github" else query["source_branch"][0]
            size = int(query["per_page"][0])
        found = [self.shown(each) for each in reversed(self.pulls) if branch in ("", each["branch"])]
        following = {"X-Next-Page": str(page + 1)} if len(found) > size * page else {}
        if following and self.forge != "gitlab":
            link = f"{self.url}/repos/acme/specs/pulls?{urlencode(query | {'page': [page + 1]}, doseq=True)}"
            following = {"Link": f'<{link}>; rel="next"'}
        return 200, found[size * (page - 1) : size * page], following

    def create(self, body: dict[str, Any]) -> Answer:
        """Open one, if its branch has none."""
        gitlab = self.forge == "gitlab"
        branch = body["source_branch" if gitlab else "head"]
        if any(each["branch"] == branch and each["state"] == "open" and "fork" not in each for each in self.pulls):
            if self.gitea:
                return 409, {"message": "pull request already exists for these targets [id: 1]"}, {}
            known = (409, {"message": ["already exists"]}) if gitlab else (422, {"message": "Validation Failed"})
            return *known, {}
        made = {
            "branch": branch,
            "state": "open",
            "title": body["title"],
            "number": len(self.pulls) + 1,
            "base": body["target_branch" if gitlab else "base"],
            "text": body["description" if gitlab else "body"],
        }
        self.pulls.append(made)
        return 201, self.shown(made), {}

    def edit(self, number: int, body: dict[str, Any]) -> Answer:
        """Change the title and description of one, or close it."""
        pull = self.pulls[number - 1]
        gitlab = self.forge == "gitlab"
        closes = body.get("state_event") == "close" if gitlab else body.get("state") == "closed"
        pull["state"] = "closed" if closes and pull["state"] == "open" else pull["state"]
        pull["title"] = body.get("title", pull["title"])
        pull["text"] = body.get("description" if gitlab else "body", pull["text"])
        return 200, self.shown(pull), {}

    def shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        """Return one as the forge shows it."""
        url, state = f"{self.url}/acme/specs/pull/{pull['number']}", pull["state"]
        texts = {
            "iid" if self.forge == "gitlab" else "number": pull["number"],
            "title": pull.get("title", ""),
            "description" if self.forge == "gitlab" else "body": pull.get("text"),
        }
        if self.forge == "github":
            merged = "2026-01-01T00:00:00Z" if state == "merged" else None
            head, base = {"repo": {"id": pull.get("fork", 7)}}, {"repo": {"id": 7}}
            shown = "open" if state == "open" else "closed"
            return {"state": shown, "merged_at": merged, "html_url": url, "head": head, "base": base, **texts}
        if self.gitea:
            # The branch of one that was merged is deleted.
            ref = f"refs/pull/{pull['number']}/head" if state == "merged" else pull["branch"]
            sides = {
                "head": {"label": pull["branch"], "ref": ref, "repo_id": pull.get("fork", 7), "repo": None},
                "base": {"label": "main", "ref": "main", "repo_id": 7},
            }
            shown = "open" if state == "open" else "closed"
            return {"state": shown, "merged": state == "merged", "html_url": url, **sides, **texts}
        ids = {"source_project_id": pull.get("fork", 7), "target_project_id": 7}
        return {"state": "opened" if state == "open" else state, "web_url": url, **ids, **texts}


@contextmanager
def serve_pulls(forge: str) -> Iterator[FakePulls]:
    """Serve the pull requests of a forge."""
    fake = FakePulls(forge)
    path = "/projects/acme/specs/merge_requests" if forge == "gitlab" else "/repos/acme/specs/pulls"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(lambda parts: fake.find(parse_qs(parts.query)))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(lambda parts: fake.create(body))

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(lambda parts: fake.edit(int(parts.path.rpartition("/")[2]), body))

        def do_PUT(self) -> None:
            self.do_PATCH()

        def _answer(self, made: Any) -> None:
            parts = urlsplit(self.path)
            fake.requests.append(f"{self.command} {parts.path}")
            scheme = "token " if fake.gitea else "Bearer "
            token = self.headers.get("PRIVATE-TOKEN") or self.headers.get("Authorization", "").removeprefix(scheme)
            more: dict[str, str]
            changes = self.command == ("PUT" if fake.forge == "gitlab" else "PATCH")
            if token != TOKEN:
                status, body, more = 401, {"message": "Bad credentials"}, {}
            elif unquote(parts.path).removesuffix(f"/{parts.path.rpartition('/')[2]}" if changes else "") != path:
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
