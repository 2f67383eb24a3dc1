"""Files of a tenant that the engine refuses to handle: those of others are pushed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from avactl.daemons.cache.engine import CachedFile, EngineError, Mount
from avactl.daemons.cache.writeback.push import WriteBackTask

HOSTILE = [
    "/team/line\nbreak",
    "/team/\x1b[2J",
    "/team/..",
    "/team/.avactl-releasedx/1",
    "/team/" + "x/" * 200 + "deep",
    "/team/" + "n" * 255,
    "/team/\N{GRINNING FACE}\u202e",
    "/team/::error::x",
]


def cached(path: str, number: int, **fields: Any) -> CachedFile:
    values = {
        "id": number,
        "path": path,
        "size": 10,
        "complete": True,
        "persisted": False,
        "pinned": False,
        "cached": 100,
        "created": 0.0,
        "modified": 0.0,
        "accessed": 0.0,
        "mark": b"",
        "store_path": f"s3://bucket{path}",
        "mount": 1,
        "block_size": 64,
        "blocks": (),
    }
    return CachedFile(**{**values, **fields})


class Engine:
    """Refuses whatever is asked of the hostile files."""

    def __init__(self) -> None:
        self.persisted: list[str] = []

    async def mounts(self) -> list[Mount]:
        return [Mount("/", 1, "s3://bucket")]

    async def files(self, path: str, refresh: bool = False) -> AsyncIterator[CachedFile]:
        for number, each in enumerate([*HOSTILE, "/other/honest"]):
            yield cached(each, number)

    async def status(self, path: str, refresh: bool = False) -> CachedFile:
        self._refuse(path)
        return cached(path, len(HOSTILE), persisted=path in self.persisted)

    async def pin(self, path: str, pinned: bool) -> None:
        self._refuse(path)

    async def mark(self, path: str, value: bytes) -> None:
        self._refuse(path)

    async def read(self, file: CachedFile) -> AsyncIterator[bytes]:
        yield b"0123456789"

    async def persist(self, path: str) -> None:
        self.persisted.append(path)

    async def read_store(self, url: str, mount: int, size: int) -> AsyncIterator[bytes]:
        yield b"0123456789"

    def _refuse(self, path: str) -> None:
        if path in HOSTILE:
            raise EngineError(f"invalid path {path}")


def test_a_file_that_the_engine_refuses_holds_up_no_other() -> None:
    push = SimpleNamespace(delay_seconds=0, high=0.8, low=0.5)
    settings = SimpleNamespace(settle_seconds=0, capacity=1 << 30, push=push, evicts=False)
    facts = SimpleNamespace(capacity_bytes=1 << 30, fill=0.1, push_error="")
    tier = SimpleNamespace(name="write", push_targets={"/": "/"})
    engine = Engine()
    task = WriteBackTask(cast(Any, engine), cast(Any, tier), cast(Any, settings), cast(Any, facts), tuple, lambda: True)

    async def run() -> None:
        for _ in range(len(HOSTILE)):
            await task.tick()
            await asyncio.sleep(0.05)
        await task.close()

    asyncio.run(run())
    assert engine.persisted == ["/other/honest"]
    assert cast(str, facts.push_error).isprintable()
    assert len(facts.push_error) <= 300
