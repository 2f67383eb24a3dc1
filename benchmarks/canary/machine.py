"""A machine whose pods are processes: what a kubelet does for servers, without containers.

A pod that is bound to it gets an address of its own and the process of its model server, becomes ready by its readiness
probe, and when it is deleted waits for its `preStop` delay before SIGTERM. Then it is gone.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx

from avactl.kube.timestamps import timestamp
from tools.controlplane import ApiError, ControlPlane, KubeClient, process

POLL = 0.1  # seconds
COMPONENT = "app.kubernetes.io/component"
PROBE_TIMEOUT = 2.0  # seconds


Command = Callable[[str, Sequence[str]], Sequence[str | Path]]
"""Returns the command of a pod with an address and ports."""


class Machine:
    """The node `name`; `python` runs the servers with the models of `models`. Pods begin with the `with` block.

    `others`: commands of pods with other components than servers and workers, which else do not run.
    """

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        python: Path,
        models: Path,
        logs: Path,
        others: Mapping[str, Command] | None = None,
    ) -> None:
        self._plane, self.name, self._python, self._models, self._logs = plane, name, python, models, logs
        self._commands: dict[str, Command] = {"server": self._serve, "worker": self._idle, **(others or {})}
        self._pods: dict[str, _Pod] = {}
        self._addresses = (f"10.1.{high}.{low}" for high, low in itertools.product(range(256), range(1, 255)))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self.error = ""
        """Why it has stopped working; empty while it works."""

    def __enter__(self) -> Machine:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": timestamp()}
        with self._plane.client() as kube:
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
            kube.create({**body, "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}})
            # New nodes have the taint `not-ready`, which the controller of nodes would remove.
            kube.patch({**body, "spec": {"taints": None}})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for pod in self._pods.values():
            process.terminate(pod.child, grace=0)

    def _run(self) -> None:
        try:
            with self._plane.client() as kube, httpx.Client(timeout=PROBE_TIMEOUT, trust_env=False) as probes:
                while not self._ending.wait(POLL):
                    self._pass(kube, probes)
        except Exception:
            self.error = traceback.format_exc()

    def _pass(self, kube: KubeClient, probes: httpx.Client) -> None:
        # Pods of the platform, as the daemon's, have no image here: the daemon is a process of its own.
        known = ",".join(self._commands)
        query = {"fieldSelector": f"spec.nodeName={self.name}", "labelSelector": f"{COMPONENT} in ({known})"}
        found = {
            each["metadata"]["uid"]: each for each in kube.request("GET", "/api/v1/pods", query=query).body["items"]
        }
        for uid, body in found.items():
            pod = self._pods.get(uid)
            if pod is None:
                pod = self._pods[uid] = self._start(body)
            try:
                pod.advance(kube, probes, body)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
        for uid in self._pods.keys() - found.keys():
            process.terminate(self._pods.pop(uid).child, grace=0)

    def _start(self, body: Mapping[str, Any]) -> _Pod:
        (container,) = body["spec"]["containers"]
        # A sidecar has the port of the service, and passes requests on: here, the server has it itself.
        sidecars = [each for each in body["spec"].get("initContainers") or () if each.get("restartPolicy") == "Always"]
        opened = [port for each in [*sidecars, container] for port in each.get("ports") or ()]
        address, ports = next(self._addresses), [str(each["containerPort"]) for each in opened]
        command = self._commands[body["metadata"]["labels"][COMPONENT]](address, ports)
        env = {each["name"]: each["value"] for each in container.get("env") or () if "value" in each}
        # One thread for the arithmetic: a picture has 64 numbers.
        env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HOME": str(self._logs)}
        child = process.spawn(command, self._logs / f"{body['metadata']['name']}.log", env)
        port = opened[0]["containerPort"] if opened else 0
        return _Pod(child, address, port, container, env.get("AVACTL_MODEL_VERSION", ""))

    def kill(self, version: str) -> None:
        """Kill the servers of a version of the model: their pods stay, without a process."""
        for pod in list(self._pods.values()):
            if pod.version == version:
                pod.kill()

    def _serve(self, address: str, ports: Sequence[str]) -> Sequence[str | Path]:
        return [self._python, Path(__file__).with_name("server.py"), self._models, address, *ports]

    @staticmethod
    def _idle(address: str, ports: Sequence[str]) -> Sequence[str | Path]:
        """Return the command of a worker of a group, which has nothing to compute."""
        return ["sleep", "infinity"]


class _Pod:
    """One pod and its process."""

    def __init__(
        self, child: Popen[bytes], address: str, port: int, container: Mapping[str, Any], version: str
    ) -> None:
        self.child, self._address, self.version = child, address, version
        probe = container.get("readinessProbe") or {}
        self._path = ""
        """URL of the readiness probe; empty without one."""
        self._port = 0
        """Port that is open once the pod is ready; 0 without a probe."""
        if probe:
            self._port = port
        if "httpGet" in probe:
            self._path = f"http://{address}:{self._port}{probe['httpGet']['path']}"
        self._period = float(probe.get("periodSeconds", 10))
        hook = ((container.get("lifecycle") or {}).get("preStop") or {}).get("sleep") or {}
        self._drain = float(hook.get("seconds", 0))
        self._name = container["name"]
        self._ready: bool | None = None
        self._probed = 0.0
        self._deleted = 0.0
        self._terminated = False

    def kill(self) -> None:
        """Kill its process, which a kubelet sees at once."""
        process.terminate(self.child, grace=0)
        self._probed = 0.0

    def advance(self, kube: KubeClient, probes: httpx.Client, body: Mapping[str, Any]) -> None:
        """Do what is next. Raises ApiError."""
        now, metadata = time.monotonic(), body["metadata"]
        if metadata.get("deletionTimestamp"):
            self._deleted = self._deleted or now
            if not self._terminated and now - self._deleted >= self._drain:
                self.child.terminate()
                self._terminated = True
            late = now - self._deleted > float(metadata.get("deletionGracePeriodSeconds") or 30)
            if self.child.poll() is not None or late:
                process.terminate(self.child, grace=0)
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                kube.request("DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
            return
        # Until it is ready, a kubelet with a startup probe asks every second or so.
        if now - self._probed >= (self._period if self._ready else min(self._period, 0.3)):
            self._probed = now
            ready = self._healthy(probes)
            if ready != self._ready:
                self._write(kube, body, ready)
                self._ready = ready

    def _healthy(self, probes: httpx.Client) -> bool:
        if not self._port:
            return True
        try:
            if not self._path:
                socket.create_connection((self._address, self._port), PROBE_TIMEOUT).close()
                return True
            return probes.get(self._path).status_code == 200
        except (httpx.TransportError, OSError):
            return False

    def _write(self, kube: KubeClient, body: Mapping[str, Any], ready: bool) -> None:
        now, value = timestamp(), str(ready)
        conditions = [
            {
                "type": each,
                "status": "True" if each in ("PodScheduled", "Initialized") else value,
                "lastTransitionTime": now,
            }
            for each in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        (container,) = body["spec"]["containers"]
        state = {
            "name": self._name,
            "image": container["image"],
            "imageID": container["image"],
            "ready": ready,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        status = {
            "phase": "Running",
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "conditions": conditions,
            "containerStatuses": [state],
            "startTime": body["status"].get("startTime", now),
        }
        metadata = {key: body["metadata"][key] for key in ("name", "namespace")}
        kube.patch({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, subresource="/status")
