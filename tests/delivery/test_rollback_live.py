"""A commit of somebody whose rollout is rolled back: git follows, whichever daemon dies in between."""

from __future__ import annotations

import random
import time

import pytest

from tests.delivery.test_killed import ANALYSED
from tests.delivery.world import World
from tests.serving.prometheus import Prometheus

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]


def image(world: World) -> str:
    """Return the image that the Deployment asks for."""
    deployment = world.kube.get("apps/v1", "Deployment", "web", world.team)
    name: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return name


def condition(world: World) -> str:
    """Return the reason of the rollout's condition."""
    deployment = world.kube.get("apps/v1", "Deployment", "web", world.team)
    found = deployment.get("status", {}).get("conditions") or ()
    return next((each["reason"] for each in found if each["type"] == "avactl.dev/Rollout"), "")


def rolled_back(world: World, rounds: int, kills: int, seed: int) -> None:
    """Commit bad versions, and good ones that replace them by hand, while daemons are killed."""
    order, prometheus = random.Random(seed), Prometheus()
    world.serving_options = ["--prometheus", prometheus.url]
    world.begin(service=ANALYSED)
    world.until(lambda: world.runs() == {"1": 4} and condition(world) == "Stable")
    good = world.text("web.yaml")
    done = 0
    for number in range(rounds):
        prometheus.other = 5.0
        world.commit({"web.yaml": good.replace("server@sha256", f"worse-{number}@sha256")}, "faster, I hope")
        commits = len(world.log_of_git())
        while len(world.log_of_git()) == commits:
            if done < kills:
                world.kill(name := order.choice(["delivery", "serving"]))
                world.start(name)
                done += 1
            ends = time.monotonic() + order.uniform(1.0, 4.0)
            while time.monotonic() < ends and len(world.log_of_git()) == commits:
                time.sleep(0.05)
            assert sum(world.runs().values()) >= 4
        assert world.text("web.yaml") == good
        assert world.log_of_git()[0] == "web: roll back to the version that runs"
        prometheus.other = 0.0
        # The reconciler applies it, and the service is as its spec says again.
        world.until(lambda: "server@sha256" in image(world) and condition(world) == "Stable")
        assert world.runs() == {"1": 4}
    assert world.log_of_git().count("web: roll back to the version that runs") == rounds
    assert ("SpecRolledBack", f"commit {world.head()[:10]} on main") in world.events() or kills
    prometheus.close()
    print(f"{rounds} roll-backs, {done} kills")


def test_a_bad_commit_is_followed_by_one_that_undoes_it(world: World) -> None:
    rolled_back(world, rounds=1, kills=0, seed=1)


@pytest.mark.slow
def test_a_bad_commit_with_both_daemons_killed(world: World) -> None:
    rolled_back(world, rounds=10, kills=50, seed=2)


def test_a_change_elsewhere_is_told(world: World) -> None:
    """The pods of all services change with the platform: no text of the spec undoes that."""
    prometheus = Prometheus()
    world.serving_options = ["--prometheus", prometheus.url]
    world.begin(service=ANALYSED)
    world.until(lambda: world.runs() == {"1": 4} and condition(world) == "Stable")
    prometheus.other = 5.0
    platform = world.text("platform.yaml")
    world.commit({"platform.yaml": platform.replace("registry.example.com/rclone", "mirror.example.com/rclone")})
    world.until(lambda: "SpecNotRolledBack" in [reason for reason, _ in world.events()])
    note = dict(world.events())["SpecNotRolledBack"]
    assert note.startswith("no earlier text of web in web.yaml compiles to the version that runs: the change is in")
    # Another commit, which changes nothing of that, is looked at too, and told of only if there is something new.
    world.commit({"dataset.yaml": world.text("dataset.yaml") + "# the newest is read\n"})
    time.sleep(5)
    assert [reason for reason, _ in world.events()].count("SpecNotRolledBack") == 1
    assert "web: roll back to the version that runs" not in world.log_of_git()
    # Somebody reverts it by hand.
    prometheus.other = 0.0
    world.commit({"platform.yaml": platform})
    world.until(lambda: condition(world) == "Stable")
    assert world.runs() == {"1": 4}
    prometheus.close()
