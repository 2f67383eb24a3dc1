"""The read tier of examples/ava, smaller than its data: cold data goes to SSD and then out; hot and pinned stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tools.alluxio import Alluxio
from tools.alluxio.tiers import MIB, Tier, running
from tools.objectstore import ObjectStore
from tools.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("alluxio")]

TIER = Tier("read")
MEM, SSD = 32 * MIB, 8 * MIB  # of each of two workers
FILE = 900_000
PINNED = HOT = 3  # files
COLD = 12
"""Files of a step. Pinned, hot and the files of a step are half of one worker's RAM: hot files, which are read after
each step, are never what was not read for the longest time, however files are spread over the workers."""
STEPS = 14
"""All steps are 1.8 times both levels of both workers."""


@pytest.fixture(scope="module")
def cluster(alluxio_jars: None, object_store: ObjectStore) -> Iterator[Alluxio]:
    client = object_store.client()
    for bucket in ("ava-datasets", "ava-models"):
        client.create_bucket(Bucket=bucket)
    counts = {"pinned": PINNED, "hot": HOT, **{f"cold{step}": COLD for step in range(STEPS)}}
    for directory, count in counts.items():
        for number in range(count):
            client.put_object(Bucket="ava-datasets", Key=f"tiering/{directory}/{number}", Body=bytes(FILE))
    level = "alluxio.worker.tieredstore.level"
    with running(TIER, object_store, {f"{level}0.dirs.quota": f"{MEM}B", f"{level}1.dirs.quota": f"{SSD}B"}) as cluster:
        yield cluster


def read(cluster: Alluxio, directory: str) -> None:
    """Read all files of a directory with one client."""
    path = f"/datasets/tiering/{directory}/*"
    cluster.run(["bash", "-c", '"$0" fs cat "$1" > /dev/null', str(cluster.shell), path])


def cached(cluster: Alluxio) -> dict[str, list[int]]:
    """Percentages of files that are cached, by directory."""
    found: dict[str, list[int]] = {}
    text = cluster.fs("ls", "-R", "/datasets/tiering")
    for percent, directory in re.findall(r"(\d+)% /datasets/tiering/(\w+)/\d+$", text, re.MULTILINE):
        found.setdefault(directory, []).append(int(percent))
    return found


def levels(cluster: Alluxio, directory: str) -> list[str]:
    """The levels of the blocks of a directory's files."""
    return re.findall(r"tierAlias=(\w+)", cluster.fs("stat", f"/datasets/tiering/{directory}/*"))


def until(what: Callable[[], bool], cluster: Alluxio) -> None:
    wait_until(what, poll=0.5, details=lambda: cached(cluster))


def test_cold_goes_to_ssd_and_out_and_hot_and_pinned_stay(cluster: Alluxio) -> None:
    read(cluster, "pinned")
    cluster.fs("pin", "/datasets/tiering/pinned")
    read(cluster, "hot")
    assert set(levels(cluster, "hot")) == {"MEM"}
    for step in range(STEPS):
        read(cluster, f"cold{step}")
        read(cluster, "hot")
    # The coldest is gone, warmer data is on SSD, the newest in RAM, and hot data is where it was.
    until(lambda: 100 not in cached(cluster)["cold0"], cluster)
    assert "SSD" in levels(cluster, "cold*")
    assert "MEM" in levels(cluster, f"cold{step}")
    until(lambda: set(levels(cluster, "hot")) == {"MEM"}, cluster)
    found = cached(cluster)
    assert set(found["pinned"]) == {100}
    assert set(found["hot"]) == {100}
    assert set(found[f"cold{step}"]) == {100}
