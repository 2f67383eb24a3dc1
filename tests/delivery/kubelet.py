"""A kubelet for the pods of pipelines' runs: their containers as processes, with the pods' environment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from avactl import names
from avactl.local.environment import expand, resolve
from tools.controlplane import ApiError, ControlPlane, KubeClient

Body = dict[str, Any]
RESULT = "/dev/termination-log"


class Kubelet:
    """Runs the Job pods that kwok has started, and reports how they ended."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path, environment: Mapping[str, str]) -> None:
        """`environment`: variables of all processes; Secrets are found by the name of their variable."""
        self._plane, self._namespace, self._folder, self._environment = plane, namespace, folder, dict(environment)
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.instead: Callable[[Body], tuple[int, str] | None] = lambda pod: None
        """Exit code and message of a pod instead of a process; None: the process runs."""
        self._thread.start()

    def stop(self) -> None:
        """End after the processes that run."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._plane.client() as kube:
            while not self._stop.wait(0.1):
                try:
                    for pod in kube.list("v1", "Pod", self._namespace, label_selector=names.RUN):
                        running = (pod.get("status") or {}).get("phase") == "Running"
                        if running and pod["metadata"]["uid"] not in self._seen:
                            self._seen.add(pod["metadata"]["uid"])
                            self._play(kube, pod)
                except (ApiError, OSError):
                    continue

    def _play(self, kube: KubeClient, pod: Body) -> None:
        code, message = self.instead(pod) or self._process(pod)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now, "startedAt": now}
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": False, "restartCount": 0,
            "state": {"terminated": {**ended, "message": message}},
        }  # fmt: skip
        metadata = {"name": pod["metadata"]["name"], "namespace": self._namespace}
        body = {
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [status]},
        }  # fmt: skip
        kube.patch(body, subresource="/status")

    def _process(self, pod: Body) -> tuple[int, str]:
        container = pod["spec"]["containers"][0]
        fields = {"metadata": pod["metadata"], "spec": pod["spec"], "status": pod["status"]}
        given = resolve(container, pod["metadata"]["name"], fields, {}, self._environment)
        result = self._folder / pod["metadata"]["name"]
        result.write_text("")
        own = {key: value.replace(RESULT, str(result)) for key, value in given.items()}
        words = [expand(word, given) for word in [*container.get("command", ()), *container.get("args", ())]]
        words = [word.replace(RESULT, str(result)) for word in words]
        # The image's programs.
        known = {"avactl": [sys.executable, "-m", "avactl.cli.main"], "python": [sys.executable]}
        done = subprocess.run(
            [*known[words[0]], *words[1:]], cwd=self._folder, capture_output=True, text=True, check=False,
            env={**os.environ, **self._environment, **own, "HOME": str(self._folder)},
        )  # fmt: skip
        with (self._folder / "pods.log").open("a") as log:
            log.write(f"{pod['metadata']['name']}: {done.returncode}\n{done.stdout}{done.stderr}\n")
        said = result.read_text() or (done.stderr.strip().splitlines() or [""])[-1]
        return done.returncode, said[:4096]
