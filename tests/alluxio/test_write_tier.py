"""The write tier of examples/ava on real processes, and its FUSE mount."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.alluxio import Alluxio
from tools.alluxio.fuse import Fuse, require_fuse
from tools.alluxio.tiers import MIB, Tier, complaints, running
from tools.controlplane import UnavailableError
from tools.objectstore import ObjectStore

pytestmark = pytest.mark.xdist_group("alluxio")

TIER = Tier("write")
MEM = 64 * MIB  # of each worker
PATIENCE = 60.0  # seconds
MISSPELT = "alluxio.no.such.property"


@pytest.fixture(scope="module")
def store(object_store: ObjectStore) -> ObjectStore:
    for bucket in ("ava-results", "ava-write"):
        object_store.client().create_bucket(Bucket=bucket)
    return object_store


@pytest.fixture(scope="module")
def cluster(alluxio_jars: None, store: ObjectStore) -> Iterator[Alluxio]:
    level = "alluxio.worker.tieredstore.level"
    sizes = {f"{level}0.dirs.quota": f"{MEM}B"}
    with running(TIER, store, sizes, options={"job-worker": [f"-D{MISSPELT}=1"]}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fuse(cluster: Alluxio) -> Fuse:
    try:
        require_fuse()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    fuse = TIER.fuse(cluster)
    fuse.start()
    return fuse


def test_the_processes_start_with_the_compiled_properties(cluster: Alluxio) -> None:
    text = cluster.fsadmin("report", "capacity")
    assert f"Tier: MEM  Size: {2 * MEM // MIB}.00MB" in text
    assert "Tier: SSD" not in text


def test_only_the_misspelt_property_is_in_the_logs(cluster: Alluxio) -> None:
    """So a log does tell of a property that Alluxio does not know."""
    found = complaints(cluster)
    assert set(found) == {"job-worker-0", "job-worker-1"}
    assert all(MISSPELT in line for lines in found.values() for line in lines)


def test_a_write_returns_when_the_store_has_it(cluster: Alluxio, store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"w" * 3_000_000)
    cluster.fs("copyFromLocal", str(tmp_path / "model"), "/results/model")
    reply = store.client().get_object(Bucket="ava-write", Key="model")
    assert reply["Body"].read() == b"w" * 3_000_000


def test_fuse_comes_back_after_a_kill(cluster: Alluxio, fuse: Fuse, store: ObjectStore) -> None:
    pod = fuse.pod()
    (fuse.path / "results" / "checkpoint").write_bytes(b"c" * 2_000_000)
    assert (pod / "results" / "checkpoint").read_bytes() == b"c" * 2_000_000
    fuse.kill()
    assert not fuse.mounted(pod)
    fuse.start()
    assert (fuse.path / "results" / "checkpoint").read_bytes() == b"c" * 2_000_000
    assert (pod / "results" / "checkpoint").read_bytes() == b"c" * 2_000_000
    (pod / "results" / "later").write_bytes(b"l" * 1000)
    deadline = time.monotonic() + PATIENCE
    while not (objects := store.client().list_objects_v2(Bucket="ava-write", Prefix="later").get("Contents")):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert [each["Size"] for each in objects] == [1000]
