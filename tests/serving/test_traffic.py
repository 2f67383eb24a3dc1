"""Rollouts under load: Traefik or Istio, Prometheus, and a real model in real processes. The figures:
`benchmarks.canary`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.canary.stage import LONG, PICKED, SHORT, Pace, prepare
from tests.cluster_fixtures import building
from tools.network import require

# Prometheus takes five minutes to build: too long for the first run of `make test`.
pytestmark = [pytest.mark.controlplane, pytest.mark.slow, pytest.mark.xdist_group("serving-load")]
SHARE = 3.0  # percentage points


@pytest.fixture(scope="module")
def gateway(request: pytest.FixtureRequest) -> None:
    """Fetch gateway and model server; skip where the machine cannot have them, in CI fail."""
    with building(request):
        require()
        prepare(analysed=False)


@pytest.fixture(scope="module")
def prepared(request: pytest.FixtureRequest, gateway: None) -> None:
    """Build Prometheus, too."""
    with building(request):
        prepare()


@pytest.fixture(scope="module")
def istio(request: pytest.FixtureRequest) -> None:
    """Build Istio, the endpoint picker and Prometheus, and fetch the rest."""
    with building(request):
        require()
        prepare(picked=True)


@pytest.fixture(scope="module")
def roles(request: pytest.FixtureRequest, istio: None) -> None:
    """Build the controller of LeaderWorkerSets, too."""
    with building(request):
        prepare(picked=True, grouped=True)


def rolled(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the benchmark in a network of its own, and return what the clients saw of each rollout."""
    file = folder / "seen.json"
    command = [sys.executable, "-m", "benchmarks.canary", *arguments, "--json", str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


def promoted(seen: dict[str, Any], pace: Pace) -> None:
    """The new version serves, no request failed, and each step had its share."""
    assert (seen["ended"], seen["failed"], seen["own"]) == ("promoted", {}, 0)
    assert set(seen["shares"]) == {str(step) for step in pace.steps}
    assert seen["deviation"] <= SHARE


def rolled_back(seen: dict[str, Any], why: str) -> None:
    """The stable version serves, and no request failed but by the new version's own errors."""
    assert (seen["ended"], seen["failed"]) == ("rolledBack", {})
    assert why in seen["reason"]
    # The first measurement decided: no other step was begun.
    assert 0 < seen["bad"] < seen["requests"] / 2
    assert len(seen["shares"]) == 1


def test_a_new_version_and_a_bad_one(prepared: None, tmp_path: Path) -> None:
    good, bad = rolled(tmp_path, "promote", "errors", "--short")
    promoted(good, SHORT)
    rolled_back(bad, "errors 1: above 0.01")
    assert bad["own"] == bad["bad"]


def test_http_and_grpc_move_together(gateway: None, tmp_path: Path) -> None:
    for each in rolled(tmp_path, "both", "--short"):
        promoted(each, SHORT)


@pytest.mark.slow
def test_groups_of_two_machines_move_one_after_the_other(gateway: None, tmp_path: Path) -> None:
    """The controller of LeaderWorkerSets, which the benchmark builds first, takes minutes to build."""
    (good,) = rolled(tmp_path, "groups", "--short")
    promoted(good, SHORT)


def test_pools_with_endpoint_pickers(istio: None, tmp_path: Path) -> None:
    """Behind Istio, which divides at random, and asks the picker of each pool or, as of version 1.31.0, of one."""
    good, bad, lost, timeouts = rolled(tmp_path, "pickers")
    promoted(good, PICKED)
    rolled_back(bad, "errors 1: above 0.01")
    assert bad["own"] == bad["bad"]
    # Requests of the share of a version without pods fail until the daemon has given them back.
    assert sum(lost["failed"].values()) < lost["requests"] / 4
    assert timeouts == {"default, 16 s": 200, "2s, 1 s": 200, "2s, 5 s": 504, "9s, 5 s": 200}


def test_prefill_and_decode_behind_istio(roles: None, tmp_path: Path) -> None:
    good, bad = rolled(tmp_path, "roles")
    promoted(good, PICKED)
    rolled_back(bad, "errors 1: above 0.01")
    assert bad["own"] == bad["bad"]


def test_every_case_at_the_pace_of_a_cluster(prepared: None, tmp_path: Path) -> None:
    good, http, grpc, bad, slow, full_good, full_bad = rolled(tmp_path)
    for each in (good, http, grpc, full_good):
        promoted(each, LONG)
    for each, why in ((bad, "errors 1: above"), (slow, "median"), (full_bad, "errors 1: above")):
        rolled_back(each, why)
    assert slow["own"] == 0
