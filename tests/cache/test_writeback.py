"""Write-back with a real Alluxio to a real S3 endpoint; a directory is Ceph."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from avactl.contracts.cache import TierConfig, TierStatus
from avactl.contracts.document import load
from avactl.daemons.cache.engine import CachedFile, CacheEngine, EngineError
from avactl.daemons.cache.writeback import release
from avactl.daemons.cache.writeback.push import Flush, WriteBackTask
from tests.cache.world import World, content
from tools.alluxio.tiers import ROOT
from tools.objectstore import Faults, ObjectStore

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]
CEPH: dict[str, Any] = {"targets": {"/ceph": "/results"}, "settleSeconds": 1}
EVICT = {"evict": True, "mountedByPods": False}
ASYNC: dict[str, Any] = {"targets": {}, "settleSeconds": 1}
NEVER = {"high": 1.0, "low": 0.9, "delaySeconds": 86_400}


def write(
    world: World, folder: Path, directory: str, sizes: list[int], kind: str = "ASYNC_THROUGH"
) -> dict[str, bytes]:
    """Write files through the engine's own client; return their content by name."""
    source = folder / directory.strip("/").replace("/", "-")
    source.mkdir()
    files = {f"{number:03}": content(f"{directory}/{number}", size) for number, size in enumerate(sizes)}
    for name, data in files.items():
        (source / name).write_bytes(data)
    world.cluster.fs("copyFromLocal", f"-Dalluxio.user.file.writetype.default={kind}", str(source), directory)
    return files


def stored(store: ObjectStore, prefix: str) -> dict[str, bytes]:
    client = store.client()
    found = client.list_objects_v2(Bucket="cache-results", Prefix=f"{prefix}/").get("Contents", [])
    keys = [each["Key"] for each in found if not each["Key"].endswith("/")]
    return {key.rpartition("/")[2]: client.get_object(Bucket="cache-results", Key=key)["Body"].read() for key in keys}


def facts(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.status().get("tiers", {}).get("tier", {})
    return found


def listed(world: World, path: str) -> list[CachedFile]:
    async def files(engine: CacheEngine) -> list[CachedFile]:
        return [file async for file in engine.files(path)]

    return world.engine(files)


def dirty(world: World, path: str) -> list[CachedFile]:
    """Files of other tests too: the cluster is that of all of them."""
    return [file for file in listed(world, path) if not release.is_clean(file) and (file.pinned or not file.persisted)]


def files_below(folder: Path) -> list[Path]:
    """Return files while the daemon deletes some, and their directories."""
    return [Path(place) / name for place, _, names in os.walk(folder) for name in names]


def test_a_flush_returns_when_all_files_are_verified(world: World, object_store: ObjectStore, tmp_path: Path) -> None:
    others = dirty(world, "/results")
    files = write(world, tmp_path, "/results/flushed", [0, 10, 1_300_000])
    world.tier(role="write", writeBack={**ASYNC, "push": NEVER})
    world.start()
    world.wait(lambda: facts(world).get("dirtyFiles") == len(others) + 3)
    world.wait(lambda: all(file.pinned for file in listed(world, "/results/flushed")))
    assert stored(object_store, "flushed") == {}
    assert facts(world)["dirtyBytes"] == sum(file.size for file in others) + 1_300_010
    done = world.command("flush", "tier:/results/flushed")
    assert (done.returncode, done.stdout) == (0, "tier:/results/flushed: all files are in the object store\n")
    assert stored(object_store, "flushed") == files
    after = listed(world, "/results/flushed")
    assert all(release.is_clean(file) and not file.pinned for file in after)
    # The same by a path as pods on a machine see it.
    files = write(world, tmp_path, "/results/fused", [20, 30])
    done = world.command("flush", "/mnt/avactl/tier/results/fused")
    assert (done.returncode, done.stdout) == (0, "/mnt/avactl/tier/results/fused: all files are in the object store\n")
    assert stored(object_store, "fused") == files
    assert [
        each["metadata"]["name"]
        for each in world.kube.list("v1", "ConfigMap", world.namespace)
        if each["metadata"]["name"].startswith("flush-")
    ] == []


def test_what_the_store_got_wrong_is_not_clean(world: World, object_store: ObjectStore, tmp_path: Path) -> None:
    files = write(world, tmp_path, "/ceph/wrong", [1_300_000, 20], "CACHE_THROUGH")
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}})

    def broken(kind: str) -> int:
        return object_store.traffic.faults[kind]

    for kind, faults in (("corrupt", Faults(corrupt=1.0)), ("error", Faults(errors=1.0)), ("cut", Faults(cuts=1.0))):
        object_store.faults = replace(faults, methods=frozenset({"PUT", "GET"}))
        if kind == "corrupt":
            world.start()
        world.wait(partial(lambda kind, before: broken(kind) >= before + 4, kind, broken(kind)))
        world.wait(lambda: "pushError" in facts(world))
        assert facts(world)["dirtyFiles"] == 2
        assert not any(release.is_clean(file) for file in listed(world, "/ceph/wrong"))
    object_store.faults = Faults()
    world.wait(lambda: facts(world)["dirtyFiles"] == 0)
    assert stored(object_store, "wrong") == files
    assert all(release.is_clean(file) for file in listed(world, "/ceph/wrong"))


class Late:
    """An engine whose lists are those of its first look."""

    def __init__(self, engine: CacheEngine) -> None:
        self._engine = engine
        self._lists: dict[str, list[CachedFile]] = {}
        self.persisted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def files(self, path: str, refresh: bool = False) -> AsyncIterator[CachedFile]:
        if path not in self._lists:
            self._lists[path] = [file async for file in self._engine.files(path, refresh)]
        for file in self._lists[path]:
            yield file

    async def persist(self, path: str) -> None:
        self.persisted.append(path)
        await self._engine.persist(path)


def test_what_a_push_has_released_is_not_pushed_again(world: World, object_store: ObjectStore, tmp_path: Path) -> None:
    """A list can be older than the push that it overlaps with. A push that fails deletes the object."""
    files = write(world, tmp_path, "/results/again", [100, 200])
    parsed = load(TierConfig, json.dumps(world.tier(role="write", writeBack={**ASYNC, "push": NEVER})))
    assert parsed.write_back is not None
    settings = parsed.write_back

    async def run(engine: CacheEngine) -> list[str]:
        late: Any = Late(engine)
        flushes = [Flush("now", "/results/again")]
        task = WriteBackTask(late, parsed, settings, TierStatus(), lambda: flushes, lambda: True)
        while not all([release.is_clean(await engine.status(f"/results/again/{name}")) for name in files]):
            await task.tick()
        for _ in range(20):
            await task.tick()
            await asyncio.sleep(0.1)
        await task.close()
        persisted: list[str] = late.persisted
        return persisted

    assert sorted(world.engine(run)) == ["/results/again/000", "/results/again/001"]
    assert stored(object_store, "again") == files
    assert all(file.persisted for file in listed(world, "/results/again"))


class Abandoned:
    """An engine whose first upload is lost for the daemon, and ended by the worker later."""

    def __init__(self, engine: CacheEngine) -> None:
        self._engine = engine
        self._begun, self._end = asyncio.Event(), asyncio.Event()
        self._first: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def write_store(self, url: str, mount: int, chunks: AsyncIterator[bytes]) -> None:
        if self._first is not None:
            return await self._engine.write_store(url, mount, chunks)
        self._first = asyncio.ensure_future(self._engine.write_store(url, mount, self._part()))
        await self._begun.wait()
        raise EngineError("the daemon has lost the worker")

    async def _part(self) -> AsyncIterator[bytes]:
        yield b"a part"
        self._begun.set()
        await self._end.wait()
        raise EngineError("the daemon is gone")

    async def end(self) -> None:
        """Let the worker notice that its client is gone: it closes the object, and deletes it."""
        self._end.set()
        assert self._first is not None
        with suppress(EngineError):
            await self._first


@pytest.mark.parametrize("restarted", [False, True])
def test_an_upload_that_ends_late_loses_nothing(
    world: World, object_store: ObjectStore, tmp_path: Path, ceph: Path, restarted: bool
) -> None:
    directory = f"late-{restarted}"
    files = write(world, tmp_path, f"/ceph/{directory}", [100, 200], "CACHE_THROUGH")
    pushed, copy = {"000": files["000"]}, ceph / directory / "000"
    back = {**CEPH, **EVICT, "push": NEVER}
    parsed = load(TierConfig, json.dumps(world.tier(role="write", writeBack=back)))
    assert parsed.write_back is not None
    settings = parsed.write_back
    facts = TierStatus()

    def task(engine: Any, settle: float) -> WriteBackTask:
        waits = settings.model_copy(update={"settle_seconds": settle})
        flushes = [Flush("", f"/ceph/{directory}/000")]
        return WriteBackTask(engine, parsed, waits, facts, lambda: flushes, lambda: True)

    async def run(engine: CacheEngine) -> None:
        async with asyncio.timeout(300):
            await lose(engine)

    async def lose(engine: CacheEngine) -> None:
        late: Any = Abandoned(engine)
        writer = task(late, 3_600)
        while facts.settling_files != 1:
            await writer.tick()
            await asyncio.sleep(0.1)
            if restarted and facts.push_error:
                await writer.close()
                facts.settling_files, facts.push_error = 0, ""
                writer = task(late, 3_600)
        # The second upload was whole, but the file is not released.
        assert stored(object_store, directory) == pushed
        deleted = object_store.traffic.requests["DELETE"]
        await late.end()
        while object_store.traffic.requests["DELETE"] == deleted:
            await asyncio.sleep(0.05)
        while stored(object_store, directory):
            await asyncio.sleep(0.05)
        await writer.tick()
        assert copy.exists()
        await writer.close()
        writer = task(engine, 0)
        while copy.exists():
            await writer.tick()
            await asyncio.sleep(0.1)
        await writer.close()

    world.engine(run)
    assert stored(object_store, directory) == pushed
    world.cluster.fs("rm", "-R", f"/ceph/{directory}")


def test_an_object_that_vanished_before_it_was_verified_is_written_again(
    world: World, object_store: ObjectStore, tmp_path: Path
) -> None:
    """The engine takes the file for persisted."""
    files = write(world, tmp_path, "/results/vanished", [100, 200])
    path = "/results/vanished/000"

    async def persist(engine: CacheEngine) -> None:
        await engine.pin(path, True)
        await engine.persist(path)
        while not (await engine.status(path)).persisted:
            await asyncio.sleep(0.1)

    world.engine(persist)
    object_store.client().delete_object(Bucket="cache-results", Key="vanished/000")
    world.tier(role="write", writeBack={**ASYNC, "push": {**NEVER, "delaySeconds": 0}})
    world.start()
    world.wait(lambda: stored(object_store, "vanished") == files)
    world.wait(lambda: all(release.is_clean(file) for file in listed(world, "/results/vanished")))
    assert stored(object_store, "vanished") == files


@pytest.mark.parametrize("refresh", [False, True])
def test_what_the_engine_finds_never_expires(world: World, object_store: ObjectStore, refresh: bool) -> None:
    """The master deletes what has expired, in the store too."""
    directory = f"lasting-{refresh}"
    for name in "one", "two", "three":
        object_store.client().put_object(Bucket="cache-results", Key=f"{directory}/{name}/file", Body=b"data")

    async def look(engine: CacheEngine) -> None:
        await engine.status(f"/results/{directory}/one/file", refresh)
        assert [file.path async for file in engine.files(f"/results/{directory}/two", refresh)] != []
        await engine.make_directory(f"/results/{directory}/three/made")
        assert [file.path async for file in engine.files(f"/results/{directory}", refresh)] != []

    world.engine(look)
    for path in "", "/one", "/one/file", "/two", "/two/file", "/three", "/three/made":
        assert "ttl=-1," in world.cluster.fs("stat", f"/results/{directory}{path}")


def test_clean_files_leave_ceph_and_replaced_ones_stay(
    world: World, object_store: ObjectStore, tmp_path: Path, ceph: Path
) -> None:
    files = write(world, tmp_path, "/ceph/evicted", [1_300_000, 20], "CACHE_THROUGH")
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}, **EVICT})
    world.start()
    world.wait(lambda: listed(world, "/ceph/evicted") == [])
    assert stored(object_store, "evicted") == files
    world.wait(lambda: files_below(ceph) == [])  # a file leaves its path before it is deleted
    # The engine's namespace shows them at the store.
    assert sorted(file.path for file in listed(world, "/results/evicted")) == [
        "/results/evicted/000",
        "/results/evicted/001",
    ]


@pytest.mark.parametrize("directory", [False, True])
def test_what_was_renamed_after_its_push_is_pushed_again(
    world: World, object_store: ObjectStore, tmp_path: Path, directory: bool
) -> None:
    """It keeps its id and attributes, and the object store has it under its old name."""
    name = f"moved-{directory}"
    files = write(world, tmp_path, f"/ceph/{name}", [1_300_000, 20], "CACHE_THROUGH")
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}})
    world.start()
    world.wait(lambda: all(release.is_clean(file) for file in listed(world, f"/ceph/{name}")))
    if directory:
        world.cluster.fs("mv", f"/ceph/{name}", f"/ceph/{name}-to")
    else:
        world.cluster.fs("mkdir", f"/ceph/{name}-to")
        for each in files:
            world.cluster.fs("mv", f"/ceph/{name}/{each}", f"/ceph/{name}-to/{each}")
    done = world.command("flush", f"tier:/ceph/{name}-to")
    assert done.returncode == 0, done.stderr
    assert stored(object_store, f"{name}-to") == files


def test_files_stay_at_their_path_if_the_compiler_does_not_say_what_pods_mount(
    world: World, object_store: ObjectStore, tmp_path: Path, ceph: Path
) -> None:
    """Compilers before `mountedByPods` wrote `evict` for tiers with buckets of teams. A daemon of that time was killed
    while it moved the first file away.
    """
    files = write(world, tmp_path, "/ceph/stays", [100, 1_300_000], "CACHE_THROUGH")

    async def set_aside(engine: CacheEngine) -> None:
        file = await engine.status("/ceph/stays/000")
        await engine.mark(file.path, f"v1 {file.id} {file.size} {hashlib.sha256(files['000']).hexdigest()}".encode())
        await engine.make_directory(f"/ceph/{release.TRASH}/{file.id}/stays")
        await engine.rename(file.path, f"/ceph/{release.TRASH}/{file.id}/stays/000")

    world.engine(set_aside)
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}, "evict": True})
    world.start()
    world.wait(lambda: stored(object_store, "stays") == files)
    assert "evict: refused" in facts(world)["error"]
    world.wait(lambda: len(found := listed(world, "/ceph/stays")) == 2 and all(map(release.is_clean, found)))
    for _ in range(10):
        assert {each.name: each.read_bytes() for each in (ceph / "stays").iterdir()} == files
        time.sleep(0.3)


def test_what_a_dead_master_had_renamed_is_pushed(
    world: World, object_store: ObjectStore, tmp_path: Path, ceph: Path
) -> None:
    """It died after the rename in its under-store, of a verified file and of one that was put back."""
    files = write(world, tmp_path, "/ceph/renamed", [100, 200], "CACHE_THROUGH")
    moved = ceph / release.TRASH

    async def renames(engine: CacheEngine) -> None:
        verified, back = [await engine.status(f"/ceph/renamed/{name}") for name in sorted(files)]
        await engine.mark(verified.path, release.Mark.of(verified, "sum").encode())
        (moved / str(verified.id) / "renamed").mkdir(parents=True)
        (ceph / "renamed" / "000").rename(moved / str(verified.id) / "renamed" / "000")
        aside = f"/ceph/{release.TRASH}/{back.id + 1}/renamed"
        await engine.make_directory(aside)
        await engine.rename(back.path, f"{aside}/001")
        (moved / str(back.id + 1) / "renamed" / "001").rename(ceph / "renamed" / "001")

    world.engine(renames)
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}, **EVICT})
    world.start()
    world.wait(lambda: stored(object_store, "renamed") == files)
    world.wait(lambda: not [each for each in files_below(ceph) if "renamed" in each.parts])
    world.wait(lambda: "pushError" not in facts(world))
    assert stored(object_store, "renamed") == files


def test_what_a_dead_daemon_had_set_aside_is_pushed_or_deleted(
    world: World, object_store: ObjectStore, tmp_path: Path, ceph: Path
) -> None:
    """It died after a rename: of the file that it had verified, of one that its writer had replaced, and of one that
    cannot go back, because there is another.
    """
    files = write(world, tmp_path, "/ceph/aside", [100, 200, 300], "CACHE_THROUGH")

    async def died(engine: CacheEngine) -> None:
        for number in range(3):
            path = f"/ceph/aside/00{number}"
            file = await engine.status(path)
            if not number:
                await engine.mark(path, release.Mark.of(file, "0").encode())
            aside = f"/ceph/{release.TRASH}/{file.id + number}"
            await engine.make_directory(f"{aside}/aside")
            await engine.rename(path, f"{aside}/aside/00{number}")

    world.engine(died)
    (tmp_path / "newer").write_bytes(b"newer")
    world.cluster.fs("copyFromLocal", str(tmp_path / "newer"), "/ceph/aside/002")
    world.tier(role="write", writeBack={**CEPH, "push": {**NEVER, "delaySeconds": 0}, **EVICT})
    world.start()
    world.wait(lambda: set(stored(object_store, "aside")) == {"001", "002"})
    # A file leaves its path before it is deleted.
    world.wait(lambda: listed(world, "/ceph/aside") == [] and len(files_below(ceph / release.TRASH)) == 1)
    # Nobody has verified the last one, and it does not come back for the newer one.
    (left,) = files_below(ceph / release.TRASH)
    assert left.parent.name == release.REPLACED
    assert left.read_bytes() == files["002"]
    assert stored(object_store, "aside") == {"001": files["001"], "002": b"newer"}
    world.cluster.fs("rm", "-R", f"/ceph/{release.TRASH}")


def test_the_oldest_are_pushed_until_the_low_mark(world: World, object_store: ObjectStore, tmp_path: Path) -> None:
    size = 4_000_000
    files = write(world, tmp_path, "/ceph/marks", [size] * 12, "CACHE_THROUGH")
    world.tier(role="write", writeBack={**CEPH, "push": {"high": 0.3, "low": 0.2, "delaySeconds": 86_400}})
    world.start()
    # 48 of 134 MB are above the high mark; 26.8 MB are the low one.
    # The first look may come before the capacity is known.
    world.wait(lambda: facts(world).get("dirtyBytes", 0) < 48_000_000 and not facts(world).get("pushing", True))
    # The mount is that of all tests: what another left there is newer, or cannot be pushed.
    others = [file for file in listed(world, "/ceph") if not file.path.startswith("/ceph/marks/")]
    left = sum(file.size for file in others if not release.is_clean(file) and f"/{release.TRASH}/" not in file.path)
    assert facts(world)["dirtyBytes"] == 6 * size + left, others
    pushed = stored(object_store, "marks")
    assert all(files[name] == data for name, data in pushed.items())
    states = {file.path[-3:]: file for file in listed(world, "/ceph/marks")}
    clean = {name for name, file in states.items() if release.is_clean(file)}
    assert len(clean) == 6
    assert max(states[name].created for name in clean) <= min(
        file.created for name, file in states.items() if name not in clean
    )


def test_nothing_dirty_is_let_go(world: World, tmp_path: Path) -> None:
    write(world, tmp_path, "/ceph/dirty", [100, 100], "CACHE_THROUGH")

    async def attempts(engine: CacheEngine) -> int:
        path, refused = "/ceph/dirty/000", 0
        file = await engine.status(path)
        marks = [
            release.Mark.of(replace(file, **other), "0").encode() for other in ({"id": 1}, {"path": "/ceph/other"})
        ]
        for mark in (b"", b"x", f"v1 {file.id} {file.size} 0".encode(), *marks):
            await engine.mark(path, mark)
            for action in (release.free, release.unpin):
                with pytest.raises(EngineError, match="not verified"):
                    await action(engine, path)
                refused += 1
            with pytest.raises(EngineError, match="not verified"):
                await release.delete_durable(engine, path, "/ceph")
        assert (await engine.status(path)).cached == 100
        return refused

    assert world.engine(attempts) == 10


def test_only_one_module_lets_go_of_data() -> None:
    found = set()
    for path in (ROOT / "avactl" / "daemons" / "cache").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                engine = ast.unparse(node.func.value).split(".")[-1].strip("_") == "engine"
                unpins = node.func.attr == "pin" and "True" not in map(ast.unparse, node.args)
                if engine and (node.func.attr in ("free", "delete", "rename") or unpins):
                    found.add(path.name)
    assert found == {"release.py"}


def test_a_damaged_cached_copy_is_read_from_the_durable_one(world: World, tmp_path: Path) -> None:
    (data,) = write(world, tmp_path, "/ceph/damaged", [1_300_000], "CACHE_THROUGH").values()
    (file,) = listed(world, "/ceph/damaged")
    workers = [world.cluster.directory(f"worker-{number}", "/cache/mem") for number in range(2)]
    copies = [folder / "alluxioworker" / str(block.id) for folder in workers for block in file.blocks]
    held = [copy for copy in copies if copy.exists()]
    assert held
    for copy in held:
        os.truncate(copy, copy.stat().st_size // 2)

    async def read(engine: CacheEngine) -> bytes:
        return b"".join([chunk async for chunk in engine.read(file)])

    # Which worker reads from the under-store is chance, and one of the two has the damaged copy.
    assert [world.engine(read) == data for _ in range(10)] == [True] * 10
