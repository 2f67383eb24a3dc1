"""kill -9, an API server that restarts, and answers that refuse for the moment: the next run ends in git's state."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.proxy import Proxy
from tests.reconcile.test_apply import WORKSPACE, job
from tests.reconcile.world import AVA, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]
GONE = (
    "teams/vision/jobs.yaml",
    "teams/students/jobs.yaml",
    "teams/video/serving.yaml",
    "teams/vision/workspaces.yaml",
)
"""Files that come and go: jobs, services, and homes with their data."""
FAULTS = {409: 0.03, 429: 0.04, 500: 0.01, 0: 0.02, -1: 0.03}


def crashes(world: World, cluster: str, gone: tuple[str, ...], most: int, kills: int, restarts: int, seed: int) -> None:
    """Two commits in turn, with and without some files; each run is killed at one of its first `most` writes, and every
    tenth is followed by a whole one, as is the last."""
    chance = random.Random(seed)
    texts = {name: (world.repository / name).read_text() for name in gone}
    assert world.once(cluster, wait=False).complete
    held = _data(world, cluster)
    assert held
    with Proxy(world.plane, world.folder, seed) as proxy:
        world.kubeconfig = proxy.kubeconfig
        proxy.faults = FAULTS
        killed = 0
        while killed < kills:
            here = bool((killed // 2) % 2)
            world.commit(texts if here else dict.fromkeys((n for n in gone if (world.repository / n).exists()), None))
            began, at = proxy.writes(), chance.randint(1, most)
            process = world.start("--cluster", cluster, "--once", "--no-wait")
            if restarts and chance.random() < restarts / kills:
                time.sleep(chance.uniform(0.5, 1.5))
                world.plane.kill("kube-apiserver")
                world.plane.start("kube-apiserver")
            while process.poll() is None and proxy.writes() - began < at:
                time.sleep(0.005)
            process.kill()
            process.wait()
            killed += 1
            if killed % 10 == 0:
                _whole(world, cluster, held)
        world.commit(texts if not (world.repository / gone[0]).exists() else {})
        _whole(world, cluster, held)


def _whole(world: World, cluster: str, held: dict[str, str]) -> None:
    """One run to its end: exactly what git says, and all data is there."""
    run = world.run("--cluster", cluster, "--once", "--no-wait")
    assert run.returncode == 0, run.stdout + run.stderr
    declared = world.wanted(cluster)
    owned = world.owned(cluster, declared)
    live = {key[1:]: _holds(body) for key, body in owned.items()}
    going = {key[1:] for key, body in owned.items() if "deletionTimestamp" in body["metadata"]}
    wanted = {(each.key.kind, each.key.namespace, each.key.name) for each in declared}
    assert wanted - live.keys() <= {key for key in wanted if key[0] == "Node"}
    extra = live.keys() - wanted - going
    assert all(live[key] or key[0] == "Namespace" for key in extra), extra
    assert held.items() <= _data(world, cluster).items()


def _holds(body: dict[str, Any]) -> bool:
    return bool(body["metadata"].get("annotations", {}).get("avactl.dev/holds-data") == "true")


def _data(world: World, cluster: str) -> dict[str, str]:
    """Claims that hold data, and which they are."""
    return {
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}": claim["metadata"]["uid"]
        for claim in world.kube.list("v1", "PersistentVolumeClaim", label_selector=f"avactl.dev/inventory={cluster}")
        if _holds(claim) and not claim["metadata"].get("deletionTimestamp")
    }


def test_killed_at_some_moments(world: World) -> None:
    """A team's job with its checkpoint, and a home."""
    world.commit({"platform.yaml": world.specs(), "job.yaml": job("retain"), "home.yaml": WORKSPACE})
    crashes(world, "lab", ("job.yaml", "home.yaml"), most=12, kills=3, restarts=1, seed=1)


@pytest.mark.slow
def test_killed_at_a_hundred_moments(world: World) -> None:
    world.commit(example=AVA)
    crashes(world, "train", GONE, most=70, kills=100, restarts=10, seed=4)
