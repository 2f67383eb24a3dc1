"""Clients of a service: a fixed rate of requests, whatever the answers take, in a process of its own.

`python -m benchmarks.canary.load URL HOST CA SAMPLES RATE SECONDS FILE` sends RATE requests a second to the gateway
at URL, for at most SECONDS, and writes one line each to FILE: when it was sent and answered (Unix seconds), the status
(0: no answer), the version that answered, and what went wrong. SIGTERM ends it, with the requests under way.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import NamedTuple, TextIO

import aiohttp

TIMEOUT = 10.0
"""Seconds after which a request has failed."""


class Answer(NamedTuple):
    """One request and its outcome."""

    sent: float
    answered: float
    status: int
    """HTTP status; 0: no answer."""
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


async def _run(url: str, host: str, ca: str, samples: str, rate: float, seconds: float, file: TextIO) -> None:
    pictures = [json.dumps(each).encode() for each in json.loads(Path(samples).read_text())["pictures"]]
    context = ssl.create_default_context(cafile=ca)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    limits = aiohttp.ClientTimeout(total=TIMEOUT)
    async with aiohttp.ClientSession(connector=connector, timeout=limits, trust_env=False) as session:

        async def request(number: int) -> None:
            sent, status, version, why = time.time(), 0, "", ""
            try:
                async with session.post(
                    f"{url}/predict",
                    data=pictures[number % len(pictures)],
                    headers={"Host": host},
                    server_hostname=host,
                ) as response:
                    text = await response.text()
                    status, version = response.status, response.headers.get("X-Version", "")
                    why = "" if version else text[:100]
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = f"{type(error).__name__} {error}"[:200]
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
    url, host, ca, samples, rate, seconds, name = sys.argv[1:]
    with Path(name).open("w") as file:
        asyncio.run(_run(url, host, ca, samples, float(rate), float(seconds), file))


if __name__ == "__main__":
    main()
