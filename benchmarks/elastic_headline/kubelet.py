"""Nodes whose pods are processes of this machine: started when bound, stopped when deleted, reported as a kubelet does.

The command and the environment are the pod's, resolved as by `avactl local run`. Each host name has a loopback address.
A follower, which ends its pod with the leading Job, is played by this module: it would run kubectl in a container.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from avactl.base.object_identity import namespaced_name
from avactl.base.variable_references import expand_references
from avactl.contracts import names
from avactl.kube.client import STRATEGIC, ApiError, Client
from avactl.kube.reflector import Reflector
from avactl.workbench.local.addresses import AddressBlock, path_translator
from avactl.workbench.local.environment import resolve
from avactl.workbench.local.errors import LocalRunError
from avactl.workbench.local.pods import LocalPod
from avactl.workbench.local.process import PodProcess
from avactl.workbench.local.volumes import make_volumes

_PROGRAM = "kubectl.kubernetes.io/default-container"
_HOST = re.compile(r"([a-z0-9-]+)\.[a-z0-9-]+-rendezvous\.[a-z0-9-]+\.svc")
_PATIENCE = 10.0
"""Seconds for the ConfigMaps of a pod to come."""
_KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "VIRTUAL_ENV")
Body = dict[str, Any]


class Life(NamedTuple):
    """A pod that has run, in Unix time."""

    name: str
    owner: str
    """Name of the spec."""
    role: str
    began: float
    """Its process was started and reported."""
    ended: float


class Kubelet:
    """Runs the pods of one namespace."""

    def __init__(self, client: Client, namespace: str, folder: Path, kubeconfig: Path) -> None:
        self._client, self._namespace, self._folder = client, namespace, folder
        self._environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._environment["PATH"] = f"{Path(sys.executable).parent}:{self._environment.get('PATH', os.defpath)}"
        self._environment["KUBECONFIG"] = str(kubeconfig)
        self._block = AddressBlock()
        self._addresses: dict[str, str] = {}
        self._pods: dict[str, _Pod] = {}
        self._config_maps: dict[str, dict[str, str]] = {}
        self._complete: set[str] = set()
        self._processes: set[int] = set()
        self.lives: list[Life] = []

    async def run(self) -> None:
        """Run until cancelled; then all processes end."""
        pods = Reflector(self._client, f"/api/v1/namespaces/{self._namespace}/pods", _Put(self._pod, self._gone))
        jobs = Reflector(self._client, f"/apis/batch/v1/namespaces/{self._namespace}/jobs", _Put(self._job))
        maps = Reflector(self._client, f"/api/v1/namespaces/{self._namespace}/configmaps", _Put(self._config_map))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(maps.run())
                group.create_task(pods.run())
                group.create_task(jobs.run())
        finally:
            tasks = [pod.task for pod in self._pods.values() if pod.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._block.close()

    @property
    def running(self) -> list[Life]:
        """The pods that run now."""
        now = time.time()
        return [pod.life(now) for pod in self._pods.values() if pod.began]

    # -- what the API server says ------------------------------------------------------------------------------------

    def _pod(self, item: Body) -> None:
        key = namespaced_name(item)
        pod = self._pods.get(key)
        if pod is not None and pod.uid != item["metadata"]["uid"]:
            self._gone(key)
            pod = None
        if pod is None:
            ended = item.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if not item["spec"].get("nodeName") or ended:
                return
            pod = self._pods[key] = _Pod(item)
            pod.task = asyncio.create_task(self._live(pod))
        pod.item = item
        if "deletionTimestamp" in item["metadata"]:
            pod.stop()

    def _gone(self, key: str) -> None:
        pod = self._pods.pop(key, None)
        if pod is not None and pod.task is not None and not pod.task.done():
            pod.task.cancel()

    def _config_map(self, item: Body) -> None:
        self._config_maps[item["metadata"]["name"]] = dict(item.get("data") or {})

    def _job(self, item: Body) -> None:
        conditions = item.get("status", {}).get("conditions") or ()
        if any(each["type"] == "Complete" and each["status"] == "True" for each in conditions):
            self._complete.add(item["metadata"]["name"])
            for pod in self._pods.values():
                if pod.ends_with(self._complete):
                    pod.stop()

    # -- pods --------------------------------------------------------------------------------------------------------

    async def _live(self, pod: _Pod) -> None:
        process = pod.process = PodProcess(
            await self._configured(pod), f"{os.getpid()}.{pod.name}", pod.said.append, self._processes
        )
        process.prepare()
        attempt = asyncio.create_task(process.attempt())
        code = 1
        try:
            while not (process.started or attempt.done()):
                await asyncio.sleep(0.005)
            pod.began = time.time()
            await self._report(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)
            if pod.stopping or pod.ends_with(self._complete):
                pod.stop()
            code = await attempt
        finally:
            attempt.cancel()
            with suppress(asyncio.CancelledError):
                await attempt
            if pod.began:
                self.lives.append(pod.life(time.time()))
                pod.began = 0.0
        if pod.ends_with(self._complete):
            code = 0
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": _now()}
        await self._report(pod, "Failed" if code else "Succeeded", {"terminated": terminated}, ready=False)
        if code not in (0, 128 + signal.SIGTERM):
            print(f"{pod.name} ended with {code}: {' | '.join(pod.said[-5:])}", flush=True)
        if "deletionTimestamp" in pod.item["metadata"]:
            with suppress(ApiError):
                await self._client.send(
                    "DELETE", pod.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
                )

    async def _report(self, pod: _Pod, phase: str, state: Body, *, ready: bool) -> None:
        condition = {"status": "True" if ready else "False", "lastTransitionTime": _now()}
        conditions = [{"type": each, **condition} for each in ("Ready", "ContainersReady")]
        common = {"imageID": "", "ready": ready, "restartCount": 0, "state": state}
        containers = [
            {"name": each["name"], "image": each["image"], **common} for each in pod.item["spec"]["containers"]
        ]
        status = {"phase": phase, "startTime": _now(), "conditions": conditions, "containerStatuses": containers}
        with suppress(ApiError):  # it is gone
            await self._client.send("PATCH", f"{pod.path}/status", {"status": status}, content_type=STRATEGIC)

    async def _configured(self, pod: _Pod) -> LocalPod:
        """Wait for the ConfigMaps of a pod, and return its process."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._described(pod)
            except LocalRunError as error:
                if time.monotonic() > deadline:
                    print(f"{pod.name} is not started: {error}", flush=True)
                    raise
            await asyncio.sleep(0.1)

    def _described(self, pod: _Pod) -> LocalPod:
        spec, container = pod.item["spec"], pod.container
        own = self._folder / pod.name
        address = self._address(pod.host)
        fields = {**pod.item, "status": {"podIP": address, "hostIP": address}}
        variables = resolve(container, pod.name, fields, self._config_maps, self._environment)
        mounted = make_volumes(spec, container, own, self._folder / "claims", self._config_maps, {}, str)
        local = path_translator(mounted.mounts)

        def text(value: str) -> str:
            return local(_HOST.sub(lambda found: self._address(found[1]), value))

        words = [*container.get("command", ()), *container.get("args", ())]
        mine = {name: text(value) for name, value in variables.items() if name not in ("HOME", "USER")}
        argv = [text(expand_references(word, variables)) for word in words]
        return LocalPod(
            pod.name,
            pod.role,
            0,
            True,
            argv,
            {**self._environment, **mine},
            mine,
            str(Path.cwd()),
            mounted.files,
            mounted.directories,
            grace=1.0,
            linger=0.0,
            stops_last=False,
        )

    def _address(self, host: str) -> str:
        return self._addresses.setdefault(host, self._block.address(len(self._addresses)))


class _Pod:
    """A pod that was bound."""

    def __init__(self, item: Body) -> None:
        self.item = item
        metadata = item["metadata"]
        self.name, self.uid = metadata["name"], metadata["uid"]
        self.path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{self.name}"
        labels, notes = metadata["labels"], metadata.get("annotations") or {}
        self.owner = labels["app.kubernetes.io/instance"]
        self.role = labels.get("app.kubernetes.io/component", "")
        self.host = item["spec"].get("hostname") or self.name
        every = [*item["spec"].get("initContainers", ()), *item["spec"]["containers"]]
        wanted = notes.get(_PROGRAM, every[-1]["name"])
        self.container: Body = next(each for each in every if each["name"] == wanted)
        follower = next((each for each in every if each["name"] == names.FOLLOWER), {"env": ()})
        self.leaders: list[str] = next(
            (each["value"].split() for each in follower["env"] if each["name"] == "LEADERS"), []
        )
        """Jobs whose end ends this pod."""
        self.task: asyncio.Task[None] | None = None
        self.process: PodProcess | None = None
        self.began = 0.0
        self.stopping = False
        self.said: list[str] = []

    def ends_with(self, complete: set[str]) -> bool:
        """Return True for a follower whose leading Jobs are all complete."""
        return bool(self.leaders) and complete.issuperset(self.leaders)

    def stop(self) -> None:
        """End the process by SIGTERM; it is told once it runs."""
        self.stopping = True
        if self.process is not None:
            self.process.signal(signal.SIGTERM)

    def life(self, ended: float) -> Life:
        return Life(self.name, self.owner, self.role, self.began, ended)


class _Put:
    """A store of a reflector that calls functions."""

    def __init__(self, put: Callable[[Body], None], remove: Callable[[str], None] = lambda key: None) -> None:
        self._put, self._remove = put, remove
        self._keys: set[str] = set()

    def put(self, item: Body) -> None:
        self._keys.add(namespaced_name(item))
        self._put(item)

    def remove(self, key: str) -> None:
        self._keys.discard(key)
        self._remove(key)

    def keys(self) -> Iterable[str]:
        return list(self._keys)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
