"""The part of a kubelet that serves logs, for nodes that kwok plays: lines of containers, with follow and sinceTime."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from tools.waiting import patience

_BASE = datetime.fromisoformat("2026-03-01T12:00:00+00:00").timestamp()


class Kubelet:
    """Logs by pod. Use it in a `with` block."""

    def __init__(self, certificate: Path) -> None:
        self.changed = threading.Condition()
        self.lines: dict[str, list[tuple[float, str]]] = {}
        """Seconds and lines by `POD/CONTAINER`."""
        self.ended: set[str] = set()
        self.asked: list[dict[str, str]] = []
        self.open = 0
        """Connections that follow a log."""
        handler = type("Handler", (_Handler,), {"kubelet": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def write(self, place: str, second: float, *lines: str) -> None:
        """Let a container write lines, all at one time."""
        with self.changed:
            self.lines.setdefault(place, []).extend((second, line) for line in lines)
            self.changed.notify_all()

    def end(self, place: str) -> None:
        """Let a container end: its log has no more lines."""
        with self.changed:
            self.ended.add(place)
            self.changed.notify_all()

    def until(self, what: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, patience())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kubelet: ClassVar[Kubelet]

    def do_GET(self) -> None:
        kubelet, address = self.kubelet, urlsplit(self.path)
        _, _, _, pod, container = address.path.split("/")
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        place, follow = f"{pod}/{container}", query.get("follow") == "true"
        since = datetime.fromisoformat(query["sinceTime"]).timestamp() if "sinceTime" in query else 0.0
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with kubelet.changed:
            kubelet.asked.append(query)
            kubelet.open += follow
            kubelet.changed.notify_all()
            sent = 0
            tail = int(query["tailLines"]) if "tailLines" in query else None
            if tail is not None:
                sent = max(0, len(kubelet.lines.get(place, [])) - tail)
            try:
                while True:
                    ready = kubelet.lines.get(place, [])[sent:]
                    sent += len(ready)
                    for second, line in ready:
                        if _BASE + second >= since:
                            self._send(f"{_time(second)} {line}\n".encode())
                    if not follow or place in kubelet.ended:
                        break
                    if not kubelet.changed.wait(0.5):
                        self._send(b"")  # nothing: only the flush can tell that the reader is gone
            except OSError:
                self.close_connection = True
                return
            finally:
                kubelet.open -= follow
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


def _time(second: float) -> str:
    moment = datetime.fromtimestamp(int(_BASE + second)).astimezone()
    zone = moment.strftime("%z")
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{round(second % 1 * 10**9):09d}{zone[:3]}:{zone[3:]}"
