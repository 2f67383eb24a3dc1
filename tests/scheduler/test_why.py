"""`avactl why`."""

from __future__ import annotations

import subprocess

import pytest

from tests import forked
from tests.kinds.compiling import DIGEST
from tests.scheduler.world import World


def why(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["why", "--kubeconfig", str(world.plane.kubeconfig), *arguments])


pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("scheduler")]


def test_a_job_and_its_pods(world: World) -> None:
    world.node("a")
    world.ready()
    world.start()
    world.pod("runs", 2)
    world.bound("runs")
    world.gang("train", 2)
    world.waiting("train-0", "needs 2 machines")
    told = why(world, "train", "-n", world.namespace)
    assert told.returncode == 0
    title, _, line = told.stdout.splitlines()
    assert title == f"{world.namespace}/train"
    assert line.startswith("train-0, train-1  waits")
    assert "needs 2 machines with 8 free GPUs; only 0 available" in line
    told = why(world, f"{world.namespace}/runs")
    assert "has a node" in told.stdout
    assert "a, GPUs " in told.stdout
    told = why(world, "nobody", "-n", world.namespace)
    assert told.returncode == 2
    assert "no pod or job nobody" in told.stderr


def maker(world: World, version: str, kind: str, name: str, pod: dict[str, object], **spec: object) -> None:
    labels = {"app": name, "app.kubernetes.io/instance": f"the-{name}"}
    select = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    body = {"schedulerName": "avactl", "containers": [{"name": "main", "image": f"x{DIGEST}"}], **pod}
    template = {"metadata": {"labels": labels}, "spec": body}
    world.kube.create(
        {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {**spec, **select, "template": template},
        }
    )


def test_pods_that_are_not_made(world: World) -> None:
    batch: dict[str, object] = {"restartPolicy": "Never"}
    maker(world, "batch/v1", "Job", "classless", {**batch, "priorityClassName": "nobody"}, completions=3, parallelism=2)
    maker(world, "batch/v1", "Job", "asleep", batch, suspend=True)
    maker(world, "apps/v1", "StatefulSet", "home", {"priorityClassName": "nobody"}, serviceName="home", replicas=1)
    maker(world, "apps/v1", "Deployment", "none", {}, replicas=0)
    maker(world, "apps/v1", "Deployment", "some", {}, replicas=1)

    def told(name: str) -> list[str]:
        done = why(world, f"{world.namespace}/{name}")
        return [" ".join(line.split()) for line in done.stdout.splitlines()[2:]]

    refused = 'pods "{}" is forbidden: no PriorityClass with name nobody was found'
    world.wait(lambda: told("classless")[0].startswith("Job classless refused"))
    assert told("classless")[0].endswith(
        f"2 of 2 pods were not created: Error creating: {refused.format('classless-')}"
    )
    assert told("the-asleep")[0].endswith("it is suspended: its pods are created once it is resumed")
    world.wait(lambda: told("home")[0].startswith("StatefulSet home refused"))
    assert "1 of 1 pods were not created: Create Pod home-0 in StatefulSet home" in told("the-home")[0]
    assert told("the-home")[0].endswith(refused.format("home-0"))
    assert told("none")[0].endswith("it is scaled to 0 pods")
    # By the Deployment's name, and by the instance that its pods are of.
    world.wait(lambda: told("some")[0].startswith("some-"))
    assert told("some")[0].endswith("scheduler `avactl` has not processed it yet")
    assert told("the-some")[0].startswith("some-")
