"""kill -9, an API server that restarts, and answers that refuse for the moment: the next run ends in git's state."""

from __future__ import annotations

import random
import time

import pytest

from tests.proxy import Proxy
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


def crashes(world: World, kills: int, restarts: int, seed: int) -> None:
    """Two commits in turn, each run killed at its n-th write; in the end one whole run for each of the two."""
    chance = random.Random(seed)
    world.commit(example=AVA)
    texts = {name: (world.repository / name).read_text() for name in GONE}
    assert world.once("train", wait=False).complete
    held = _data(world)
    assert held
    with Proxy(world.plane, world.folder, seed) as proxy:
        world.kubeconfig = proxy.kubeconfig
        proxy.faults = FAULTS
        killed = 0
        while killed < kills:
            here = bool((killed // 2) % 2)
            world.commit(texts if here else dict.fromkeys((n for n in GONE if (world.repository / n).exists()), None))
            began, at = proxy.writes(), chance.randint(1, 70)
            process = world.start("--cluster", "train", "--once", "--no-wait")
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
                _whole(world, held)
        world.commit(texts if not (world.repository / GONE[0]).exists() else {})
        _whole(world, held)


def _whole(world: World, held: dict[str, str]) -> None:
    """One run to its end: exactly what git says, and all data is there."""
    run = world.run("--cluster", "train", "--once", "--no-wait")
    assert run.returncode == 0, run.stdout + run.stderr
    kubeconfig, world.kubeconfig = world.kubeconfig, world.plane.kubeconfig
    kept = {key for key in world.owned("train", world.wanted("train")) if _holds(world, key)}
    wanted = {(each.key.kind, each.key.namespace, each.key.name) for each in world.wanted("train")}
    live = {(kind, namespace, name) for _, kind, namespace, name in world.owned("train", world.wanted("train"))}
    assert wanted - live <= {key for key in wanted if key[0] == "Node"}
    extra = {key[1:] for key in kept}
    assert all(key in extra or key[0] == "Namespace" for key in live - wanted), live - wanted
    assert held.items() <= _data(world).items()
    world.kubeconfig = kubeconfig


def _holds(world: World, key: tuple[str, str, str, str]) -> bool:
    version, kind, namespace, name = key
    notes = world.kube.get(version, kind, name, namespace or None)["metadata"].get("annotations", {})
    return bool(notes.get("avactl.dev/holds-data") == "true")


def _data(world: World) -> dict[str, str]:
    """Claims that hold data, and which they are."""
    return {
        f"{claim['metadata']['namespace']}/{claim['metadata']['name']}": claim["metadata"]["uid"]
        for claim in world.kube.list("v1", "PersistentVolumeClaim", label_selector="avactl.dev/inventory=train")
        if claim["metadata"].get("annotations", {}).get("avactl.dev/holds-data") == "true"
        and not claim["metadata"].get("deletionTimestamp")
    }


def test_killed_at_some_moments(world: World) -> None:
    crashes(world, kills=2, restarts=1, seed=3)


@pytest.mark.slow
def test_killed_at_a_hundred_moments(world: World) -> None:
    crashes(world, kills=100, restarts=10, seed=4)
