"""A small platform on a control plane: machines by kwok, avactl's scheduler, and a member of the team vision."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import forked
from tests.jobs.kubelet import Kubelet
from tests.kinds.compiling import DIGEST, apply, body, compiled, unchecked
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import wait_until

SYSTEM, NAMESPACE, MEMBER = "avactl-system", "vision", "ann"
PLATFORM = f"""
kind: Cluster
metadata: {{name: lab}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
  daemons: {{scheduler: true}}
---
kind: MachineType
metadata: {{name: twosocket}}
spec: {{gpus: {{model: V100, count: 8, memory: 16Gi}}, cpu: 64, memory: 512Gi, sockets: 2}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: lab, machineType: twosocket, count: 2, allocation: devicePlugin}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{groups: [vision]}}}}
---
kind: Quota
metadata: {{name: gpus, team: vision}}
spec: {{gpus: [{{gpu: V100, guaranteed: 16}}]}}
"""
COMPLETE = "pod-complete.stage.kwok.x-k8s.io/delay"


def job(name: str, spec: str = "") -> str:
    """Return a document of a training job."""
    return (
        f"---\nkind: TrainingJob\nmetadata: {{name: {name}, team: vision}}\n"
        f"spec: {{image: 'registry.example.com/train{DIGEST}', command: [python, train.py], {spec}}}\n"
    )


class Lab:
    """The plane, and what tests do with it."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, folder: Path) -> None:
        self.plane, self.kube, self.folder = plane, kube, folder
        result = compiled(PLATFORM)
        apply(kube, [manifest for manifest in result.manifests if not manifest.patch])
        policy = folder / "policy.json"
        policy.write_text(body(result, "ConfigMap", "avactl-policy", SYSTEM, "lab")["data"]["policy.json"])
        self._scheduler_config = folder / "scheduler"
        plane.write_kubeconfig(self._scheduler_config, plane.service_account_token(SYSTEM, "avactl-scheduler", 36_000))
        self.member = folder / "member"
        plane.write_kubeconfig(self.member, plane.token(MEMBER))
        self.kubelet = Kubelet(plane.layout.certificate("kube-apiserver"))
        for number in range(2):
            self._node(f"node-{number}")
        words = ["scheduler", "--config", str(policy), "--kubeconfig", str(self._scheduler_config)]
        with (folder / "scheduler.log").open("wb") as log:
            self._scheduler = forked.start(words, log=log)

    def close(self) -> None:
        self._scheduler.kill()
        self._scheduler.wait()
        self.kubelet.close()

    def _node(self, name: str) -> None:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"}
        labels = {"kubernetes.io/hostname": name, "avactl.dev/pool": "v100", "avactl.dev/gpu": "V100"}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.kubelet.port}},
        }
        metadata = {"name": name, "labels": labels}
        self.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})

    def apply(self, *documents: str) -> None:
        """Apply what jobs compile to."""
        result = unchecked(PLATFORM + "".join(documents))
        assert result.ok, result.diagnostics
        apply(self.kube, [each for each in result.manifests if not each.patch and each.item.kind == "TrainingJob"])

    def avactl(
        self, *arguments: str, kubeconfig: Path | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the member, or with another kubeconfig."""
        return forked.run(self.words(*arguments, kubeconfig=kubeconfig), cwd=cwd)

    def command(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        """Return the words of a command that starts by itself."""
        return [*forked.COMMAND, *self.words(*arguments, kubeconfig=kubeconfig)]

    def words(self, *arguments: str, kubeconfig: Path | None = None) -> list[str]:
        """Return the words of a command, after `avactl`."""
        return [*arguments, "--kubeconfig", str(kubeconfig or self.member)]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Return what `avactl jobs` says to the member, by name of the job."""
        done = self.avactl("jobs", "-n", NAMESPACE, "--format", "json")
        assert done.returncode == 0, done.stderr
        return {job["name"]: job for job in json.loads(done.stdout)["jobs"]}

    def until(self, what: Callable[[], Any]) -> Any:
        """Wait until `what` returns something true, and return it."""
        return wait_until(what, details=lambda: (self.folder / "scheduler.log").read_text()[-2000:])

    def state(self, name: str, state: str) -> dict[str, Any]:
        """Wait until a job has a state, and return the job."""

        def reached() -> dict[str, Any] | None:
            found = self.jobs().get(name)
            return found if found is not None and found["state"] == state else None

        found: dict[str, Any] = self.until(reached)
        return found

    def pods(self, name: str, role: str = "worker") -> list[dict[str, Any]]:
        """Return the pods of a role that have not been deleted, by index."""
        found = self.kube.list("v1", "Pod", NAMESPACE, label_selector=f"batch.kubernetes.io/job-name={name}-{role}")
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))

    def complete(self, name: str, role: str = "worker") -> None:
        """Let the pods of a role end well."""
        for pod in self.pods(name, role):
            self.annotate(pod, {COMPLETE: "0s"})

    def annotate(self, pod: dict[str, Any], notes: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        body = {"metadata": {"annotations": notes}}
        self.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def fail(self, pod: dict[str, Any], code: int) -> None:
        """Let a pod fail."""
        main = pod["spec"]["containers"][0]["name"]
        ended = {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}
        status = {
            "phase": "Failed",
            "containerStatuses": [
                {
                    "name": main,
                    "image": "x",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        }
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
        self.kube.request("PATCH", path, body={"status": status}, content_type="application/merge-patch+json")

    def delete(self, name: str, role: str = "worker") -> None:
        """Delete a role's Job, with its pods."""
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}-{role}"
        self.kube.request("DELETE", path, body={"propagationPolicy": "Background"})


def started(plane_type: type[ControlPlane], folder: Path) -> Iterator[Lab]:
    """Start a lab."""
    with plane_type(controller_manager=True, kwok=True, users={MEMBER: ["vision"]}) as plane, plane.client() as kube:
        lab = Lab(plane, kube, folder)
        try:
            yield lab
        finally:
            lab.close()


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command."""
    return {**os.environ, **more}
