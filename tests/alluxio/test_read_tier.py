"""The read tier of examples/ava on real processes: what it starts with, loads and frees."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tools.alluxio import Alluxio
from tools.alluxio.tiers import MIB, Tier, complaints, objects, running
from tools.objectstore import ObjectStore

pytestmark = pytest.mark.xdist_group("alluxio")

TIER = Tier("read")
MEM, SSD = 64 * MIB, 96 * MIB  # of each worker
FILE = 4 * MIB
PATIENCE = 60.0  # seconds


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
    with running(TIER, store, {f"{level}0.dirs.quota": f"{MEM}B", f"{level}1.dirs.quota": f"{SSD}B"}) as cluster:
        yield cluster


def cached(cluster: Alluxio, path: str) -> dict[str, int]:
    """Percentage of each file below a path that is in the cache."""
    lines = re.findall(r"(\d+)% (\S+)$", cluster.fs("ls", "-R", path), re.MULTILINE)
    return {name: int(percent) for percent, name in lines}


def settled(cluster: Alluxio, path: str, percent: int) -> dict[str, int]:
    """The same, once all of it is at `percent`: masters learn from heartbeats what workers hold."""
    deadline = time.monotonic() + PATIENCE
    while set((found := cached(cluster, path)).values()) != {percent} and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


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
    (job,) = (body for (kind, name), body in objects().items() if kind == "Job" and name.startswith("prewarm-imagenet"))
    _, script, *arguments = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert script == "/config/load.sh"
    assert arguments == ["2", "0", "/datasets/imagenet/v3"]
    cluster.script(TIER.script("load.sh", store), *arguments)
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
        "/datasets/imagenet/v2/a": 0, "/datasets/imagenet/v3/a": 100, "/datasets/imagenet/v3/b": 100,
    }  # fmt: skip
