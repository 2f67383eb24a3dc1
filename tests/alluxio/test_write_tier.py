"""The write tier of examples/ava on real processes, and its FUSE mount."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tools.alluxio import Alluxio
from tools.alluxio.fuse import Fuse, require_libfuse
from tools.alluxio.tiers import MIB, Tier, complaints, objects, running
from tools.objectstore import ObjectStore
from tools.waiting import wait_until

pytestmark = pytest.mark.xdist_group("alluxio")

TIER = Tier("write")
MEM = 64 * MIB  # of each worker
PATIENCE = 180.0  # seconds
DEAD = 5.0  # seconds: the kernel's answers have expired, and the volumes' container has looked
MISSPELT = "alluxio.no.such.property"
VOLUME = objects()["PersistentVolume", "ads-bucket-results"]["spec"]["hostPath"]["path"]
OTHER = objects()["PersistentVolume", "video-bucket-results"]["spec"]["hostPath"]["path"]
T = TypeVar("T")


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
    require_libfuse()
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


def wait(what: Callable[[], T]) -> T:
    """Return the first true value; a mount that is gone is none."""

    def found() -> T | None:
        try:
            return what()
        except OSError:
            return None

    return wait_until(found, timeout=PATIENCE)


def test_pods_see_their_volumes_again_after_fuse_was_killed(cluster: Alluxio, fuse: Fuse, store: ObjectStore) -> None:
    cluster.fs("mkdir", "/results/ads")
    fuse.keep_volumes()
    pod = fuse.pod_with(VOLUME)
    checkpoint = b"c" * 2_000_000
    (pod / "checkpoint").write_bytes(checkpoint)
    assert (fuse.path / "results" / "ads" / "checkpoint").read_bytes() == checkpoint
    for _ in range(2):
        fuse.kill()
        assert not fuse.mounted(pod)
        # The volumes' container looks for the directories that are not there yet, but not in a process that has ended.
        time.sleep(DEAD)
        fuse.start()
        assert wait((pod / "checkpoint").read_bytes) == checkpoint
        # One that starts after it sees the next one, too.
        later = fuse.pod_with(VOLUME)
        assert wait((later / "checkpoint").read_bytes) == checkpoint
        pod, first = later, pod
        assert (first / "checkpoint").read_bytes() == checkpoint
    (first / "later").write_bytes(b"l" * 1000)
    stored = wait(lambda: store.client().list_objects_v2(Bucket="ava-write", Prefix="ads/later").get("Contents"))
    assert [each["Size"] for each in stored] == [1000]


def test_a_volume_that_no_spec_has_ends_with_its_fuse_process(cluster: Alluxio, fuse: Fuse) -> None:
    cluster.fs("mkdir", "/results/video")
    fuse.keep_volumes()
    wait(fuse.volume(VOLUME).is_dir)
    wait(fuse.volume(OTHER).is_dir)
    listed = fuse.volumes.read_text()
    line = next(line for line in listed.splitlines() if line.endswith(" /results/ads"))
    fuse.volumes.write_text(listed.replace(f"{line}\n", ""))
    assert fuse.volume(VOLUME).is_dir()
    fuse.kill()
    fuse.start()
    wait(fuse.volume(OTHER).is_dir)
    with pytest.raises(OSError, match="not connected"):
        fuse.volume(VOLUME).stat()
    fuse.volumes.write_text(listed)
    wait(fuse.volume(VOLUME).is_dir)
    assert (fuse.path / "results" / "ads").is_dir()


def test_pods_that_start_have_their_volumes_whatever_was_asked_of_an_ended_fuse(cluster: Alluxio, fuse: Fuse) -> None:
    """The kernel forgets the directory then, and mounts nothing over it any more."""
    fuse.keep_volumes()
    cluster.fs("mkdir", "/results/ads/kept")
    assert (fuse.pod_with(VOLUME) / "kept").is_dir()
    fuse.kill()
    time.sleep(DEAD)
    with pytest.raises(OSError, match="not connected"):
        (fuse.path / "results" / "ads" / "kept").stat()
    fuse.start()
    wait(fuse.volume(VOLUME).is_dir)
    assert (fuse.pod_with(VOLUME) / "kept").is_dir()
    assert "start them anew" in cluster.log("volumes").read_text()


def test_a_fuse_process_that_hangs_is_found(cluster: Alluxio, fuse: Fuse) -> None:
    def healthy() -> bool:
        return fuse.run("/config/health.sh").returncode == 0

    assert healthy()
    with fuse.frozen():
        # Not while no master answers: it would be no better after a restart.
        done = fuse.run("/config/health.sh")
        assert (done.returncode, done.stdout) == (1, "no answer in 1 s\n")
    assert healthy()
    fuse.kill()
    assert not healthy()
    fuse.start()
    assert healthy()
