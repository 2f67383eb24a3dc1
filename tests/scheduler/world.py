"""A cluster for tests of the scheduler: machines by kwok, and the daemon as a process with its compiled rights only."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from tests import forked
from tests.kinds.compiling import DIGEST, apply, body, compiled
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import PATIENCE_S, wait_until

SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{scheduler: true}}
  placement: {{levels: [example.com/rack, example.com/block]}}
---
kind: MachineType
metadata: {{name: twosocket}}
spec:
  gpus: {{model: V100, count: 8, memory: 16Gi}}
  cpu: 64
  memory: 512Gi
  sockets: 2
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: twosocket, count: 4, allocation: devicePlugin}}
"""
SYSTEM = "avactl-system"
LEASE = "avactl-scheduler"


class World:
    """One plane, on which tests take turns: machines and pods are removed after each."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, folder: Path) -> None:
        self.plane, self.kube, self.folder = plane, kube, folder
        result = compiled(SPECS)
        apply(kube, result.manifests)
        self.policy = folder / "policy.json"
        self.policy.write_text(body(result, "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"])
        self.kubeconfig = folder / "kubeconfig"
        plane.write_kubeconfig(self.kubeconfig, plane.service_account_token(SYSTEM, LEASE, 36_000))
        self.namespace = ""
        self.running: list[forked.Process] = []
        self._logs: list[Path] = []
        """Of the daemons that the test has started."""

    # -- a test's turn ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A namespace of the test's own."""
        self.namespace = f"test-{uuid.uuid4().hex[:8]}"
        self.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        account = {"name": "default", "namespace": self.namespace}
        self.kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})

    def end(self) -> None:
        """Nothing is left for the next test."""
        for process in self.running:
            process.kill()
            process.wait()
        self.running.clear()
        self._logs.clear()
        self._sweep()
        self.kube.request("DELETE", "/api/v1/nodes")
        self.kube.delete("v1", "Namespace", self.namespace)
        self.free_lease()

    def _sweep(self) -> None:
        """No controller makes pods anew, and no pod waits for a kubelet or a Job that will never look at it."""
        for version, kind in (("batch/v1", "Job"), ("apps/v1", "Deployment"), ("apps/v1", "ReplicaSet")):
            for item in self.kube.list(version, kind):
                path = f"/apis/{version}/namespaces/{item['metadata']['namespace']}/{kind.lower()}s"
                self.kube.request("DELETE", path, body={"propagationPolicy": "Background"})

        def gone() -> bool:
            pods = self.kube.list("v1", "Pod")
            for pod in pods:
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                with contextlib.suppress(ApiError):  # it is gone meanwhile
                    self.kube.request("DELETE", path, body={"gracePeriodSeconds": 0})
                    if pod["metadata"].get("finalizers"):
                        body = {"metadata": {"finalizers": None}}
                        self.kube.request("PATCH", path, body=body, content_type="application/merge-patch+json")
            return not pods

        self.wait(gone)

    def free_lease(self) -> None:
        """Whoever held it is dead: nobody has to wait until it runs out."""
        try:
            self.kube.delete("coordination.k8s.io/v1", "Lease", LEASE, SYSTEM)
        except ApiError as error:
            if error.status != 404:
                raise

    # -- the daemon -------------------------------------------------------------------------------------------------

    def start(
        self, *arguments: str, lease: str = LEASE, kubeconfig: Path | None = None, name: str = ""
    ) -> forked.Process:
        """Start a replica; in the Lease it goes by its name."""
        words = ["scheduler", "--config", str(self.policy), "--kubeconfig", str(kubeconfig or self.kubeconfig)]
        log = self.folder / f"scheduler-{len(list(self.folder.iterdir()))}.log"
        environment = {**os.environ, "POD_NAME": name} if name else None
        with log.open("wb") as output:
            process = forked.start([*words, "--lease", lease, *arguments], log=output, env=environment)
        self.running.append(process)
        self._logs.append(log)
        return process

    def defects(self) -> list[str]:
        """What the daemons logged of failures that are nobody's but their own."""
        own = ("scheduling failed", "periodic tasks failed", "invalid object", "invalid pod", "Traceback")
        lines = [line for log in self._logs for line in log.read_text().splitlines()]
        return [line for line in lines if any(words in line for words in own)]

    def kill(self, process: forked.Process) -> None:
        """kill -9."""
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.running.remove(process)

    # -- machines and pods ------------------------------------------------------------------------------------------

    def node(
        self, name: str, gpus: int = 8, pool: str = "v100", labels: dict[str, str] | None = None, **spec: Any
    ) -> None:
        """A machine."""
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        if gpus:
            amounts["nvidia.com/gpu"] = str(gpus)
        known = {"kubernetes.io/hostname": name, **(labels or {})}
        if pool:
            known |= {"avactl.dev/pool": pool, "avactl.dev/gpu": "V100"}
        status = {"capacity": amounts, "allocatable": amounts}
        metadata = {"name": name, "labels": known}
        self.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})

    def ready(self) -> None:
        """Wait until machines have no taints of the node controller."""
        self.wait(
            lambda: (
                not any(
                    taint["key"].startswith("node.kubernetes.io/not-ready")
                    for node in self.kube.list("v1", "Node")
                    for taint in node["spec"].get("taints") or ()
                )
            )
        )

    def pod(
        self,
        name: str,
        gpus: int = 0,
        cpu: str = "1",
        scheduler: str = "avactl",
        labels: dict[str, str] | None = None,
        notes: dict[str, str] | None = None,
        container: dict[str, Any] | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        """Create a pod."""
        requests = {"cpu": cpu, "memory": "1Gi"}
        limits = {}
        if gpus:
            limits["nvidia.com/gpu"] = requests["nvidia.com/gpu"] = str(gpus)
        main = {
            "name": "main",
            "image": "registry.example.com/x:1",
            "resources": {"requests": requests, "limits": limits},
            **(container or {}),
        }
        metadata = {"name": name, "namespace": self.namespace, "labels": labels or {}, "annotations": notes or {}}
        return self.kube.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata,
                "spec": {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [main], **spec},
            }
        ).body

    def gang(self, name: str, members: int, gpus: int = 8, size: int = 0, first: int = 0) -> None:
        """Create pods of a gang."""
        for number in range(first, members):
            self.pod(
                f"{name}-{number}",
                gpus,
                labels={"avactl.dev/gang": name},
                notes={
                    "avactl.dev/gang-size": str(size or members),
                    "batch.kubernetes.io/job-completion-index": str(number),
                },
            )

    def bind(self, name: str, node: str, devices: str = "") -> None:
        """What another scheduler does, or did before it died."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace}
        if devices:
            metadata["annotations"] = {"avactl.dev/devices": devices}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self.kube.request("POST", f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding", body=binding)

    # -- looking ----------------------------------------------------------------------------------------------------

    def pods(self) -> dict[str, dict[str, Any]]:
        """The test's pods by name."""
        return {item["metadata"]["name"]: item for item in self.kube.list("v1", "Pod", self.namespace)}

    def nodes_of(self) -> dict[str, str]:
        """Where each pod is; empty: nowhere."""
        return {name: item["spec"].get("nodeName", "") for name, item in self.pods().items()}

    def bound(self, *names: str, timeout: float = PATIENCE_S) -> dict[str, str]:
        """Wait until these pods are bound (all if none is named), and return where."""

        def there() -> bool:
            found = self.nodes_of()
            return all(found.get(name) for name in names or found)

        self.wait(there, timeout)
        return self.nodes_of()

    def waiting(self, name: str, words: str = "", timeout: float = PATIENCE_S) -> str:
        """Wait until a pod's condition says these words, and return all that it says."""
        text = ""

        def said() -> bool:
            nonlocal text
            conditions = self.pods()[name].get("status", {}).get("conditions") or ()
            found = [each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False"]
            text = found[0].get("message", "") if found else ""
            return bool(text) and words in text

        try:
            self.wait(said, timeout)
        except TimeoutError:
            raise AssertionError(f"{name} says `{text}`, not `{words}`") from None
        return text

    def devices(self, name: str) -> set[int]:
        """The GPUs of a pod."""
        return self.devices_of(self.pods()[name])

    def devices_of(self, pod: dict[str, Any]) -> set[int]:
        """The GPUs of a pod that was read before."""
        text = (pod["metadata"].get("annotations") or {}).get("avactl.dev/devices", "")
        return {int(part) for part in text.split(",") if part}

    def wait_events(self, reason: str, count: int) -> list[dict[str, Any]]:
        """Wait for `count` events of the test's namespace: they are posted after what they tell of."""
        self.wait(lambda: len(self.events(reason)) >= count)
        return self.events(reason)

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Events of the test's namespace."""
        found = self.kube.list("events.k8s.io/v1", "Event", self.namespace)
        return [event for event in found if event["reason"] == reason]

    def config(self, name: str, kind: str, data: dict[str, Any]) -> None:
        """A ConfigMap that the scheduler reads."""
        metadata = {"name": name, "namespace": SYSTEM, "labels": {"avactl.dev/config": kind}}
        file = {"topology": "pool.json", "quota": "quota.json"}[kind]
        text = orjson.dumps(data).decode()
        self.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {file: text}})

    def wait(self, until: Callable[[], object], timeout: float = PATIENCE_S) -> None:
        """Wait until it is true; TimeoutError, with logs and pods, after `timeout` seconds."""
        wait_until(until, timeout=timeout, details=lambda: "\n".join([*self.logged(), *self._situation()]))

    def logged(self) -> list[str]:
        """Return the last lines of the last two daemons, without those on watches."""
        return [
            line
            for log in self._logs[-2:]
            for line in [each for each in log.read_text().splitlines() if "watch broken" not in each][-20:]
        ]

    def _situation(self) -> list[str]:
        """The test's pods, claims and ReplicaSets, as a reader of a failure needs them."""
        lines = []
        for name, pod in self.pods().items():
            claims = (pod.get("status") or {}).get("resourceClaimStatuses")
            said = [each.get("message") for each in (pod.get("status") or {}).get("conditions") or ()]
            lines.append(f"pod {name} on {pod['spec'].get('nodeName')}: {said} claims {claims}")
        for version, kind in (("resource.k8s.io/v1", "ResourceClaim"), ("apps/v1", "ReplicaSet")):
            for item in self.kube.list(version, kind, self.namespace):
                lines.append(f"{kind} {item['metadata']['name']}: {orjson.dumps(item.get('status')).decode()}")
        return lines
