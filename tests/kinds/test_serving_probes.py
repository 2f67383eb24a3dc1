"""ServingDeployment: health checks of its own, and the objects of each way of balancing."""

from __future__ import annotations

import pytest

from tests.kinds.on_base import api_server_says, objects
from tests.kinds.test_serving import CUSTOM, TENSORFLOW, TRITON, pod, server
from tools.controlplane import KubeClient

PROBES = """
  probes:
    startup: {script: {configMap: {name: checks, key: warm.sh}, args: [--all]}, period: 5s, failures: 60}
    readiness: {script: {image: "registry.example.com/checks:1", path: /bin/ready}, timeout: 3s}
    liveness: {path: /alive, port: 8002}
"""


def test_each_probe_is_a_path_or_a_script() -> None:
    main = server(objects(TRITON + PROBES))
    assert main["startupProbe"] == {
        "exec": {"command": ["/probes/startup/warm.sh", "--all"]},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 60,
    }
    assert main["readinessProbe"] == {
        "exec": {"command": ["/probes/readiness/ready"]},
        "periodSeconds": 10,
        "timeoutSeconds": 3,
        "failureThreshold": 3,
    }
    assert main["livenessProbe"]["httpGet"] == {"path": "/alive", "port": 8002}


def test_scripts_come_from_a_config_map_or_an_image() -> None:
    made = pod(objects(TRITON + PROBES))
    volumes = {volume["name"]: volume for volume in made["volumes"]}
    assert volumes["probe-startup"]["configMap"] == {
        "name": "checks",
        "items": [{"key": "warm.sh", "path": "warm.sh"}],
        "defaultMode": 0o555,
    }
    copy = next(container for container in made["initContainers"] if container["name"] == "probe-readiness")
    assert copy["command"] == ["cp", "/bin/ready", "/probes/readiness/ready"]
    assert copy["image"] == "registry.example.com/checks:1"


def test_startup_waits_for_what_readiness_asks() -> None:
    main = server(objects(TRITON + "  probes: {readiness: {path: /mine, period: 5s}}\n"))
    assert main["startupProbe"]["httpGet"]["path"] == main["readinessProbe"]["httpGet"]["path"] == "/mine"
    assert main["startupProbe"]["failureThreshold"] == 120
    assert main["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"


def test_readiness_is_enough_for_a_custom_server() -> None:
    text = "\n".join(line for line in CUSTOM.splitlines() if not line.startswith("  probe:"))
    main = server(objects(text + "\n  probes: {readiness: {path: /ok}}\n"))
    assert main["livenessProbe"]["httpGet"] == {"path": "/ok", "port": 9000}


@pytest.mark.parametrize(
    ("balance", "services"),
    [("service", ["classifier"]), ("headless", ["classifier-headless"])],
)
def test_only_the_services_of_the_balancing_are_compiled(balance: str, services: list[str]) -> None:
    found = objects(TENSORFLOW + f"  balance: {balance}\n")
    assert [name for kind, name in found if kind == "Service"] == services


def test_the_api_server_takes_every_object(kube: KubeClient, namespace: str) -> None:
    assert api_server_says(objects(TRITON + PROBES + "  balance: headless\n"), kube, namespace) == []
