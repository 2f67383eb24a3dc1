"""One Alluxio for all tests of the cache daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache.world import World, alluxio
from tools.alluxio import Alluxio
from tools.controlplane import ControlPlane, KubeClient
from tools.objectstore import Faults, ObjectStore


@pytest.fixture(scope="session")
def ceph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that stands for Ceph."""
    return tmp_path_factory.mktemp("ceph")


@pytest.fixture(scope="session")
def tier_cluster(alluxio_jars: None, object_store: ObjectStore, ceph: Path) -> Iterator[Alluxio]:
    """The cluster of the session."""
    with alluxio(object_store, ceph) as cluster:
        yield cluster


@pytest.fixture
def world(
    control_plane: ControlPlane,
    kube: KubeClient,
    namespace: str,
    tier_cluster: Alluxio,
    object_store: ObjectStore,
    tmp_path: Path,
) -> Iterator[World]:
    """A namespace, and no daemon so far."""
    world = World(control_plane, kube, namespace, tier_cluster, tmp_path)
    yield world
    world.stop()
    object_store.faults = Faults()
