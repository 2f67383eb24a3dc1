"""Structured logs: one JSON object a line on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

import orjson

_muted = False


def mute() -> None:
    """Write nothing from now on: for commands on a terminal, which say themselves what a person must know."""
    global _muted
    _muted = True


def _write(level: str, message: str, fields: dict[str, Any]) -> None:
    if _muted:
        return
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
    line = orjson.dumps({"time": stamp, "level": level, "message": message, **fields}, default=str)
    sys.stderr.buffer.write(line + b"\n")
    sys.stderr.buffer.flush()


def info(message: str, **fields: Any) -> None:
    """What happens in an orderly life."""
    _write("info", message, fields)


def warn(message: str, **fields: Any) -> None:
    """What somebody may want to look into."""
    _write("warning", message, fields)


def error(message: str, **fields: Any) -> None:
    """What somebody must look into."""
    _write("error", message, fields)
