"""What daemons report, live in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

KUBECONFIG = """
current-context: x
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""
NAMED = re.compile(r".*/configmaps/[^/?]+(\?.*)?")


class EmptyCluster(BaseHTTPRequestHandler):
    """An API server without objects."""

    def do_GET(self) -> None:
        missing = NAMED.fullmatch(self.path)
        body = b"{}" if missing else b'{"metadata": {"resourceVersion": "1"}, "items": []}'
        self.send_response(404 if missing else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyCluster) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "config").write_text(KUBECONFIG.format(port=server.server_port))
        yield tmp_path / "config"
        server.shutdown()


@pytest.mark.parametrize(
    ("daemon", "page"),
    [
        ("cache", b"the cache daemon has written no status so far"),
        ("serving", b"no service has a canary or blue-green rollout"),
        ("delivery", b"no pipelines"),
    ],
)
def test_a_status_is_live_until_it_is_interrupted(kubeconfig: Path, daemon: str, page: bytes) -> None:
    command = [sys.executable, "-m", "avactl.cli.main", daemon, "status", "--kubeconfig", str(kubeconfig)]
    once = subprocess.run(command, capture_output=True, check=True).stdout
    assert once.startswith(b"context x")
    assert page in once
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env={**os.environ, "COLUMNS": "100", "LINES": "9"}
    )
    os.close(theirs)
    read_until(ours, page)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    os.close(ours)


def read_until(terminal: int, text: bytes) -> None:
    seen, ends = b"", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < ends, seen
        if select.select([terminal], [], [], 1.0)[0]:
            seen += os.read(terminal, 65536)
