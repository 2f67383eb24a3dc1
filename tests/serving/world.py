"""A platform with services on a real control plane: machines by kwok, Kubernetes' own controllers and scheduler, and
the serving daemon as a process with its own account."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import forked
from tests.kinds.compiling import DIGEST, apply, compiled
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import PATIENCE_S, wait_until

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{serving: true}}
  monitoring: {{prometheusOperator: false, prometheus: "http://127.0.0.1:9", interval: 1s}}
  exposure:
    gateway: {{name: public, namespace: gateways}}
    requests: 'sum(rate(requests_total{{namespace="{{{{namespace}}}}",route=~"{{{{routes}}}}"}}[2m]))'
    proxies: [{{namespace: gateways}}]
    domains: [{{name: ai.example.com}}]
---
kind: Team
metadata: {{name: TEAM}}
spec: {{members: {{groups: [tenants]}}}}
"""
ROUTES = "gateway.networking.k8s.io/v1"


class World:
    """Services of one team, and the daemon."""

    platform = PLATFORM

    def __init__(self, plane: ControlPlane, kube: KubeClient, team: str, folder: Path) -> None:
        self.plane, self.kube, self.team, self.folder = plane, kube, team, folder
        self.log = folder / "daemon.log"
        self._config = folder / "daemon"
        self._processes: list[forked.Process] = []
        self.options: list[str] = []
        self.deploy("")
        plane.write_kubeconfig(self._config, plane.service_account_token("avactl-system", "avactl-serving", 36_000))

    # -- specs

    def deploy(self, specs: str, **metadata: str) -> None:
        """Apply the platform and these specs."""
        result = compiled(self.platform.replace("TEAM", self.team) + specs)
        apply(self.kube, [each for each in result.manifests if not each.patch])

    def deploy_rolling(self, version: int) -> None:
        """Apply the service without `rollout`; what only the other form has is left as it is."""
        self.deploy(self.service(version, "{rolling: {}}"))
        metadata = {"name": "web", "namespace": self.team, "annotations": {"avactl.dev/rollout": None}}
        # One field manager of server-side apply would have removed these.
        self.kube.patch({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"paused": None}})

    def accept(self, kind: str = "HTTPRoute") -> None:
        """Do what a gateway does with a route: accept it."""
        condition = {
            "type": "Accepted",
            "status": "True",
            "reason": "Accepted",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        parent = {
            "parentRef": {"name": "public", "namespace": "gateways", "sectionName": "https"},
            "controllerName": "example.com/gateway",
            "conditions": [condition],
        }
        metadata = {"name": "web-rollout", "namespace": self.team}
        body = {"apiVersion": ROUTES, "kind": kind, "metadata": metadata, "status": {"parents": [parent]}}
        self.kube.patch(body, subresource="/status")

    def weights(self, kind: str = "HTTPRoute") -> dict[str, int]:
        """Return the weights of a route by the version of the model; {} before the daemon has set them."""
        return self._weights_of(self._route(kind))

    def weights_and_ready(self, *kinds: str) -> tuple[list[dict[str, int]], dict[str, int]]:
        """Return the weights of routes, and the pods that are ready while the routes have them.

        The daemon may change a route between two reads: then the pods tell nothing about the weights read before.
        """
        while True:
            routes = [self._route(kind) for kind in kinds]
            weights, ready = [self._weights_of(route) for route in routes], self.ready()
            if list(map(_version, routes)) == [_version(self._route(kind)) for kind in kinds]:
                return weights, ready

    def _route(self, kind: str) -> dict[str, Any] | None:
        return self.kube.find(ROUTES, kind, "web-rollout", self.team)

    def _weights_of(self, route: dict[str, Any] | None) -> dict[str, int]:
        names = {each["metadata"]["name"]: version for version, each in self.sets().items()}
        refs = (route["spec"].get("rules") or [{}])[0].get("backendRefs", ()) if route else ()
        return {names.get(ref["name"], ref["name"]): ref["weight"] for ref in refs}

    def service(self, version: int, rollout: str, more: str = "replicas: 4") -> str:
        """Return the spec of the service `web`."""
        return f"""
---
kind: ServingDeployment
metadata: {{name: web, team: {self.team}}}
spec:
  model: {{name: digits, version: "{version}"}}
  runtime: {{name: custom, image: "registry.example.com/server{DIGEST}", port: 8080, grpcPort: 9090}}
  probe: {{path: /health}}
  resources: {{cpu: 1, memory: 1Gi}}
  drain: 1s
  {more}
  rollout: {rollout}
"""

    # -- the daemon

    def start(self) -> forked.Process:
        """Start the daemon."""
        words = ["serving", "run", "--kubeconfig", str(self._config), "--interval", "0.2", "--settle", "0.3"]
        with self.log.open("ab") as log:
            process = forked.start([*words, *self.options], log=log)
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Kill the daemon with SIGKILL."""
        process = self._processes.pop()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all processes."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    # -- observation

    def deployment(self) -> dict[str, Any]:
        return self.kube.get("apps/v1", "Deployment", "web", self.team)

    def state(self) -> dict[str, Any]:
        """Return the state that the daemon has written; {} before."""
        notes = self.deployment()["metadata"].get("annotations") or {}
        state: dict[str, Any] = json.loads(notes.get("avactl.dev/rollout-state", "{}"))
        return state

    def sets(self) -> dict[str, dict[str, Any]]:
        """Return the ReplicaSets by the version of the model."""
        found = {}
        for each in self.kube.list("apps/v1", "ReplicaSet", self.team):
            env = each["spec"]["template"]["spec"]["containers"][0]["env"]
            found[next(e["value"] for e in env if e["name"] == "AVACTL_MODEL_VERSION")] = each
        return found

    def ready(self) -> dict[str, int]:
        """Return ready pods by the version of the model, without those that are terminating."""
        found: dict[str, int] = {}
        for pod in self.kube.list("v1", "Pod", self.team):
            conditions = (pod.get("status") or {}).get("conditions") or ()
            up = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            is_server = pod["metadata"]["labels"].get("app.kubernetes.io/component") == "server"
            if up and is_server and not pod["metadata"].get("deletionTimestamp"):
                env = pod["spec"]["containers"][0]["env"]
                version = next(e["value"] for e in env if e["name"] == "AVACTL_MODEL_VERSION")
                found[version] = found.get(version, 0) + 1
        return found

    def reasons(self) -> list[str]:
        """Return the reasons of the daemon's events on the service, in order."""
        found = self.kube.list("events.k8s.io/v1", "Event", self.team)
        own = [each for each in found if each.get("reportingController") == "avactl-serving"]
        return [each["reason"] for each in sorted(own, key=lambda each: each["eventTime"])]

    def condition(self) -> tuple[str, str, str]:
        """Return status, reason and message of the daemon's condition."""
        for each in self.deployment().get("status", {}).get("conditions") or ():
            if each["type"] == "avactl.dev/Rollout":
                return each["status"], each["reason"], each.get("message", "")
        return "", "", ""

    def until(self, true: Callable[[], Any], patience: float = PATIENCE_S) -> Any:
        """Wait until this is true; fails with the daemon's log."""
        return wait_until(
            true,
            timeout=patience,
            details=self._situation,
            failed=lambda: [
                f"the daemon ended with {code}" for each in self._processes if (code := each.poll()) is not None
            ],
        )

    def _situation(self) -> str:
        logs = [self.log, self.plane.log("kwok")]
        ends = "\n".join(log.read_text()[-6000:] for log in logs if log.exists())
        return f"{self.state()} {self.ready()} {self.condition()}\n{ends}"

    def scale(self, pods: int) -> None:
        """Do what `kubectl scale` or an autoscaler does."""
        metadata = {"name": "web", "namespace": self.team}
        self.kube.patch(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"replicas": pods}}
        )

    def settled(self, version: str, pods: int = 4) -> bool:
        """Return whether only this version runs, and the Deployment controller counts its pods."""
        status = self.deployment().get("status", {})
        state = self.state()
        return (
            self.ready() == {version: pods}
            and state.get("phase", "steady") == "steady"
            and status.get("replicas") == status.get("availableReplicas") == pods
        )


def _version(route: dict[str, Any] | None) -> str:
    return str(route["metadata"]["resourceVersion"]) if route else ""


def node(kube: KubeClient, name: str, cpu: str = "64") -> None:
    """Create a machine, which kwok plays."""
    amounts = {"cpu": cpu, "memory": "512Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts}
    labels = {"kubernetes.io/hostname": name}
    kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status})
