"""A process that writes shards: it reads settings and shards as JSON lines, and answers with lines.

It ends when its input ends, so also when the process that started it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import orjson

from avactl.base.errors import HintedError
from avactl.datasets.pack.model import PackFormat, Settings, Shard, SplitAt
from avactl.datasets.pack.writer import ShardWriter
from avactl.datasets.stores.opening import open_store


def _receive(lines: SimpleQueue[bytes]) -> None:
    """Pass on lines of standard input. At its end, nobody waits for a result."""
    while line := sys.stdin.buffer.readline():
        lines.put(line)
    os._exit(1)


def _send(lock: Lock, message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.buffer.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()


def settings_from(data: dict[str, Any]) -> Settings:
    """Restore settings from their JSON data."""
    data = {
        **data,
        "format": PackFormat(data["format"]),
        "match": tuple(data["match"]),
        "exclude": tuple(data["exclude"]),
        "split_at": SplitAt(data["split_at"]) if data["split_at"] else None,
    }
    return Settings(**data)


def main() -> None:
    """Write the shards of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without a traceback; the command reports it
    lines: SimpleQueue[bytes] = SimpleQueue()
    lock = Lock()
    Thread(target=_receive, args=(lines,), daemon=True).start()
    job = orjson.loads(lines.get())
    try:
        source = open_store(job["source"], job["sourceEndpoint"], job["follow"])
        target = open_store(job["target"], job["targetEndpoint"])
        writer = ShardWriter(
            source,
            target,
            settings_from(job["settings"]),
            lambda files, size: _send(lock, {"read": [files, size]}),
        )
        while True:
            number, files, stamp = orjson.loads(lines.get())
            state = writer.write(Shard(number, files, lines.get(), stamp))
            _send(lock, {"done": state})
    except HintedError as error:
        _send(lock, {"error": str(error), "hint": error.hint, "code": error.exit_code})


if __name__ == "__main__":
    main()
