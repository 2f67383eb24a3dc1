"""Prewarming and cold starts through a cache tier, on a real Alluxio cluster and an S3 endpoint on loopback.

    python -m benchmarks.cache [prewarm|cold|fuse] [--files 10000] [--size 200000] [--model 1000000000]

The cluster has the compiled properties of examples/ava's read tier: one master, two workers, their job services. Only
paths, ports and sizes differ.

prewarm: FILES files of SIZE bytes are loaded by the engine's own `fs load`, by the tier's load.sh and by the cache
daemon's loader, in turn, from a store without limits; then they are read again.

cold: a job loads a model of MODEL bytes in 20 files, one after the other, from a store with 20 ms latency and 50 MB/s a
connection: directly and, as a job that waited for the prewarming, through FUSE (the medians of three each), and through
FUSE without prewarming (once: then it is warm).

fuse: the FUSE process is killed; the time until the mount that its script makes anew answers in another pod.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from avactl.daemons.cache.alluxio.client import AlluxioEngine
from avactl.daemons.cache.loading import Load, Pacer
from benchmarks.measure import Bar, bar, console
from tools.alluxio import Alluxio
from tools.alluxio.fuse import Fuse, require_libfuse
from tools.alluxio.tiers import Tier, running
from tools.controlplane import UnavailableError
from tools.objectstore import Faults, ObjectStore

MB = 1_000_000
SLOW = Faults(latency=0.020, rate=50 * MB)
CHUNK = 4 * MB
RAM_RESERVE = 256 * 1024 * 1024
SHARDS = 20
"""Files of the model: the test store reads a whole object for each range of it that somebody wants."""
ROUNDS = 3
TIER = Tier("read")


@contextmanager
def cluster(store: ObjectStore, data: int) -> Iterator[Alluxio]:
    """Start a cluster whose workers' memory holds `data` bytes each, however they are spread."""
    for bucket in ("ava-datasets", "ava-models"):
        store.client().create_bucket(Bucket=bucket)
    level = "alluxio.worker.tieredstore.level"
    sizes = {
        f"{level}0.dirs.quota": f"{data * 5 // 4 + RAM_RESERVE}B",
        f"{level}1.dirs.quota": f"{RAM_RESERVE}B",
        "alluxio.user.block.size.bytes.default": "64MB",
        # The engine's own: what is compiled is smaller.
        "alluxio.job.batch.size": "200",
    }
    with running(TIER, store, sizes, as_pods=True) as started:
        yield started


def timed(action: Callable[[], Any]) -> float:
    """Return the seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def read(path: Path) -> None:
    """Read a file from its beginning to its end, as a job does that loads it; the kernel keeps nothing of it."""
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK):
            pass
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -- prewarming ------------------------------------------------------------------------------------------------------


def prewarm(files: int, size: int) -> None:
    """Compare the tier's script and the daemon's loader with the engine's own command."""
    with ObjectStore() as store, cluster(store, files * size) as started:
        buckets = store.client()

        def put(number: int) -> None:
            body = hashlib.sha256(str(number).encode()).digest() * (size // 32 + 1)
            for folder in ("script", "engine", "daemon"):
                buckets.put_object(Bucket="ava-datasets", Key=f"{folder}/{number % 100:02}/{number}", Body=body[:size])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(put, range(files)))
        table = Table("load", "seconds", "MB/s", title=f"{files} files of {size / MB:g} MB")
        rates = {}
        for name, load in (
            ("engine", lambda: _engine_load(started, "/datasets/engine")),
            ("script", lambda: started.script(TIER.data["load.sh"], "1", "0", "/datasets/script")),
            ("daemon", lambda: asyncio.run(_daemon_load(started, "/datasets/daemon"))),
        ):
            seconds = timed(load)
            rates[name] = files * size / MB / seconds
            table.add_row(name, f"{seconds:.1f}", f"{rates[name]:.0f}")
            if name != "daemon":
                started.fs("free", "-f", f"/datasets/{name}")
        console.print(table)
        store.reset()
        for folder in range(100):
            started.run(
                ["bash", "-c", '"$0" fs cat "$1" > /dev/null', str(started.shell), f"/datasets/daemon/{folder:02}/*"]
            )
        for name in ("script", "daemon"):
            bar(Bar(f"prewarm-engine-over-{name}", rates["engine"] / rates[name], 1 / 0.9))
        bar(Bar("second-read-bytes-from-store", store.traffic.sent, 0, " B", 0))


async def _daemon_load(started: Alluxio, path: str) -> None:
    engine = AlluxioEngine(started.masters)
    load = Load(engine, Pacer(0), lambda size: None)
    await load.run(engine.files(path))
    await engine.close()
    if load.failed:
        raise RuntimeError(f"{load.failed} blocks: {load.failures[0]}")


def _engine_load(started: Alluxio, path: str) -> None:
    started.fs("loadMetadata", "-R", path)
    started.fs("load", path, "--submit", "--verify", "--partial-listing")
    while "SUCCEEDED" not in (report := started.fs("load", path, "--progress")):
        if "FAILED" in report:
            raise RuntimeError(report)
        time.sleep(1)


# -- cold start ------------------------------------------------------------------------------------------------------


def cold(size: int) -> None:
    """Load a model directly, through a cold cache, and through a warm one."""
    with ObjectStore() as store, cluster(store, size) as started:
        buckets = store.client()
        with _patterned(size // SHARDS) as body:
            for name in [f"{model}/{shard}" for model in ("cold", "warm") for shard in range(SHARDS)]:
                buckets.upload_file(str(body), "ava-models", name)
        fuse = _mounted(started)
        store.faults = SLOW

        def direct() -> None:
            for shard in range(SHARDS):
                stream = store.client(store.url).get_object(Bucket="ava-models", Key=f"cold/{shard}")["Body"]
                while stream.read(CHUNK):
                    pass

        def mounted(root: Path, model: str) -> None:
            for shard in range(SHARDS):
                read(root / f"models/{model}/{shard}")

        # A virtual machine gets its memory with its first use: the page cache must not pay for that here.
        touched = bytearray(2 * size)
        touched[::4096] = b"1" * len(touched[::4096])
        del touched
        seconds = {"directly from the store": median(timed(direct) for _ in range(ROUNDS))}
        if fuse is not None:
            seconds["through the tier, not prewarmed"] = timed(lambda: mounted(fuse.path, "cold"))
            gate = timed(lambda: asyncio.run(_daemon_load(started, "/models/warm")))
            store.reset()
            warm_reads = (timed(lambda: mounted(fuse.path, "warm")) for _ in range(ROUNDS))
            seconds["through the tier, after the gate"] = median(warm_reads)
            console.print(f"the gate opened after {gate:.1f} s; then {store.traffic.sent} bytes from the store")
        table = Table("load of the model", "seconds", "MB/s", title=f"{size / MB:g} MB, 20 ms, 50 MB/s a connection")
        for name, value in seconds.items():
            table.add_row(name, f"{value:.2f}", f"{size / MB / value:.0f}")
        console.print(table)
        first, *through = seconds.values()
        unprepared, warm = through if through else (None, None)
        bar(Bar("warm-over-direct", warm / first if warm else None, 0.1, "", 3))
        bar(Bar("warm-over-not-prewarmed", warm / unprepared if warm and unprepared else None, 1 / 3, "", 3))


@contextmanager
def _patterned(size: int) -> Iterator[Path]:
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="avactl-bench-") as file:
        block = hashlib.sha256(b"model").digest() * (MB // 32)
        for at in range(0, size, MB):
            file.write(block[: min(MB, size - at)])
        file.flush()
        yield Path(file.name)


# -- FUSE ------------------------------------------------------------------------------------------------------------


def _mounted(started: Alluxio) -> Fuse | None:
    try:
        require_libfuse()
    except UnavailableError as reason:
        console.print(f"{reason}: not measured")
        return None
    fuse = TIER.fuse(started)
    fuse.start()
    return fuse


def heal() -> None:
    """Kill FUSE, and wait for its successor."""
    with ObjectStore() as store, cluster(store, 64 * MB) as started:
        store.client().put_object(Bucket="ava-models", Key="small", Body=b"x" * MB)
        seconds = None
        if (fuse := _mounted(started)) is not None:
            pod = fuse.pod()
            read(pod / "models/small")
            fuse.kill()

            def back() -> None:
                fuse.start()
                read(pod / "models/small")

            seconds = timed(back)
        bar(Bar("fuse-back", seconds, 10, " s", 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("prewarm", "cold", "fuse"))
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=200_000)
    parser.add_argument("--model", type=int, default=1_000_000_000)
    options = parser.parse_args()
    if options.what in (None, "prewarm"):
        prewarm(options.files, options.size)
    if options.what in (None, "cold"):
        cold(options.model)
    if options.what in (None, "fuse"):
        heal()


if __name__ == "__main__":
    main()
