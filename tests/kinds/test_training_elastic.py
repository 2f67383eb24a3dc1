"""Jobs with a job master, as compiled: slow workers, and the clock."""

from __future__ import annotations

import pytest

from tests.kinds.on_base import objects
from tests.kinds.training import HEAD, PS, container, env, host, job, pod

ELASTIC = HEAD + "  framework: custom\n  strategy: elastic\n  checkpoint: {volume: 1Gi}\n"


def test_slow_workers_of_elastic_jobs_are_replaced() -> None:
    found = objects(ELASTIC + "  workers: {min: 2, max: 5}\n")
    args = container(found, "master")["args"]
    assert args[args.index("--replace-stragglers") + 1] == "2:0.5:60"
    slow = {"containerName": "worker", "operator": "In", "values": [79]}
    rule = {"action": "Ignore", "onExitCodes": slow}
    assert rule in job(found)["spec"]["podFailurePolicy"]["rules"]
    assert rule not in job(found, "master")["spec"]["podFailurePolicy"]["rules"]
    found = objects(ELASTIC + "  workers: {min: 2, max: 5}\n  stragglers: {below: 0.25, after: 90s}\n")
    assert "2:0.25:90" in container(found, "master")["args"]
    found = objects(ELASTIC + "  workers: {min: 2, max: 5}\n  stragglers: {after: 300h}\n")
    assert "2:0.5:1080000" in container(found, "master")["args"]


@pytest.mark.parametrize(
    "settings", ["  workers: {min: 2, max: 5}\n  stragglers: {action: report}\n", "  workers: {min: 5, max: 5}\n"]
)
def test_slow_workers_are_not_replaced(settings: str) -> None:
    """Where it is not wanted, and where there are none to spare."""
    found = objects(ELASTIC + settings)
    assert "--replace-stragglers" not in container(found, "master")["args"]
    assert not [rule for rule in job(found)["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]


def test_the_master_has_probes() -> None:
    master = container(objects(ELASTIC + "  workers: {min: 2, max: 5}\n"), "master")
    assert master["args"][master["args"].index("--http") + 1] == f"$(POD_IP):{master['ports'][0]['containerPort']}"
    for probe, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")):
        assert master[f"{probe}Probe"]["httpGet"] == {"path": path, "port": master["ports"][0]["name"]}


def test_the_clock_of_the_job_master_bounds_the_staleness() -> None:
    settings = "  framework: custom\n  workers: {replicas: 3}\n"
    found = objects(PS + settings + "  consistency: ssp\n  staleness: 3\n  master: {cpu: 2}\n")
    args = container(found, "master")["args"]
    assert args[args.index("--staleness") + 1] == "3"
    assert args[args.index("--workers") + 1] == "3"
    assert container(found, "master")["resources"]["requests"]["cpu"] == "2"
    assert found["Service", "net-rendezvous"]["spec"]["ports"][-1]["port"] == 29600
    assert "vision/net-master" in args
    assert "binaryData" not in found["ConfigMap", "net-master"]
    assert pod(found)["metadata"]["annotations"]["avactl.dev/gang-size"] == "6"
    seen = env(found, index=2)
    assert (seen["AVACTL_MASTER"], seen["AVACTL_WORKER"]) == (f"{host('master', 0)}:29600", "worker-2")
    assert "AVACTL_MASTER" not in env(found, "server")
    for consistency in ("bsp", "asp"):
        found = objects(PS + settings + f"  consistency: {consistency}\n")
        assert ("Job", "net-master") not in found
        assert "AVACTL_MASTER" not in env(found)
