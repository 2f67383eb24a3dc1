"""A kubelet for the pods of Jobs: pipelines' runs, and jobs that train. Their containers are processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from avactl.base.variable_references import expand_references
from avactl.contracts import names
from avactl.workbench.local.environment import resolve
from tools.controlplane import ApiError, ControlPlane, KubeClient

Body = dict[str, Any]
RESULT = "/dev/termination-log"
_OF_JOB = "batch.kubernetes.io/job-name"


class Kubelet:
    """Runs the Job pods that kwok has started, each in a thread, and reports how they ended."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, environment: Mapping[str, str]) -> None:
        """`environment`: variables of all processes; Secrets are found by the name of their variable."""
        self._plane, self._namespace, self._folder, self._environment = plane, namespace, folder, dict(environment)
        self._threads: dict[str, threading.Thread] = {}
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.instead: Callable[[Body], tuple[int, str] | None] = lambda pod: None
        """Exit code and message of a pod instead of a process; None: the process runs."""
        self.pushed: dict[str, str] = {}
        """What the tag of an image names now, if it has been pushed again."""
        self._thread.start()

    def stop(self) -> None:
        """End with all processes."""
        self._stop.set()
        self._thread.join()
        self._end(lambda uid: True)
        for thread in self._threads.values():
            thread.join()

    def kill(self, pod: Body) -> bool:
        """End the process of a pod, as a lack of memory does; False if it has none."""
        process = self._processes.get(pod["metadata"]["uid"])
        if process is not None:
            process.kill()
        return process is not None

    def image_id(self, image: str) -> str:
        """Return the digest by which an image is in the status of pods, with its repository."""
        repository, at, _ = image.partition("@")
        content = hashlib.sha256(self.pushed.get(image, image).encode()).hexdigest()
        return image if at else f"{repository.rpartition(':')[0]}@sha256:{content}"

    def _run(self) -> None:
        with self._plane.client() as kube:
            while not self._stop.wait(0.1):
                try:
                    pods = kube.list("v1", "Pod", self._namespace, label_selector=_OF_JOB)
                except (ApiError, OSError):
                    continue
                there = {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
                self._end(lambda uid, there=there: uid not in there)  # type: ignore[misc]
                for pod in pods:
                    uid = pod["metadata"]["uid"]
                    running = (pod.get("status") or {}).get("phase") == "Running"
                    if running and uid in there and uid not in self._threads:
                        self._threads[uid] = threading.Thread(target=self._play, args=(pod,), daemon=True)
                        self._threads[uid].start()

    def _end(self, of: Callable[[str], bool]) -> None:
        for uid, process in list(self._processes.items()):
            if of(uid):
                process.kill()

    def _play(self, pod: Body) -> None:
        with self._plane.client() as kube, suppress(ApiError, OSError):
            begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            if names.RUN not in pod["metadata"]["labels"]:
                self._report(kube, pod, "Running", {"running": {"startedAt": begun}})
            code, message = self.instead(pod) or self._process(pod)
            if self._stop.is_set():
                return
            ended = {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                "message": message,
                "startedAt": begun,
                "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            self._report(kube, pod, "Failed" if code else "Succeeded", {"terminated": ended})

    def _report(self, kube: KubeClient, pod: Body, phase: str, state: Body) -> None:
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": self.image_id(container["image"]),
            "ready": phase == "Running",
            "restartCount": 0,
            "state": state,
        }
        metadata = {"name": pod["metadata"]["name"], "namespace": self._namespace, "uid": pod["metadata"]["uid"]}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "status": {"phase": phase, "containerStatuses": [status]},
        }
        kube.patch(body, subresource="/status")

    def _process(self, pod: Body) -> tuple[int, str]:
        container = pod["spec"]["containers"][0]
        fields = {"metadata": pod["metadata"], "spec": pod["spec"], "status": pod["status"]}
        given = resolve(container, pod["metadata"]["name"], fields, {}, self._environment)
        result = self._folder / pod["metadata"]["name"]
        result.write_text("")
        own = {key: value.replace(RESULT, str(result)) for key, value in given.items()}
        words = [expand_references(word, given) for word in [*container.get("command", ()), *container.get("args", ())]]
        words = [word.replace(RESULT, str(result)) for word in words]
        # The image's programs.
        known = {"avactl": [sys.executable, "-m", "avactl.cli.main"], "python": [sys.executable]}
        process = subprocess.Popen(
            [*known[words[0]], *words[1:]],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self._environment, **own, "HOME": str(self._folder)},
        )
        uid = pod["metadata"]["uid"]
        self._processes[uid] = process
        if self._stop.is_set():
            process.kill()
        out, err = process.communicate()
        self._processes.pop(uid)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        with (self._folder / "pods.log").open("a") as log:
            log.write(f"{pod['metadata']['name']}: {code}\n{out}{err}\n")
        said = result.read_text() or (err.strip().splitlines() or [""])[-1]
        return code, said[:4096]
