"""The read tier of examples/ava on real processes: what it starts with, loads and frees."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator

import pytest

from avactl.daemons.cache.alluxio.client import AlluxioEngine
from avactl.daemons.cache.loading import Load, Pacer
from tools.alluxio import Alluxio
from tools.alluxio.fuse import require_libfuse
from tools.alluxio.tiers import MIB, Tier, complaints, running
from tools.objectstore import ObjectStore
from tools.waiting import wait_until

pytestmark = pytest.mark.xdist_group("alluxio")

TIER = Tier("read")
MEM, SSD = 160 * MIB, 96 * MIB  # of each worker
FILE, BLOCK = 4 * MIB, 16 * MIB
BUFFERS = 96 * MIB  # of each worker, outside its heap


@pytest.fixture(scope="module")
def store(object_store: ObjectStore) -> ObjectStore:
    buckets = object_store.client()
    for name in ("ava-datasets", "ava-models"):
        buckets.create_bucket(Bucket=name)
    for name in ("imagenet/v2/a", "imagenet/v3/a", "imagenet/v3/b"):
        buckets.put_object(Bucket="ava-datasets", Key=name, Body=name.encode() * (FILE // len(name)))
    return object_store


@pytest.fixture(scope="module")
def cluster(alluxio_jars: None, store: ObjectStore) -> Iterator[Alluxio]:
    level = "alluxio.worker.tieredstore.level"
    sizes = {f"{level}0.dirs.quota": f"{MEM}B", f"{level}1.dirs.quota": f"{SSD}B"}
    sizes["alluxio.user.block.size.bytes.default"] = f"{BLOCK}B"
    options = {"worker": [f"-XX:MaxDirectMemorySize={BUFFERS}"]}
    with running(TIER, store, sizes, options=options, as_pods=True) as cluster:
        yield cluster


def cached(cluster: Alluxio, path: str) -> dict[str, int]:
    """Percentage of each file below a path that is in the cache."""
    lines = re.findall(r"(\d+)% (\S+)$", cluster.fs("ls", "-R", path), re.MULTILINE)
    return {name: int(percent) for percent, name in lines}


def settled(cluster: Alluxio, path: str, percent: int) -> dict[str, int]:
    """The same, once all of it is at `percent`: masters learn from heartbeats what workers hold."""

    def found() -> dict[str, int]:
        return held if set((held := cached(cluster, path)).values()) == {percent} else {}

    return wait_until(found, poll=0.5, details=lambda: cached(cluster, path))


def read(cluster: Alluxio, *paths: str) -> None:
    """Read files with one client."""
    for path in paths:
        cluster.run(["bash", "-c", '"$0" fs cat "$1" > /dev/null', str(cluster.shell), path])


def test_the_processes_start_with_the_compiled_properties(cluster: Alluxio) -> None:
    site = dict(line.split("=", 1) for line in cluster.site.read_text().splitlines())
    differs = {key for key in TIER.properties if site[key] != TIER.properties[key]}
    assert differs == {
        "alluxio.master.embedded.journal.addresses",
        "alluxio.worker.tieredstore.level0.dirs.quota",
        "alluxio.worker.tieredstore.level1.dirs.quota",
        "alluxio.worker.data.server.domain.socket.address",
        "alluxio.fuse.mount.point",
    }
    text = cluster.fsadmin("report", "capacity")
    assert f"Tier: MEM  Size: {2 * MEM // MIB}.00MB" in text
    assert f"Tier: SSD  Size: {2 * SSD // MIB}.00MB" in text
    assert {worker["address"]["host"] for worker in cluster.info()["workers"]} == {"127.0.0.11", "127.0.0.12"}
    assert len(re.findall(r"^127\.0\.0\.1[12] ", cluster.fsadmin("report", "jobservice"), re.MULTILINE)) == 2


def test_no_log_has_a_word_against_a_property(cluster: Alluxio) -> None:
    assert complaints(cluster) == {}


def test_stores_are_mounted_and_read_only(cluster: Alluxio, store: ObjectStore) -> None:
    table = cluster.fs("mount")
    assert re.search(r"^s3://ava-datasets/ +on +/datasets .*read-only", table, re.MULTILINE)
    assert re.search(r"^s3://ava-models/ +on +/models .*read-only", table, re.MULTILINE)


@pytest.mark.slow
def test_a_dataset_is_prewarmed_and_freed(cluster: Alluxio, store: ObjectStore) -> None:
    cluster.script(TIER.script("load.sh", store), "2", "0", "/datasets/imagenet/v3")
    assert set(settled(cluster, "/datasets/imagenet/v3", 100).values()) == {100}
    store.reset()
    read(cluster, "/datasets/imagenet/v3/*")
    assert store.traffic.sent == 0
    cluster.script(TIER.script("load.sh", store), "1", "0", "/datasets/imagenet/v2")
    cluster.script(TIER.script("free.sh", store), "3600", "/datasets/imagenet/v2")
    assert set(settled(cluster, "/datasets/imagenet/v2", 100).values()) == {100}
    # As if an hour had passed.
    cluster.script(TIER.script("free.sh", store), "-3600", "/datasets/imagenet/v2")
    settled(cluster, "/datasets/imagenet/v2", 0)
    assert cached(cluster, "/datasets/imagenet") == {
        "/datasets/imagenet/v2/a": 0,
        "/datasets/imagenet/v3/a": 100,
        "/datasets/imagenet/v3/b": 100,
    }


def test_a_load_of_files_of_many_sizes_keeps_no_buffers(cluster: Alluxio, store: ObjectStore) -> None:
    buckets, sizes = store.client(), range(300_000, 700_000, 1_000)
    assert sum(sizes) > 2 * BUFFERS - 4 * MIB  # `fs load` keeps a buffer of each size: a worker ends for want of memory
    for size in sizes:
        buckets.put_object(Bucket="ava-datasets", Key=f"sizes/{size}", Body=bytes(size))

    async def load() -> list[str]:
        engine = AlluxioEngine(cluster.masters)
        load = Load(engine, Pacer(0), lambda size: None)
        await load.run(engine.files("/datasets/sizes"))
        await engine.close()
        return load.failures

    assert asyncio.run(load()) == []
    assert len(found := settled(cluster, "/datasets/sizes", 100)) == len(sizes)
    assert set(found.values()) == {100}
    assert all("OutOfMemoryError" not in cluster.log(name).read_text() for name in ("worker-0", "worker-1"))


def test_a_sequential_read_through_fuse_asks_for_each_block_once(cluster: Alluxio, store: ObjectStore) -> None:
    require_libfuse()
    body = b"0123456789abcdef" * (2 * BLOCK // 16)
    store.client().put_object(Bucket="ava-models", Key="sequential", Body=body)
    fuse = TIER.fuse(cluster)
    fuse.start()
    store.reset()
    digest = hashlib.sha256()
    with (fuse.path / "models" / "sequential").open("rb") as file:
        while chunk := file.read(MIB):
            digest.update(chunk)
    assert digest.digest() == hashlib.sha256(body).digest()
    assert store.traffic.requests["GET"] == len(body) // BLOCK
