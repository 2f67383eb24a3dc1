"""Load of `benchmarks.elastic`: workers that get a task, report it, and get the next one, in one process.

    python benchmarks/elastic_load.py avactl|dlrover HOST:PORT --workers 1000 --seconds 10 [--rate 4000]

Each worker has a connection of its own. Without `--rate` it asks again at once; with it, the workers together ask so
often, at times that do not depend on the answers. For DLRover it runs in DLRover's environment, and sends what its
client sends. Prints a line of JSON: steps per second, and percentiles of their latency in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

import grpc

TASKS = 1_000_000
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class Avactl:
    """One round trip over the worker's stream: the report of a task, and the next one."""

    def __init__(self, channel: Any, number: int) -> None:
        from avactl_worker import messages as m

        self._m, self._channel, self._number = m, channel, number
        self._done: Any = None
        self._id = 0

    async def _ask(self, **content: Any) -> Any:
        self._id += 1
        await self._call.write(self._m.Request(id=self._id, **content).encode())
        answer = self._m.Answer.decode(await self._call.read())
        assert answer.error is None, answer.error
        return answer

    async def open(self) -> None:
        """Join, and register the dataset."""
        m = self._m
        self._call = self._channel.stream_stream(m.SESSION)()
        await self._ask(join=m.Join(worker=f"w{self._number}", incarnation=self._number + 1))
        definition = m.Definition(counts=[TASKS * 10], records_per_task=10, epochs=1000, shuffled=True, seed=1)
        await self._ask(register=m.Registration(name="train", digest=b"d" * 32, definition=definition))

    async def step(self) -> None:
        """Report and get."""
        m = self._m
        finished = [m.Report(task=self._done)] if self._done is not None else []
        answer = await self._ask(work=m.Work(datasets=["train"], finished=finished, wait=True))
        self._done = answer.assignment.task


class Dlrover:
    """Two calls, as DLRover's MasterClient makes them: get_task and report_task_result."""

    def __init__(self, channel: Any, number: int) -> None:
        from dlrover.proto import elastic_training_pb2 as pb  # type: ignore[import-not-found]
        from dlrover.proto import elastic_training_pb2_grpc as stubs
        from dlrover.python.common import comm  # type: ignore[import-not-found]

        self._pb, self._comm, self._number = pb, comm, number
        self._stub = stubs.MasterStub(channel)

    def _message(self, content: Any) -> Any:
        return self._pb.Message(node_id=self._number, node_type="worker", data=content.serialize())

    async def open(self) -> None:
        """Register the dataset."""
        if self._number == 0:
            await self._stub.report(
                self._message(
                    self._comm.DatasetShardParams(
                        batch_size=10, num_epochs=1, dataset_size=TASKS * 10, shuffle=False,
                        num_minibatches_per_shard=1, dataset_name="train", task_type=self._pb.TRAINING,
                        storage_type="table",
                    )
                )
            )  # fmt: skip

    async def step(self) -> None:
        """Get and report."""
        raw = await self._stub.get(self._message(self._comm.TaskRequest("train")))
        task = self._comm.deserialize_message(raw.data)
        assert task.task_id >= 0, "no task"
        assert task.shard.end > task.shard.start, task
        await self._stub.report(self._message(self._comm.TaskResult("train", task.task_id)))


async def run(kind: str, address: str, workers: int, seconds: float, rate: float) -> dict[str, float]:
    """Return steps per second and latencies."""
    channels = [grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(workers)]
    clients = [(Avactl if kind == "avactl" else Dlrover)(channel, number) for number, channel in enumerate(channels)]
    for first in range(0, workers, 50):
        await asyncio.gather(*(client.open() for client in clients[first : first + 50]))
    await asyncio.gather(*(client.step() for client in clients))
    began = time.perf_counter()
    end = began + seconds
    latencies: list[float] = []

    async def work(client: Any) -> None:
        due = began + random.random() * workers / rate if rate else began
        while True:
            now = time.perf_counter()
            if due > now:
                await asyncio.sleep(due - now)
            start = max(due, began) if rate else time.perf_counter()
            if start > end:
                return
            await client.step()
            latencies.append(time.perf_counter() - start)
            due = due + workers / rate if rate else 0.0

    await asyncio.gather(*map(work, clients))
    took = time.perf_counter() - began
    latencies.sort()
    return {
        "rate": len(latencies) / took,
        "p50": 1000 * latencies[len(latencies) // 2],
        "p99": 1000 * latencies[len(latencies) * 99 // 100],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("avactl", "dlrover"))
    parser.add_argument("address")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0)
    options = parser.parse_args()
    found = asyncio.run(run(options.kind, options.address, options.workers, options.seconds, options.rate))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
