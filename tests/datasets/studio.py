"""A stand-in for the API of Label Studio 1.23, with the shapes of its answers, for tests of seconds."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "planted0123456789abcdef0123456789abcdef01"


class FakeStudio:
    """A server with project 1. Use it in a `with` block."""

    def __init__(self) -> None:
        self.tasks: list[dict[str, Any]] = []
        self.controls = ["class"]
        self.fails_after: int | None = None
        """Number of imports that succeed before the server fails."""
        studio = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def _answer(self, status: int, body: object) -> None:
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def do_GET(self) -> None:
                self._answer(*studio.get(self.path, self.headers.get("Authorization", "")))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(*studio.post(self.path, self.headers.get("Authorization", ""), body))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str, authorization: str) -> tuple[int, object]:
        """Answer as `/api/projects/ID/` and `/api/tasks/` do."""
        if authorization not in (f"Token {TOKEN}", "Bearer short-lived"):
            return 401, {"detail": "Invalid token."}
        where = urlsplit(path)
        if where.path == "/api/projects/1/":
            config = {name: {"type": "Choices", "to_name": ["image"], "labels": []} for name in self.controls}
            return 200, {"id": 1, "parsed_label_config": config}
        query = {name: values[0] for name, values in parse_qs(where.query).items()}
        if where.path != "/api/tasks/" or query.get("project") != "1":
            return 404, {"detail": "No Project matches the given query."}
        page, size = int(query["page"]), int(query["page_size"])
        part = self.tasks[(page - 1) * size : page * size]
        if not part and page > 1:
            return 404, {"detail": "Invalid page."}
        return 200, {"total": len(self.tasks), "tasks": part}

    def post(self, path: str, authorization: str, body: Any) -> tuple[int, object]:
        """Answer as `/api/projects/ID/import` and `/api/token/refresh` do."""
        if path == "/api/token/refresh":
            return (200, {"access": "short-lived"}) if body == {"refresh": "a.b.c"} else (401, {"detail": "expired"})
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                return 500, {"detail": "no disk"}
        self.tasks += [
            {"id": len(self.tasks) + n, "data": each["data"], "annotations": []} for n, each in enumerate(body, 1)
        ]
        return 201, {"task_count": len(body)}

    def annotate(self, number: int, person: int, *choices: str, at: str = "2026-01-01", skipped: bool = False) -> None:
        """Add an annotation of one person."""
        value = {"choices": [*choices]}
        result = [{"from_name": "class", "to_name": "image", "type": "choices", "value": value}]
        self.send(number, person, result, at, skipped)

    def send(self, number: int, person: int, result: object, at: str = "2026-01-01", skipped: bool = False) -> None:
        """Add an annotation as a person's own program may send it."""
        annotation = {"completed_by": person, "was_cancelled": skipped, "updated_at": at, "result": result}
        self.tasks[number]["annotations"].append(annotation)
