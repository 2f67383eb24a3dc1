"""The write tier of examples/ava, with a volume of one of its teams on real FUSE. One for each test module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache.world import World
from tools.alluxio import Alluxio
from tools.alluxio.fuse import Fuse, require_libfuse
from tools.alluxio.tiers import MIB, Tier, objects, running
from tools.controlplane import ControlPlane, KubeClient
from tools.objectstore import ObjectStore

TIER = Tier("write")
VOLUME = objects()["PersistentVolume", "vision-bucket-results"]["spec"]["hostPath"]["path"]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        for bucket in ("ava-results", "ava-write"):
            store.client().create_bucket(Bucket=bucket)
        yield store


@pytest.fixture(scope="module")
def cluster(alluxio_jars: None, store: ObjectStore) -> Iterator[Alluxio]:
    sizes = {"alluxio.worker.tieredstore.level0.dirs.quota": f"{64 * MIB}B"}
    with running(TIER, store, sizes) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def fuse(cluster: Alluxio) -> Fuse:
    require_libfuse()
    cluster.fs("mkdir", "/results/vision", "/results.pushed/vision")
    fuse = TIER.fuse(cluster)
    fuse.start()
    fuse.keep_volumes()
    return fuse


@pytest.fixture
def world(
    control_plane: ControlPlane, kube: KubeClient, namespace: str, cluster: Alluxio, tmp_path: Path
) -> Iterator[World]:
    world = World(control_plane, kube, namespace, cluster, tmp_path)
    yield world
    world.stop()
