"""A write tier loses nothing: whatever fails or dies, every file that its writer saw closed arrives in the store."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from avactl.daemons.cache.engine import CacheEngine, EngineError
from tests.cache.storm import Witness, Writers, sizes
from tests.cache.world import World, alluxio
from tools.alluxio import Alluxio
from tools.alluxio.tiers import MIB
from tools.controlplane import ControlPlane, KubeClient, StartError
from tools.objectstore import Faults, ObjectStore

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]

QUOTA = 24 * MIB  # of each worker: a part of what is written
DURABLE = 8_000_000  # bytes: the capacity of the durable store, as the spec says it
PATIENCE = 300.0  # seconds
SETTLE = 60  # seconds: more than hangs of `patience`, four attempts each, for a part, its end and the delete
PUSH = {"high": 0.5, "low": 0.2, "delaySeconds": 3}
WRITES = ("/ceph/durable", "CACHE_THROUGH"), ("/results/async", "ASYNC_THROUGH")
BREAKS = (
    Faults(errors=0.4),
    Faults(cuts=0.4),
    Faults(corrupt=0.4, methods=frozenset({"PUT", "GET"})),
    Faults(hangs=0.2, patience=8.0),
    Faults(errors=1.0, methods=frozenset({"PUT", "POST"})),
    Faults(latency=0.05, rate=2_000_000, errors=0.1, cuts=0.1, corrupt=0.1, hangs=0.05, patience=8.0),
)
VICTIMS = (
    ("daemon",),
    ("worker-0",),
    ("worker-1",),
    ("master-0",),
    ("job-master-0",),
    ("worker-0", "job-worker-0"),
    ("worker-1", "job-worker-1"),
    ("master-0", "job-master-0"),
    ("daemon", "worker-0"),
    ("daemon", "master-0"),
)
"""What is killed at once.

Data that is not persisted is on both workers. A worker that starts evicts before the master has told it what must stay
(seen in Alluxio 2.9.4), so the next one is killed once there are two copies again.
"""


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """A store of its own: others must not have its faults."""
    with ObjectStore() as store:
        yield store


@pytest.fixture
def cluster(alluxio_jars: None, store: ObjectStore, ceph: Path) -> Iterator[Alluxio]:
    """A cluster of its own, which is killed."""
    with alluxio(store, ceph, QUOTA) as cluster:
        yield cluster


@pytest.fixture
def ceph(tmp_path: Path) -> Path:
    (tmp_path / "ceph").mkdir()
    return tmp_path / "ceph"


@pytest.fixture
def world(
    control_plane: ControlPlane, kube: KubeClient, namespace: str, cluster: Alluxio, tmp_path: Path
) -> Iterator[World]:
    """Two tiers on one cluster: `durable` writes to Ceph first, `async` to two workers."""
    world = World(control_plane, kube, namespace, cluster, tmp_path)
    stores = [{"mount": path, "url": f"s3://of{path}", "readOnly": False} for path in ("/results", "/ceph")]
    durable = {"targets": {"/ceph": "/results"}, "evict": True, "mountedByPods": False, "capacity": DURABLE}
    for name, mounted, back in (("durable", stores, durable), ("async", stores[:1], {})):
        world.config(
            name,
            "cache-tier",
            {
                "name": name,
                "engine": "alluxio",
                "role": "write",
                "masters": cluster.masters,
                "stores": mounted,
                "writeBack": {**back, "push": PUSH, "settleSeconds": SETTLE},
            },
        )
    yield world
    world.stop()


@pytest.mark.parametrize(
    ("count", "rounds", "seed"), [(24, 2, 1), pytest.param(2_000, 50, 2026, marks=pytest.mark.slow)]
)
def test_nothing_that_a_writer_closed_is_lost(
    world: World, store: ObjectStore, ceph: Path, tmp_path: Path, count: int, rounds: int, seed: int
) -> None:
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    (tmp_path / "sources").mkdir()
    with (
        Writers(world.cluster, tmp_path / "sources") as writers,
        Witness(lambda: writers.closed, world.cluster, ceph, store) as witness,
    ):
        world.start()
        wanted = sizes(chance, count)
        for number in range(rounds):
            store.faults = chance.choice(BREAKS)
            for index in range(count * number // rounds, count * (number + 1) // rounds):
                directory, kind = WRITES[index % 2]
                writers.write(f"{directory}/{index}", wanted[index], kind)
            for _ in range(chance.randint(1, 2)):
                # At any moment of writes and pushes.
                time.sleep(chance.random() * 5)
                victims = chance.choice(VICTIMS)
                if any(name.startswith("worker") for name in victims):
                    breaks, store.faults = store.faults, Faults()
                    world.wait(witness.whole)
                    store.faults = breaks
                kill(world, victims, killed)
            writers.kill()
            report(number, writers, witness, killed, store)
            assert witness.lost == {}
        store.faults = Faults()
        world.wait(lambda: not writers.open())
        assert len(writers.closed) == count
        # What a writer did not see closed may stay: the engine lists such a file as complete, and no worker has it.
        try:
            world.wait(lambda: all(witness.stored(file) for file in writers.closed))
        except AssertionError as error:
            missing = [file for file in writers.closed if not witness.stored(file)]
            error.add_note("\n".join(f"{witness.places(file)}; {known(world, file.path)}" for file in missing))
            raise
        if rounds > 2:
            # Takes `SETTLE`. Uploads that failed have ended by then, and what is in the store is all that is left.
            try:
                world.wait(lambda: not any(witness.durable(file) for file in writers.closed))
            except AssertionError as error:
                left = [file for file in writers.closed if witness.durable(file)]
                error.add_note("\n".join(f"{witness.places(file)}; {known(world, file.path)}" for file in left))
                raise
            assert [file for file in writers.closed if not witness.stored(file)] == []
        report(rounds, writers, witness, killed, store)
    assert witness.lost == {}
    assert witness.samples >= rounds


def known(world: World, path: str) -> str:
    """Describe what the engine knows of a path, for the message of a test that fails."""

    async def status(engine: CacheEngine) -> str:
        try:
            return repr(await engine.status(path))
        except EngineError as error:
            return repr(error)

    return world.engine(status)


def kill(world: World, names: tuple[str, ...], killed: Counter[str]) -> None:
    """Kill processes with SIGKILL, and start them again."""
    killed.update(names)
    for name in names:
        if name == "daemon":
            world.stop()
        else:
            world.cluster.kill(name)
    started = [name for name in names if name != "daemon"]
    try:
        world.cluster.start(*started)
    except StartError as error:
        # The engine's defect, of which docs/cache.md tells: a kubelet would do the same by the compiled probe.
        if "master-0 was not ready" not in str(error):
            raise
        print(str(error))
        killed["standby"] += 1
        world.cluster.kill("master-0")
        world.cluster.start("master-0")
    if "daemon" in names:
        world.start()


def report(number: int, writers: Writers, witness: Witness, killed: Counter[str], store: ObjectStore) -> None:
    """Print what happened so far: `pytest -s` shows it."""
    print(
        f"round {number}: closed {len(writers.closed)}, open {writers.open()}, refused {writers.failures.total()}; "
        f"looks {witness.looks} in {witness.samples} samples, lost {len(witness.lost)}; "
        f"killed {dict(killed)}; faults {dict(store.traffic.faults)}"
    )
