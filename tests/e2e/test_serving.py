"""Versions of a service that do not come up, as real pods: the condition says why, and the live one is untouched."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e.platform import Repository
from tests.e2e.pods import is_ready
from tools.controlplane import KubeClient
from tools.image.images import PYTHON
from tools.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("real-nodes")]
TEAM = "vision"
CONDITION = "avactl.dev/Rollout"
TIMEOUT = 180.0  # seconds: the daemon says why after ten
SCRIPTS = {
    "good.sh": "exit 0",
    "fails.sh": "echo the model is not loaded; exit 1",
    "hangs.sh": "sleep 1000",
    "garbage.sh": "head -c 100000 /dev/urandom; exit 3",
}
SERVICE = """\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {name: web, team: vision}
spec:
  model: {name: web, version: "VERSION"}
  runtime: {name: custom, image: "IMAGE", port: 8080, command: [PYTHON, -m, http.server, "8080"]}
  probes:
    startup: {path: /, timeout: 3s, period: 3s, failures: 60}
    readiness: {READINESS, timeout: 3s, period: 3s}
    liveness: {path: /}
  resources: {cpu: 50m, memory: 64Mi}
  replicas: 2
  drain: 1s
  rollout: {canary: {traffic: replicas, steps: [{percent: 50, pause: 1s}]}}
"""


class Service:
    """The service `web` of two pods."""

    def __init__(self, repository: Repository, kube: KubeClient, image: str) -> None:
        self._repository, self._kube, self._image = repository, kube, image

    def specs(self, version: int, readiness: str) -> str:
        specs = SERVICE.replace("VERSION", str(version)).replace("IMAGE", self._image)
        return specs.replace("READINESS", readiness).replace("PYTHON", PYTHON)

    def change(self, version: int, readiness: str) -> None:
        self._repository.change("web.yaml", self.specs(version, readiness))

    def replaced(self, old: int, new: int) -> None:
        """Wait until the pods of the new version are ready, and those of the old one gone."""
        wait_until(lambda: (len(self.ready(new)), len(self.ready(old))) == (2, 0), timeout=TIMEOUT)
        # `Promoted` may last for less than a look at it.
        self.told("^Stable|^Promoted")

    def ready(self, version: int) -> set[str]:
        """UIDs of the ready pods of a version."""
        found = self._kube.list("v1", "Pod", TEAM, label_selector="app.kubernetes.io/instance=web")
        return {pod["metadata"]["uid"] for pod in found if is_ready(pod) and self._version(pod) == str(version)}

    @staticmethod
    def _version(pod: dict[str, Any]) -> str:
        env = pod["spec"]["containers"][0].get("env", [])
        return next((each["value"] for each in env if each["name"] == "AVACTL_MODEL_VERSION"), "")

    def told(self, pattern: str) -> str:
        """Wait until the condition's reason and message match, and return them."""

        def found(deployment: dict[str, Any]) -> bool:
            return re.search(pattern, text(deployment)) is not None

        try:
            return text(self._kube.wait_for("apps/v1", "Deployment", "web", TEAM, until=found, timeout=TIMEOUT))
        except Exception as error:
            error.add_note(text(self._kube.get("apps/v1", "Deployment", "web", TEAM)))
            raise


def text(deployment: dict[str, Any]) -> str:
    for each in deployment.get("status", {}).get("conditions") or []:
        if each["type"] == CONDITION:
            return f"{each['reason']}: {each.get('message', '')}"
    return ""


@pytest.mark.short
def test_a_new_version_takes_its_canary_step(repository: Repository, kube: KubeClient, avactl_image: str) -> None:
    service = Service(repository, kube, avactl_image)
    repository.write("web.yaml", service.specs(1, "path: /"))
    service.told("^Stable")
    # On a busy machine a probe can be late, and a pod unready for a moment.
    wait_until(lambda: len(service.ready(1)) == 2, timeout=TIMEOUT)
    live = service.ready(1)
    service.change(2, "path: /")
    # The step: half of the requests, by one pod of each version.
    wait_until(lambda: len(service.ready(2)) == 1, timeout=TIMEOUT)
    assert service.ready(1) & live
    service.replaced(1, 2)
    repository.remove("web.yaml")


def test_what_is_wrong_with_a_version_is_told(repository: Repository, kube: KubeClient, avactl_image: str) -> None:
    data = {name: f"#!/bin/sh\n{script}\n" for name, script in SCRIPTS.items()}
    checks = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "checks", "namespace": TEAM}, "data": data}
    kube.apply(checks)
    service = Service(repository, kube, avactl_image)
    good = "script: {configMap: {name: checks, key: good.sh}}"
    repository.write("web.yaml", service.specs(1, good))
    service.told("^Stable|^Promoted")
    live = service.ready(1)
    assert len(live) == 2
    probe = "0 of 1 pods are ready: server runs, and its readiness probe does not succeed"
    cases = [
        ("configMap: {name: checks, key: fails.sh}", probe),
        ("configMap: {name: checks, key: hangs.sh}", probe),
        ("configMap: {name: checks, key: garbage.sh}", probe),
        ("configMap: {name: checks, key: missing.sh}", "pod web-.* waits for a volume or its network"),
        (f'image: "{avactl_image}", path: /bin/missing', "probe-readiness ended with exit code 1.*: cp: .*missing"),
    ]
    for number, (script, why) in enumerate(cases):
        service.change(2 + number, f"script: {{{script}}}")
        print(service.told(why))
        assert live <= service.ready(1)
        service.change(1, good)
        service.told("^Stable|^RolledBack")
        assert service.ready(1) == live
    service.change(10, good)
    service.replaced(1, 10)
    repository.remove("web.yaml")
    kube.delete("v1", "ConfigMap", "checks", TEAM)
