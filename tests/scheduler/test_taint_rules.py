"""DeviceTaintRules, by which administrators keep pods away from devices, and shares of devices with counters."""

from __future__ import annotations

import random
from typing import Any

import orjson

from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.dra.resource_slices import TaintRule
from avactl.scheduler.handlers import resources
from tests.scheduler.device_worlds import GPU, NIC, NODE, Object, world
from tests.scheduler.test_allocator import ours


def rule(name: str = "sick", effect: str = "NoSchedule", key: str = "sick", **selector: str) -> Object:
    taint = {"key": key, "value": "yes", "effect": effect}
    return {"metadata": {"name": name}, "spec": {"deviceSelector": selector, "taint": taint}}


def _random_rules(rng: random.Random) -> list[Object]:
    made = []
    for number in range(rng.randint(1, 4)):
        choices = {
            "driver": rng.choice([GPU, NIC, "other.example.com"]),
            "pool": rng.choice([NODE, "nics", "fabric"]),
            "device": f"{rng.choice(['gpu', 'nic'])}-{rng.randint(0, 4)}",
        }
        selector = {key: value for key, value in choices.items() if rng.random() < 0.5}
        effect = rng.choice(["NoSchedule", "NoExecute", "None"])
        made.append(rule(f"rule-{number}", effect, rng.choice(["sick", "odd"]), **selector))
        if rng.random() < 0.1:
            del made[-1]["spec"]["deviceSelector"]
    return made


def _with_published(given: Object, rules: list[Object]) -> Object:
    """The world in which drivers publish the taints of the rules."""
    copy: Object = orjson.loads(orjson.dumps(given))
    for item in copy["slices"]:
        spec = item["spec"]
        for device in spec.get("devices") or ():
            have = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
            for each in rules:
                selector = each["spec"].get("deviceSelector")
                if selector is not None and selector.items() <= have.items():
                    device.setdefault("taints", []).append(each["spec"]["taint"])
    return copy


def _plain(allocations: list[Object] | None) -> Any:
    if allocations is None:
        return None
    return [[{**each, "shareID": ""} for each in one["devices"]["results"]] for one in allocations]


def test_rules_taint_as_drivers_do() -> None:
    """Kubernetes applies rules to slices before its allocator sees them."""
    differ = 0
    for seed in range(400):
        rng = random.Random(seed)
        given, rules = world(seed), _random_rules(rng)
        late = rng.random() < 0.5
        found = _plain(ours(given, rules, late))
        assert found == _plain(ours(_with_published(given, rules))), f"world {seed}"
        differ += found != _plain(ours(given))
    assert differ > 20


def test_what_a_rule_selects() -> None:
    parsed = TaintRule.parse(rule(driver=GPU, device="gpu-0"))
    assert parsed is not None
    assert parsed.selects((GPU, "any", "gpu-0"))
    assert not parsed.selects((GPU, "any", "gpu-1"))
    assert not parsed.selects((NIC, "any", "gpu-0"))
    every = TaintRule.parse(rule())
    assert every is not None
    assert every.selects((NIC, "any", "x"))
    assert TaintRule.parse(rule(effect="None")) is None
    nothing = rule()
    del nothing["spec"]["deviceSelector"]
    assert TaintRule.parse(nothing) is None


def test_a_rule_that_goes_gives_the_device_back() -> None:
    cache = ClusterCache((), DraManager(GPU))
    cache.dra.put_slice(
        {
            "metadata": {"name": "s"},
            "spec": {
                "driver": GPU,
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
            },
        }
    )
    store = resources.taint_rules(cache)
    cache.tables.stale = False
    store.put(rule(device="gpu-9"))
    assert not cache.tables.stale
    store.put(rule(device="gpu-1"))
    assert cache.tables.stale
    sick = cache.dra.devices.find((GPU, NODE, "gpu-1"))
    assert sick is not None
    assert not sick.plain
    assert list(store.keys()) == ["sick"]
    store.remove("sick")
    assert sick.plain


def _shared(**more: Any) -> Object:
    takes = {"consumesCounters": [{"counterSet": "gpu", "counters": {"slices": {"value": "7"}}}]}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    whole = {"name": "whole", "allowMultipleAllocations": True, **takes, **more}
    part = {"name": "part", "attributes": {"part": {"bool": True}}, **takes}
    counters = [{"name": "gpu", "counters": {"slices": {"value": "7"}}}]
    common = {"driver": GPU, "pool": pool, "nodeName": NODE}
    return {
        "node": {"metadata": {"name": NODE, "labels": {}}},
        "slices": [
            {"metadata": {"name": "d"}, "spec": {**common, "devices": [whole, part]}},
            {"metadata": {"name": "c"}, "spec": {**common, "sharedCounters": counters}},
        ],
        "classes": [{"metadata": {"name": "gpu"}, "spec": {}}],
    }


def _claim(expression: str) -> Object:
    metadata = {"name": "c", "namespace": "t", "uid": "c", "resourceVersion": "1"}
    request = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    selectors = [{"cel": {"expression": expression}}]
    requests = [{"name": "r", "exactly": {**request, "selectors": selectors}}]
    created = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": {**metadata, **created}, "spec": {"devices": {"requests": requests}}}


def test_a_second_share_takes_nothing_more_from_counters() -> None:
    """With capacity or without: the counters of a device are charged once."""
    whole, part = _claim("device.allowMultipleAllocations"), _claim("!device.allowMultipleAllocations")
    given = {**_shared(), "claims": [whole], "allocated": []}
    first = ours(given)
    assert first is not None
    (result,) = first[0]["devices"]["results"]
    assert result["shareID"]
    assert "consumedCapacity" not in result
    metadata = {"name": "u", "namespace": "t", "uid": "u", "resourceVersion": "1"}
    held = [{"metadata": metadata, "status": {"allocation": {"devices": {"results": [result]}}}}]
    assert ours({**given, "allocated": held}) is not None
    # What is left of the counters is not enough for another device.
    assert ours({**given, "claims": [part], "allocated": held}) is None
    assert ours({**given, "claims": [part]}) is not None
