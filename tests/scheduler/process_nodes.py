"""Machines whose pods are processes: what kubelets do for the workers of a job, without containers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from avactl.kube.timestamps import timestamp
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.elastic import environment

POLL_S = 0.2


class ProcessNodes:
    """Runs the pods of some nodes with a script instead of their command, between the start and end of the block."""

    def __init__(self, plane: ControlPlane, nodes: tuple[str, ...], script: Path, folder: Path) -> None:
        """Processes write to `folder`; their logs are NAME.log."""
        self._plane, self._nodes, self._script, self._folder = plane, nodes, script, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._reported: dict[str, str] = {}
        self._terminated: set[str] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes")
        self.error = ""

    def __enter__(self) -> ProcessNodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _run(self) -> None:
        try:
            with self._plane.client() as kube:
                while not self._ending.wait(POLL_S):
                    pods = kube.list("v1", "Pod")
                    for pod in pods:
                        if pod["spec"].get("nodeName") in self._nodes:
                            self._advance(kube, pod)
                    for uid in self._processes.keys() - {pod["metadata"]["uid"] for pod in pods}:
                        self._processes.pop(uid).kill()
        except Exception:
            self.error = traceback.format_exc()

    def _advance(self, kube: KubeClient, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            if metadata.get("deletionTimestamp"):
                self._delete(kube, metadata)
            return
        process = self._processes.get(uid)
        if process is None and metadata.get("deletionTimestamp"):
            self._write(kube, pod, "Failed", {"terminated": {"exitCode": 137, "reason": "Error"}})
            return
        if process is None:
            process = self._processes[uid] = self._start(pod)
        if metadata.get("deletionTimestamp") and uid not in self._terminated:
            self._terminated.add(uid)
            process.terminate()
        code = process.poll()
        if code is None:
            self._write(kube, pod, "Running", {"running": {"startedAt": timestamp()}})
            return
        times = {"startedAt": timestamp(time.time() - 60), "finishedAt": timestamp()}
        ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" if code else "Completed", **times}
        self._write(kube, pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _start(self, pod: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        index = (pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-completion-index", "")
        env = pod["spec"]["containers"][0].get("env") or ()
        given = {
            each["name"]: each["value"].replace("$(JOB_COMPLETION_INDEX)", index) for each in env if "value" in each
        }
        mine = {name: value for name, value in given.items() if name.startswith("AVACTL_")}
        mine |= {"POD_NAME": pod["metadata"]["name"], "AVACTL_CHECKPOINT_DIR": str(self._folder / "checkpoints")}
        with (self._folder / f"{pod['metadata']['name']}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, self._script, str(self._folder)],
                env=environment() | mine,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _write(self, kube: KubeClient, pod: Mapping[str, Any], phase: str, state: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if self._reported.get(uid) == phase:
            return
        (container,) = pod["spec"]["containers"]
        told = {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "ready": phase == "Running",
            "started": phase == "Running",
            "restartCount": 0,
            "state": dict(state),
        }
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
        status = {"phase": phase, "startTime": timestamp(), "containerStatuses": [told]}
        try:
            kube.patch(
                {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}, subresource="/status"
            )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self._reported[uid] = phase

    def _delete(self, kube: KubeClient, metadata: Mapping[str, Any]) -> None:
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            kube.request("DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
