"""An HTTP server with Prometheus' query API. Its values are given by the test: what is tested is what follows."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Prometheus:
    """Answers queries for `pod=~"NAME-HASH-…"` with the value of that hash, else with `other`.

    A value of None is an empty result; an exception's text is an error.
    """

    def __init__(self) -> None:
        self.values: dict[str, float | None] = {}
        self.other: float | None = 0.0
        self.raw: bytes | None = None
        self.queries: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)["query"][0]
                outer.queries.append(query)
                content = outer.raw if outer.raw is not None else outer.answer(query)
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, query: str) -> bytes:
        """Return the answer to a query."""
        found = re.search(r'pod=~"web-([a-z0-9]+)-', query)
        value = self.values.get(found[1], self.other) if found else self.other
        result = [] if value is None else [{"metric": {}, "value": [0, str(value)]}]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
