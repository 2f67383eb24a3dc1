"""A day of services and a training job on a real API server, real controllers, avactl's scheduler and kwok machines."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from avactl.base.object_identity import namespaced_name
from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client
from avactl.kube.reflector import Reflector
from avactl.program.manifest import Manifest
from benchmarks.colocation.specs import SERVICES, SYSTEM, TEAM, Service, compiled, node
from tools.controlplane import ControlPlane, KubeClient

PATIENCE = 120.0
"""Seconds until all pods that fit run, before the day begins."""
POLL = 0.05
_SCHEDULER = "avactl-scheduler"


class Life(NamedTuple):
    """A pod, in seconds of the monotonic clock. None: not so far."""

    spec: str
    gpus: int
    created: float
    bound: float | None
    ended: float | None
    """It was deleted, or is being deleted."""
    node: str


class Day(NamedTuple):
    """What happened between two moments."""

    began: float
    ended: float
    lives: list[Life]
    gpus: int


class Pods:
    """Store of a reflector: when pods were seen first, bound and deleted."""

    def __init__(self) -> None:
        self._lives: dict[str, Life] = {}
        self._past: list[Life] = []
        self._uids: dict[str, str] = {}

    @property
    def lives(self) -> list[Life]:
        return [*self._past, *self._lives.values()]

    def put(self, item: dict[str, Any]) -> None:
        now, key, metadata = time.monotonic(), namespaced_name(item), item["metadata"]
        if self._uids.get(key) not in (None, metadata["uid"]):
            self.remove(key)
        self._uids[key] = metadata["uid"]
        life = self._lives.get(key)
        if life is None:
            life = Life(metadata["labels"]["app.kubernetes.io/instance"], _gpus(item["spec"]), now, None, None, "")
        name = item["spec"].get("nodeName", "")
        if name and life.bound is None:
            life = life._replace(bound=now, node=name)
        if "deletionTimestamp" in metadata and life.ended is None:
            life = life._replace(ended=now)
        self._lives[key] = life

    def remove(self, key: str) -> None:
        life = self._lives.pop(key, None)
        self._uids.pop(key, None)
        if life is not None:
            self._past.append(life if life.ended is not None else life._replace(ended=time.monotonic()))

    def keys(self) -> list[str]:
        return list(self._lives)


def replicas(service: Service, part: float) -> int:
    """Return the pods of a service at a part of the day, from 0 to 1."""
    share = (1 + math.cos(2 * math.pi * (part - service.noon))) / 2
    return round(service.least + (service.most - service.least) * share)


async def day(machines: dict[str, int], serving: str, training: str, seconds: float) -> Day:
    """Run a day of so many seconds on pools of `machines`; `serving` and `training` are their pools, "" for any."""
    found = compiled(machines, serving, training)
    with _cluster(found.manifests, machines) as (plane, kube):
        async with Client(from_kubeconfig(plane.kubeconfig), "colocation") as client:
            pods = Pods()
            reflector = Reflector(client, f"/api/v1/namespaces/{TEAM}/pods", pods)
            task = asyncio.create_task(reflector.run())
            try:
                for each in SERVICES:
                    await _scale(kube, each, replicas(each, 0))
                gpus = sum(machines.values()) * 8
                await _settled(pods)
                began, current = time.monotonic(), {each: replicas(each, 0) for each in SERVICES}
                while (part := (time.monotonic() - began) / seconds) < 1:
                    for each in SERVICES:
                        wanted = replicas(each, part)
                        if wanted != current[each]:
                            current[each] = wanted
                            await _scale(kube, each, wanted)
                    await asyncio.sleep(POLL)
                return Day(began, time.monotonic(), pods.lives, gpus)
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _settled(pods: Pods) -> None:
    """Wait until the pods of services are bound, and no others have been bound for a while."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        lives = [life for life in pods.lives if life.ended is None]
        served = {life.spec for life in lives if life.spec != "train"}
        last = max((life.bound for life in lives if life.bound is not None), default=time.monotonic())
        waiting = any(life.bound is None for life in lives if life.spec != "train")
        if len(served) == len(SERVICES) and not waiting and time.monotonic() > last + 3:
            return
        await asyncio.sleep(POLL)
    raise RuntimeError(f"pods of services are not bound after {PATIENCE:g} s")


async def _scale(kube: KubeClient, service: Service, count: int) -> None:
    """Do what an autoscaler does."""
    metadata = {"name": service.name, "namespace": TEAM}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": count}}
    await asyncio.to_thread(kube.patch, body)


@contextmanager
def _cluster(manifests: tuple[Manifest, ...], machines: dict[str, int]) -> Iterator[tuple[ControlPlane, KubeClient]]:
    """A plane with the machines, the objects of the specs, and the scheduler with its own account."""
    with (
        TemporaryDirectory(prefix="avactl-colocation-") as name,
        ControlPlane(controller_manager=True, kwok=True) as plane,
        plane.client() as kube,
    ):
        folder = Path(name)
        for pool, count in machines.items():
            for number in range(count):
                kube.create(node(pool, number))
        policy = ""
        for manifest in manifests:
            if (manifest.kind, manifest.name) == ("ConfigMap", "avactl-policy"):
                policy = manifest.body["data"]["policy.json"]
            if not manifest.patch and (manifest.kind, manifest.name) != ("Deployment", _SCHEDULER):
                kube.apply(manifest.body, field_manager="avactl")
        (folder / "policy.json").write_text(policy)
        config = folder / "kubeconfig"
        plane.write_kubeconfig(config, plane.service_account_token(SYSTEM, _SCHEDULER, 36_000))
        words = ["scheduler", "--config", str(folder / "policy.json"), "--kubeconfig", str(config)]
        with (folder / "log").open("wb") as log:
            scheduler = subprocess.Popen([sys.executable, "-m", "avactl.cli.main", *words], stderr=log)
        try:
            yield plane, kube
            if scheduler.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
        finally:
            scheduler.kill()
            scheduler.wait()


def _gpus(spec: dict[str, Any]) -> int:
    limits = [(each.get("resources") or {}).get("limits") or {} for each in spec["containers"]]
    return sum(int(each.get("nvidia.com/gpu", 0)) for each in limits)
