"""A hostile tenant in its own volume, on real FUSE and Alluxio: no name, link or attribute reaches beyond it.

What the engine refuses is the tenant's own loss; files of others are pushed and verified all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from avactl.daemons.cache.alluxio.client import MARK
from avactl.daemons.cache.writeback import release
from tests.cache.mounted.conftest import VOLUME
from tests.cache.world import World
from tools.alluxio.fuse import Fuse
from tools.alluxio.tiers import objects
from tools.objectstore import ObjectStore

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]

SECRET = "written outside of the volume"
NAMES: list[str | bytes] = [
    "line\nbreak",
    b"\xff\xfe not UTF-8 \xc0\x80",
    "\N{GRINNING FACE}",
    "\u202ertl",
    "\x1b[2J\x07",
    "back\\slash",
    "a:b",
    "s3:",
    "%2e%2e%2fother",
    "...",
    " ",
    "-rf",
    "n" * 255,
    "::error::x",
    "##vso[task.setvariable]x",
    "$(touch pwned)",
    "`id`;&|",
    "a?b*c#d",
    "replaced",
    "tier.json",
]


def is_pushed(world: World, path: str) -> bool:
    """Return True if a file is verified to be in its store."""
    return release.is_clean(world.engine(lambda engine: engine.status(path)))


def attempt(action: Callable[[], object]) -> bool:
    """Do something that the volume may refuse; return True if it does not."""
    try:
        action()
    except (OSError, ValueError):
        return False
    return True


def hostile(folder: Path, outside: Path) -> list[str]:
    """Fill a directory with names, links and attributes; return what the volume took."""
    made: list[str] = []

    def note(name: str, action: Callable[[], object]) -> None:
        if attempt(action):
            made.append(name)

    for number, name in enumerate(NAMES):
        path = folder / os.fsdecode(name)
        note(f"name {number}", partial(path.write_bytes, b"hostile"))
    for number, target in enumerate([outside / "secret", outside, Path("../../../../etc/passwd"), Path("loop3")]):
        note(f"link {number}", partial((folder / f"loop{number}").symlink_to, target))
        note(f"write by link {number}", partial((folder / f"loop{number}" / "x").write_bytes, b"hostile"))
    plain = folder / "plain"
    plain.write_bytes(b"hostile")
    note("hard link", lambda: os.link(plain, folder / "hard"))
    note("hard link outside", lambda: os.link(outside / "secret", folder / "hard-secret"))
    for name in (MARK, f"user.{MARK}", "trusted.x", "user." + "n" * 250):
        for value in (release.BEGUN, b"v2 1 7 " + b"0" * 64 + b" " + b"0" * 32, b"x" * 70_000):
            note(f"attribute {name} {len(value)}", partial(os.setxattr, plain, name, value))
    deep = folder.joinpath(*["deep"] * 60)
    note("deep", lambda: deep.mkdir(parents=True))
    note("deep file", lambda: (deep / "file").write_bytes(b"hostile"))
    trash = folder / release.TRASH / "1" / ".." / "2"
    note("trash", lambda: (folder / release.TRASH / "7").mkdir(parents=True))
    note("trash file", lambda: (folder / release.TRASH / "7" / "x").write_bytes(b"hostile"))
    note("dots", lambda: trash.mkdir(parents=True))
    many = folder / "many"
    many.mkdir()
    for number in range(200):
        note("many", (many / f"f{number}").touch)
    for kind in (lambda: os.mkfifo(folder / "fifo"), lambda: os.mknod(folder / "device", 0o20666, os.makedev(1, 5))):
        note("special", kind)
    note("far times", lambda: os.utime(plain, (2**40, 2**40)))
    return made


@contextlib.contextmanager
def renaming(folder: Path) -> Iterator[list[int]]:
    """Rename and rewrite a file all the time."""
    ended, turns = threading.Event(), [0]
    (folder / "turn0").write_bytes(b"hostile")

    def run() -> None:
        while not ended.wait(0.05):
            attempt(lambda: (folder / f"turn{turns[0] % 2}").rename(folder / f"turn{(turns[0] + 1) % 2}"))
            turns[0] += 1
            if turns[0] % 10 == 0:
                attempt(lambda: (folder / f"new{turns[0] % 20}").write_bytes(b"hostile" * turns[0]))
                attempt((folder / f"new{(turns[0] + 10) % 20}").unlink)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
    finally:
        ended.set()
        thread.join()


def test_a_hostile_volume_harms_nobody_else(world: World, fuse: Fuse, store: ObjectStore, tmp_path: Path) -> None:
    tier = json.loads(objects()["ConfigMap", "tier.write"]["data"]["tier.json"])
    tier["masters"] = world.cluster.masters
    tier["writeBack"]["push"]["delaySeconds"] = tier["writeBack"]["settleSeconds"] = 1
    world.config("tier.write", "cache-tier", tier)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    volume = fuse.pod_with(VOLUME)
    folder, honest = volume / "hostile", volume / "honest"
    folder.mkdir()
    honest.mkdir()
    made = hostile(folder, outside)
    assert len(made) > 200, made
    world.start()
    with renaming(folder) as turns:
        for number in range(3):
            (honest / f"f{number}").write_bytes(b"honest" * 1000)
            path = f"/results/vision/honest/f{number}"
            world.wait(partial(is_pushed, world, path))
        world.wait(lambda: turns[0] > 20)
    time.sleep(3)  # for what the daemon does with the others
    (honest / "last").write_bytes(b"honest")
    world.wait(partial(is_pushed, world, "/results/vision/honest/last"))
    assert (honest / "f0").read_bytes() == b"honest" * 1000
    assert [each.name for each in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == SECRET
    keys = {
        (bucket, each["Key"])
        for bucket in ("ava-results", "ava-write")
        for each in store.client().list_objects_v2(Bucket=bucket).get("Contents", ())
    }
    assert [key for _, key in keys if not key.startswith("vision/")] == []
    assert {("ava-results", f"vision/honest/f{number}") for number in range(3)} < keys
    bodies = [store.client().get_object(Bucket=bucket, Key=key)["Body"].read() for bucket, key in keys]
    assert not any(SECRET.encode() in body for body in bodies)
    status = world.status()["tiers"]["write"]
    assert all(str(status.get(name, "")).isprintable() for name in ("error", "pushError"))
    assert "Traceback" not in world.log.read_text()
