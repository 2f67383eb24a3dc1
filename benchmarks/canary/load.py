"""Clients of a service: a fixed rate of requests, whatever the answers take, in a process of its own.

`python -m benchmarks.canary.load PROTOCOL URL HOST CA SAMPLES RATE SECONDS FILE` sends RATE requests a second by `http`
or `grpc` to the gateway at URL, for at most SECONDS, and writes one line each to FILE: when it was sent and answered
(Unix seconds), the status (0: no answer), the version that answered, and what went wrong. SIGTERM ends it, with the
requests under way.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import aiohttp
import grpc.aio

TIMEOUT = 10.0
"""Seconds after which a request has failed."""
CHANNELS = 4
"""Connections of gRPC clients."""


class Answer(NamedTuple):
    """One request and its outcome."""

    sent: float
    answered: float
    status: int
    """HTTP status, 500 of a gRPC error that names a version; 0: no answer."""
    version: str
    """Version of the model that answered; empty if none did."""
    error: str
    """What went wrong where no server answered."""


def read(file: Path) -> list[Answer]:
    """Return the requests that have ended, by the time they were sent."""
    found = []
    for line in file.read_text().splitlines():
        sent, answered, status, version, error = json.loads(line)
        found.append(Answer(sent, answered, status, version, error))
    return sorted(found)


Send = Callable[[bytes], Awaitable[tuple[int, str, str]]]
"""Sends a picture, and returns status, version and what went wrong."""


@asynccontextmanager
async def _http(url: str, host: str, ca: Path) -> AsyncIterator[Send]:
    secure = url.startswith("https:")
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=str(ca)) if secure else True)
    limits = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(connector=connector, timeout=limits, trust_env=False) as session:

        async def send(picture: bytes) -> tuple[int, str, str]:
            try:
                async with session.post(
                    f"{url}/predict", data=picture, headers={"Host": host}, server_hostname=host
                ) as response:
                    text = await response.text()
                    version = response.headers.get("X-Version", "")
                    return response.status, version, "" if version else text[:100]
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                return 0, "", f"{type(error).__name__} {error}"[:200]

        yield send


@asynccontextmanager
async def _grpc(url: str, host: str, ca: Path) -> AsyncIterator[Send]:
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    options = {
        "grpc.ssl_target_name_override": host,
        "grpc.default_authority": host,
        "grpc.enable_http_proxy": 0,
        "grpc.use_local_subchannel_pool": 1,
    }
    async with AsyncExitStack() as stack:
        stubs = []
        for _ in range(CHANNELS):
            channel = grpc.aio.secure_channel(url.partition("://")[2], credentials, list(options.items()))
            stubs.append((await stack.enter_async_context(channel)).unary_unary("/digits.Digits/Predict"))
        turn = itertools.cycle(stubs)

        async def send(picture: bytes) -> tuple[int, str, str]:
            call = next(turn)(picture, timeout=TIMEOUT)
            try:
                await call
                code, why = 200, ""
            except grpc.aio.AioRpcError as error:
                code, why = 0, f"{error.code().name} {error.details()}"[:200]
            version = str(dict(await call.initial_metadata()).get("x-version", ""))
            return code or (500 if version else 0), version, "" if version else why

        yield send


async def _run(protocol: str, url: str, host: str, ca: Path, samples: Path, *pace: float, file: TextIO) -> None:
    rate, seconds = pace
    pictures = [json.dumps(each).encode() for each in json.loads(samples.read_text())["pictures"]]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with (_grpc if protocol == "grpc" else _http)(url, host, ca) as send:

        async def request(number: int) -> None:
            sent = time.time()
            status, version, why = await send(pictures[number % len(pictures)])
            file.write(json.dumps([sent, time.time(), status, version, why]) + "\n")

        began, number, running = time.monotonic(), 0, set[asyncio.Task[None]]()
        while number < rate * seconds and not ended.is_set():
            while number < rate * (time.monotonic() - began):
                task = asyncio.create_task(request(number))
                running.add(task)
                task.add_done_callback(running.discard)
                number += 1
            file.flush()
            await asyncio.sleep(1 / rate / 2)
        await asyncio.gather(*running)


def main() -> None:
    """Send requests until SIGTERM, or for the given time."""
    protocol, url, host, ca, samples, rate, seconds, name = sys.argv[1:]
    with Path(name).open("w") as file:
        asyncio.run(_run(protocol, url, host, Path(ca), Path(samples), float(rate), float(seconds), file=file))


if __name__ == "__main__":
    main()
