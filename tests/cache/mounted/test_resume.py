"""A job of examples/ava resumes from its checkpoint, whatever the write tier has done with it in the meantime.

Its volume on real FUSE, the compiled tier on real processes, and the daemon, which is killed; only times are shorter.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from avactl.daemons.cache.writeback import release
from tests.cache.mounted.conftest import VOLUME
from tests.cache.world import World
from tools.alluxio.fuse import Fuse
from tools.alluxio.tiers import ROOT, objects
from tools.objectstore import ObjectStore
from tools.waiting import wait_until

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]

BUCKET = "/buckets/results"
PUSHED = objects()["PersistentVolume", "vision-pushed-bucket-results"]["spec"]["hostPath"]["path"]
SECONDS = 1  # until a file is pushed, and until it has settled
SCRIPT = """
import hashlib, sys
import numpy as np
from avactl_worker.checkpoint import Checkpoints

folder, step = sys.argv[1], int(sys.argv[2])
weights = {"w": np.zeros(400_000)}
with Checkpoints(folder, keep=2, weights=weights) as checkpoints:
    print(checkpoints.restore(), weights["w"][0], hashlib.sha256(weights["w"].tobytes()).hexdigest())
    if step:
        weights["w"] = np.random.default_rng(step).random(400_000)
        weights["w"][0] = step
        checkpoints.save(step, wait=True)
        print(hashlib.sha256(weights["w"].tobytes()).hexdigest())
"""


def old(document: dict[str, Any]) -> dict[str, Any]:
    """`tier.json` as compilers before `mountedByPods` wrote it for the example."""
    return {**document, "writeBack": {**document["writeBack"], "evict": True}}


def compiled(document: dict[str, Any]) -> dict[str, Any]:
    """`tier.json` as it is."""
    return document


def folder_of(job: str) -> str:
    """Directory of a job's checkpoints below its bucket."""
    container = objects()["Job", f"{job}-worker"]["spec"]["template"]["spec"]["containers"][0]
    (value,) = (each["value"] for each in container["env"] if each["name"] == "AVACTL_CHECKPOINT_DIR")
    return str(value).removeprefix(f"{BUCKET}/")


def train(folder: Path, step: int = 0) -> list[str]:
    """Run a pod's process: it restores, and saves a step. Returns the words that it printed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(step)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "worker")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


class Witness:
    """Reads the newest checkpoint at its path, all the time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._expected = folder, ("", "")
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.missing: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def expect(self, step: int) -> bytes:
        """Look for a step from now on; returns the file."""
        path = self._folder / f"step-{step:012d}.ckpt"
        data = path.read_bytes()
        with self._lock:
            self._expected = str(path), hashlib.sha256(data).hexdigest()
        return data

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            with self._lock:
                path, checksum = self._expected
                if not path:
                    continue
                try:
                    same = hashlib.sha256(Path(path).read_bytes()).hexdigest() == checksum
                except OSError as error:
                    self.missing.append(f"{path}: {error}")
                    continue
            self.looks += 1
            if not same:
                self.missing.append(f"{path} has other bytes")


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("document", [compiled, old])
def test_a_job_resumes_while_its_checkpoints_are_pushed(
    world: World, fuse: Fuse, store: ObjectStore, document: Any, kills: int
) -> None:
    tier = document(json.loads(objects()["ConfigMap", "tier.write"]["data"]["tier.json"]))
    tier["masters"] = world.cluster.masters
    tier["writeBack"]["push"]["delaySeconds"] = tier["writeBack"]["settleSeconds"] = SECONDS
    world.config("tier.write", "cache-tier", tier)
    pod, chance = fuse.pod_with(VOLUME), random.Random(kills)
    below = f"{folder_of('resnet50')}-{document.__name__}-{kills}"
    folder, prefix = pod / below, f"vision/{below}"
    folder.mkdir(parents=True)
    saved, weights, data = 0, "", b""
    with Witness(folder) as witness:
        for number in range(kills):
            world.start()
            words = train(folder, 100 * (number + 1))
            assert (int(words[0]), float(words[1])) == (saved, saved)
            assert not weights or words[2] == weights
            saved, weights = 100 * (number + 1), words[3]
            data = witness.expect(saved)
            # At any moment: before, in and after the push of this one.
            time.sleep(chance.random() * 2 * SECONDS)
            world.stop()
            assert train(folder)[:3] == [str(saved), str(float(saved)), weights]
        world.forget_status()
        world.start()
        newest = f"{prefix}/step-{saved:012d}.ckpt"

        def clean() -> bool:
            found = world.engine(lambda engine: engine.status(f"/results/{newest}"))
            return release.is_clean(found)

        world.wait(clean)
        world.wait(lambda: world.status().get("tiers", {}).get("write", {}).get("dirtyFiles") == 0)
        time.sleep(2 * SECONDS)  # for what the daemon does with verified files
        assert train(folder)[:3] == [str(saved), str(float(saved)), weights]
    assert witness.missing == []
    assert witness.looks > kills
    assert sorted(each.name for each in folder.iterdir()) == [f"step-{saved - back:012d}.ckpt" for back in (100, 0)]
    body = store.client().get_object(Bucket="ava-results", Key=newest)["Body"].read()
    assert hashlib.sha256(body).hexdigest() == hashlib.sha256(data).hexdigest()
    # The copy in the object store is a file for pods, too.
    assert (fuse.pod_with(PUSHED) / below / folder.joinpath(newest).name).read_bytes() == data
    assert ("evict: refused" in world.status()["tiers"]["write"].get("error", "")) is (document is old)


def test_what_an_older_version_moved_is_copied_back(world: World, fuse: Fuse) -> None:
    """As docs/cache.md says it."""
    tier = old(json.loads(objects()["ConfigMap", "tier.write"]["data"]["tier.json"]))
    tier["masters"] = world.cluster.masters
    tier["writeBack"]["push"]["delaySeconds"] = tier["writeBack"]["settleSeconds"] = SECONDS
    world.config("tier.write", "cache-tier", tier)
    # The machine's mount, with both directories beside each other as pods have them.
    bucket, pushed = fuse.path / "results" / "vision", fuse.path / "results.pushed" / "vision"
    folder, path = bucket / "moved" / "resnet50", "/results/vision/moved/resnet50/step-000000000200.ckpt"
    world.start()
    weights = train(folder, 200)[3]
    world.wait(lambda: release.is_clean(world.engine(lambda engine: engine.status(path))))
    assert world.engine(lambda engine: release.delete_durable(engine, path, "/results"))
    wait_until(lambda: not any(folder.iterdir()))
    with pytest.raises(AssertionError, match=r"there is no checkpoint in .*: to resume, copy it back"):
        train(folder)
    (command,) = re.findall(r"^\$ (cp .*)$", (ROOT / "docs" / "cache.md").read_text(), re.MULTILINE)
    command = command.replace(f"{BUCKET}.pushed/ckpt", f"{pushed}/moved").replace(BUCKET, str(bucket))
    subprocess.run(["sh", "-c", command], check=True)
    assert train(folder)[:3] == ["200", "200.0", weights]
    world.wait(lambda: release.is_clean(world.engine(lambda engine: engine.status(path))))
    assert train(folder)[:3] == ["200", "200.0", weights]
