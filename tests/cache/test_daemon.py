"""The daemon's skeleton on a real API server and a real Alluxio."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cache.world import MEM, World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("cache")]


def measured(world: World) -> dict[str, Any] | None:
    """Return the status of the tier once it has been measured."""
    tier: dict[str, Any] = world.status().get("tiers", {}).get("tier", {})
    return tier if "workers" in tier else None


def test_a_tier_is_measured_and_shown(world: World) -> None:
    world.tier()
    world.start("--lease", "avactl-cache")
    # A first look can come too early, on a machine under load: it is an error until the next one.
    tier = world.wait(lambda: measured(world))
    assert tier["workers"] == 2
    assert tier["capacityBytes"] == 2 * MEM
    assert "error" not in tier
    shown = world.command("status")
    assert shown.returncode == 0, shown.stderr
    assert "tier  read" in shown.stdout
    assert "░░░" in shown.stdout
    assert json.loads(world.command("status", "--format", "json").stdout)["tiers"]["tier"]["workers"] == 2


def test_a_broken_object_is_its_own_error(world: World) -> None:
    world.config("broken", "cache-tier", "{")
    world.config("wrong", "cache-dataset", {"namespace": "team", "name": "x", "tier": "tier", "versions": 7})
    world.tier()
    world.start()
    world.wait(lambda: world.status().get("tiers", {}).get("tier", {}).get("workers") == 2)
    errors = world.status()["errors"]
    assert errors == {
        f"{world.namespace}/broken": "it is not JSON: EOF while parsing an object at line 1 column 1",
        f"{world.namespace}/wrong": "`versions` is not a list",
    }
    world.wait(lambda: len(world.events("InvalidConfiguration")) == 2)
    regarding = {each["regarding"]["name"] for each in world.events("InvalidConfiguration")}
    assert regarding == {"broken", "wrong"}


def test_a_tier_without_masters_does_not_hold_up_the_others(world: World) -> None:
    world.tier()
    world.config(
        "lost",
        "cache-tier",
        {
            "name": "lost",
            "engine": "alluxio",
            "role": "read",
            "masters": ["127.0.0.1:9"],
            "stores": [],
        },
    )
    world.start()
    world.wait(lambda: "error" in world.status().get("tiers", {}).get("lost", {}))
    world.wait(lambda: world.status()["tiers"]["tier"].get("workers") == 2)
    assert "127.0.0.1:9" in world.status()["tiers"]["lost"]["error"]


def test_one_of_two_replicas_leads_and_the_other_takes_over(world: World) -> None:
    world.tier()
    first = world.start("--lease", "avactl-cache")
    world.wait(world.status)
    lease = "coordination.k8s.io/v1", "Lease", "avactl-cache", world.namespace
    holder = world.kube.get(*lease)["spec"]["holderIdentity"]
    world.start("--lease", "avactl-cache")
    first.terminate()
    first.wait()
    world.kube.delete("v1", "ConfigMap", "avactl-cache-status", world.namespace)
    world.wait(lambda: world.kube.get(*lease)["spec"].get("holderIdentity") not in ("", None, holder))
    world.wait(world.status)
