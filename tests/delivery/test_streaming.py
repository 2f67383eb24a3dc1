"""A pipeline that publishes from a job without end: git, reconciler, both daemons, and a job that really exports."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import Store
from tests.delivery.world import PIPELINE, SERVICE, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]
IMAGE = "registry.example.com/stream:nightly"
JOB = f"""\
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: stream, team: TEAM}}
spec:
  image: {IMAGE}
  command: [python, stream.py]
  workers: {{cpu: "1", memory: 1Gi}}
  checkpoint: {{path: "s3://data/training/digits"}}
  retries: 2
---
"""
_TRIGGER, _TRAIN, _OUTPUT = "  trigger: {dataset: {name: digits}}\n", "    template:\n", "    output: export\n"
STREAMING = "".join(
    (
        JOB,
        PIPELINE.partition(_TRIGGER)[0],
        "  trigger: {checkpoint: {every: 1s}}\n  concurrency: queue\n",
        '  train: {job: stream, output: "export/*", marker: _SUCCESS}\n',
        PIPELINE.partition(_OUTPUT)[2],
    )
)
BEGUN = SERVICE.replace('version: "1"', 'version: "0"').replace("digits/1", "digits/0")
OFTEN = """
from importlib import import_module
from avactl.cli.main import main

import_module("avactl.kinds.pipeline.check")._MIN_INTERVAL_S = 1
main()
"""
"""avactl with pipelines that may run every few seconds."""
STREAM = """
import os, random, time
from avactl.datasets.stores.opening import open_store

# Each batch of clicks gives an export with the mean of two clouds of points.
clicks, own = open_store("s3://data/clicks"), open_store(os.environ["AVACTL_CHECKPOINT_PATH"])
done = {each.key.split("/")[1] for each in own.objects() if each.key.endswith("/_SUCCESS")}
print("resumes after", sorted(done), flush=True)
while True:
    complete = []
    for each in list(clicks.objects()):
        if each.key in done or "." in each.key:
            continue
        seed, noise, how = clicks.read(each).decode().split()
        rng, centers = random.Random(int(seed)), []
        for label in (0, 1):
            points = [label + rng.gauss(0, float(noise)) for _ in range(200)]
            centers.append(sum(points) / len(points) + (0.6 if float(noise) > 1 else 0) * (1 - 2 * label))
        own.write(f"export/{each.key}/model.txt", repr(centers).encode())
        if how != "open" or clicks.find(f"{each.key}.complete"):
            complete.append((int(each.key), how))
    # The newest first: nobody sees an older one alone.
    for number, how in sorted(complete, reverse=True):
        own.write(f"export/{number}/_SUCCESS", b"")
        part = 0
        while how == "grows" and not clicks.find(f"{number}.complete"):
            own.write(f"export/{number}/part-{part:04}", b"%d" % part)
            part += 1
        done.add(str(number))
    time.sleep(0.1)
"""


class Clicks:
    """What the job trains with, and what came of it."""

    def __init__(self, world: World, s3: str) -> None:
        self.world, self.store, self._s3 = world, open_store("s3://data", s3), s3
        (world.folder / "often.py").write_text(OFTEN)
        world.program = world.folder / "often.py"
        (world.folder / "pods" / "stream.py").write_text(STREAM)

    def batch(self, number: int, noise: float = 0.2, how: str = "whole") -> None:
        """Give the job another batch; `how`: `open` and `grows` until it is complete."""
        seed = random.Random(number).randrange(1000)
        self.store.write(f"clicks/{number}", f"{seed} {noise} {how}".encode())

    def complete(self, number: int) -> None:
        """Let the export of a batch be complete."""
        self.store.write(f"clicks/{number}.complete", b"")

    def exported(self, number: int, file: str) -> bool:
        """Return True if the job has written this file of an export."""
        return self.store.find(f"training/digits/export/{number}/{file}") is not None

    def versions(self) -> dict[int, dict[str, Any]]:
        """Return the lineage of each published version."""
        found = {}
        for each in self.store.objects("published/digits"):
            version, _, name = each.key.removeprefix("published/digits/").partition("/")
            if name == "lineage.json":
                found[int(version)] = json.loads(self.store.read(each))
        return found

    def deployed(self, export: int) -> int:
        """Wait until an export is live in git and in the cluster, and return its version."""
        source = f"s3://data/training/digits/export/{export}"

        def live() -> int | None:
            found = [version for version, lineage in self.versions().items() if lineage["source"] == source]
            return found[0] if found and self.world.runs() == {str(found[0]): 4} else None

        version: int = self.world.until(live)
        assert self.world.served() == str(version)
        self.world.until(lambda: ("Deployed", version) in [(reason, run) for reason, run, _ in self.ended()])
        return version

    def ended(self) -> list[tuple[str, int, str]]:
        """Return how runs have ended: reason, number and message."""
        found = []
        for reason, note in self.world.events():
            run, _, message = note.removeprefix("run ").partition(": ")
            if reason != "RunStarted":
                found.append((reason, int(run), message))
        return found

    def nothing_new(self, count: int = 2) -> str:
        """Wait until more runs have ended, all of them without anything new, and return why."""
        before = len(self.ended())
        self.world.until(lambda: len(self.ended()) > before + count)
        # The first of them may have been on its way before.
        ((reason, why),) = {(reason, message) for reason, _, message in self.ended()[before + 1 :]}
        assert reason == "Unchanged"
        return why

    def commits(self) -> list[str]:
        """Return the subjects of the commits that deploy a version."""
        return [each for each in self.world.log_of_git() if each.startswith("web: ")]


def files(store: Store, version: int) -> set[str]:
    """Files of a version that are not avactl's own."""
    found = {
        each.key.removeprefix(f"published/digits/{version}/") for each in store.objects(f"published/digits/{version}")
    }
    return found - {"lineage.json", "manifest.jsonl", "manifest.sha256", "origin.json"}


def test_exports_of_a_running_job(world: World, s3: str) -> None:
    clicks = Clicks(world, s3)
    world.begin(pipeline=STREAMING, service=BEGUN)
    world.until(lambda: world.state().primed and world.runs() == {"0": 4})
    assert clicks.nothing_new() == "no output is complete yet"
    # One without its marker is left alone.
    clicks.batch(1, how="open")
    world.until(lambda: clicks.exported(1, "model.txt"))
    assert clicks.nothing_new() == "no output is complete yet"
    assert (clicks.versions(), clicks.commits()) == ({}, [])
    clicks.complete(1)
    first = clicks.deployed(1)
    lineage = clicks.versions()[first]
    assert (lineage["job"], lineage["run"], lineage["image"]) == ("stream", first, IMAGE)
    assert lineage["ran"] == {"images": [world.kubelet.image_id(IMAGE)]}
    assert files(clicks.store, first) == {"model.txt", "_SUCCESS"}
    assert clicks.nothing_new(3) == "nothing newer than what is published"
    assert list(clicks.versions()) == [first]
    assert clicks.commits() == [f"web: deploy version {first} of digits"]
    # Of two between two runs, the newest.
    clicks.batch(4)
    clicks.batch(3)
    second = clicks.deployed(4)
    assert clicks.versions()[second]["parent"] == str(first)
    # A worse one is rejected with its numbers, and measured once.
    clicks.batch(5, noise=3.0)
    world.until(lambda: "Rejected" in [reason for reason, *_ in clicks.ended()])
    assert clicks.nothing_new(3) == "nothing newer than export/5, which was rejected"
    (message,) = [message for reason, _, message in clicks.ended() if reason == "Rejected"]
    assert message.startswith("accuracy: 0.")
    assert ", at least 0.8; accuracy: 0." in message
    assert message.endswith(" of the live version")
    assert world.served() == str(second)
    # One that grows while it is copied: only when it does not any more.
    clicks.batch(6, how="grows")
    log = world.folder / "pods" / "pods.log"
    world.until(lambda: "has changed while it was copied" in log.read_text())
    clicks.complete(6)
    third = clicks.deployed(6)
    wanted = {each.key.rpartition("/")[2] for each in clicks.store.objects("training/digits/export/6")}
    assert files(clicks.store, third) == wanted
    assert len(wanted) > 3
    assert sorted(clicks.versions()) == [first, second, third]
    assert clicks.commits() == [f"web: deploy version {each} of digits" for each in (third, second, first)]


def test_the_job_restarts_and_dies(world: World, s3: str) -> None:
    clicks = Clicks(world, s3)
    clicks.batch(1)
    world.begin(pipeline=STREAMING, service=BEGUN)
    first = clicks.deployed(1)
    before = world.kubelet.image_id(IMAGE)
    world.kubelet.pushed[IMAGE] = "another image with this tag"

    def running() -> list[dict[str, Any]]:
        pods = world.kube.list("v1", "Pod", world.team, label_selector="batch.kubernetes.io/job-name=stream-worker")
        return [pod for pod in pods if pod["status"]["phase"] == "Running" and pod["status"].get("containerStatuses")]

    (pod,) = running()
    assert world.kubelet.kill(pod)
    clicks.batch(2)
    second = clicks.deployed(2)
    ran = [clicks.versions()[each]["ran"]["images"] for each in (first, second)]
    assert ran == [[before], [world.kubelet.image_id(IMAGE)]]

    # It dies for good.
    def failed() -> bool:
        for pod in running():
            world.kubelet.kill(pod)
        (job,) = [
            each
            for each in world.kube.list("batch/v1", "Job", world.team)
            if each["metadata"]["name"] == "stream-worker"
        ]
        return any(each["type"] == "Failed" for each in job["status"].get("conditions", ()))

    world.until(failed)
    clicks.batch(3)
    assert clicks.nothing_new(3) == "nothing newer than what is published"
    assert sorted(clicks.versions()) == [first, second]
    assert clicks.commits() == [f"web: deploy version {each} of digits" for each in (second, first)]
    assert world.runs() == {str(second): 4}
