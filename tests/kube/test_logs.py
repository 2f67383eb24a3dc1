"""Structured logs: nothing by default, JSON lines of a daemon."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import logging
from avactl.kube import logs
logs.error("before", pod="a/b")
logs.configure()
logs.info("50% done", name="n", count=2, at=object)
logging.getLogger("asyncio").info("detail")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("asyncio").exception("task failed")
"""


def test_a_daemon_writes_one_json_object_a_line_and_other_commands_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    first, second = map(json.loads, done.stderr.splitlines())
    assert list(first) == ["time", "level", "message", "name", "count", "at"]
    assert (first["level"], first["message"], first["count"]) == ("info", "50% done", 2)
    assert len(first["time"]) == len("2026-01-31T09:30:00.000Z")
    assert (second["level"], second["message"]) == ("error", "task failed")
    assert "ZeroDivisionError" in second["trace"]
