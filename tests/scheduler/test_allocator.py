"""Devices for claims, beside Kubernetes' own allocator: the same worlds to both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from avactl.scheduler.dra.allocator import StuckError
from avactl.scheduler.dra.manager import DraManager
from avactl.scheduler.dra.resource_claim import LiveDeviceClass, ResourceClaim, parse
from avactl.scheduler.dra.resource_slices import AllocationResult
from avactl.scheduler.objects.node_rules import RuleError
from tests.scheduler.device_worlds import NODE, Object, peer, world

pytestmark = pytest.mark.xdist_group("allocator")
_THEIRS = ("claim constraint would not be satisfied", "CEL runtime error")
"""Where upstream gives up on the pod at once; here another device, alternative or node is tried."""


def ours(given: Object, rules: Sequence[Object] = (), late: bool = False) -> list[Object] | None:
    """What avactl allocates; None: nothing. `rules`: DeviceTaintRules, which are seen before the slices, or `late`."""
    dra = DraManager("gpu.example.com")
    for item in () if late else rules:
        dra.put_taint_rule(item)
    for item in given["slices"]:
        dra.put_slice(item)
    for item in rules if late else ():
        dra.put_taint_rule(item)
    classes = {item["metadata"]["name"]: LiveDeviceClass.parse(item) for item in given["classes"]}
    dra.classes = classes
    for item in given["allocated"]:
        results = item["status"]["allocation"]["devices"]["results"]
        dra.devices.hold(item["metadata"]["uid"], tuple(AllocationResult.parse(each) for each in results))
    claims = [ResourceClaim(item) for item in given["claims"]]
    labels = given["node"]["metadata"]["labels"]
    try:
        found = dra.search(NODE, labels, tuple(parse(claim.spec, classes) for claim in claims))
    except (RuleError, StuckError):
        return None
    if found is None:
        return None
    return [dra.allocation(claim, mine, NODE) for claim, mine in zip(claims, found, strict=True)]


def _names(allocations: list[Object]) -> list[Counter[str]]:
    return [Counter(each["request"] for each in one["devices"]["results"]) for one in allocations]


def _only(given: Object, allocations: list[Object]) -> Object:
    """The world with no other free devices than those that were chosen."""
    kept = {
        (each["driver"], each["pool"], each["device"])
        for one in [*(item["status"]["allocation"] for item in given["allocated"]), *allocations]
        for each in one["devices"]["results"]
    }
    slices = []
    for item in given["slices"]:
        spec = dict(item["spec"])
        pool = (spec["driver"], spec["pool"]["name"])
        spec["devices"] = [device for device in spec.get("devices") or () if (*pool, device["name"]) in kept]
        slices.append({**item, "spec": spec})
    return {**given, "slices": slices}


def _plain(allocation: Object) -> Object:
    """Without what is random, and without configurations twice, as upstream repeats them for every request."""
    devices = dict(allocation["devices"])
    devices["results"] = [{key: each[key] for key in each if key != "shareID"} for each in devices["results"]]
    config = devices.pop("config", [])
    devices["config"] = [each for index, each in enumerate(config) if each not in config[:index]]
    return {**allocation, "devices": devices}


def _gives_up(answer: Object) -> bool:
    return any(words in answer.get("error", "") for words in _THEIRS)


def _agree(seeds: range) -> None:
    worlds = [world(seed) for seed in seeds]
    answers = peer(worlds)
    mine = [ours(given) for given in worlds]
    found = same = 0
    for seed, answer, allocations in zip(seeds, answers, mine, strict=True):
        if _gives_up(answer):
            continue
        assert (allocations is None) == (answer["results"] is None), f"world {seed}: {answer}"
        if allocations is not None:
            found += 1
            assert _names(allocations) == _names(answer["results"]), f"world {seed}"
            both = [_plain(one) for one in allocations], [_plain(one) for one in answer["results"]]
            if [one["devices"]["results"] for one in both[0]] == [one["devices"]["results"] for one in both[1]]:
                same += 1
                assert both[0] == both[1], f"world {seed}"
    # What was chosen passes upstream's rules: of nothing but those devices it makes an allocation too.
    chosen = [(seed, given, one) for seed, given, one in zip(seeds, worlds, mine, strict=True) if one]
    for (seed, _, _), answer in zip(chosen, peer([_only(given, one) for _, given, one in chosen]), strict=True):
        assert answer["results"] is not None or any(words in answer.get("error", "") for words in _THEIRS), (
            f"world {seed}"
        )
    assert found > len(worlds) / 5
    assert same > found / 3


def test_agrees_with_kubernetes(control_plane_binaries: None) -> None:
    _agree(range(2000))


@pytest.mark.slow
def test_agrees_with_kubernetes_for_long(control_plane_binaries: None) -> None:
    for start in range(2000, 202_000, 20_000):
        _agree(range(start, start + 20_000))


def test_a_pool_whose_slices_state_different_numbers_is_being_published() -> None:
    given = world(0)
    given["allocated"] = []
    devices = [{"name": "d0"}]
    request = {"name": "r", "exactly": {"deviceClassName": "any", "count": 1}}
    given["claims"][:] = [{**given["claims"][0], "spec": {"devices": {"requests": [request]}}}]
    for counts in ((2, 1), (1, 2), (2, 2)):
        given["slices"] = [
            {
                "metadata": {"name": f"s{number}"},
                "spec": {
                    "nodeName": NODE,
                    "driver": "gpu.example.com",
                    "pool": {"name": "p", "generation": 1, "resourceSliceCount": count},
                    "devices": devices if number else [],
                },
            }
            for number, count in enumerate(counts)
        ]
        assert (ours(given) is None) == (counts != (2, 2))


def test_all_devices_fails_while_a_shared_one_is_full() -> None:
    """As from Kubernetes 1.37 on; 1.36 left full devices out."""
    given = world(0)
    given["slices"] = [
        {
            "metadata": {"name": "s"},
            "spec": {
                "nodeName": NODE,
                "driver": "gpu.example.com",
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {"name": f"d{n}", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
                    for n in range(2)
                ],
            },
        }
    ]
    exactly = {"deviceClassName": "any", "allocationMode": "All", "capacity": {"requests": {"memory": "4Gi"}}}
    request = {"name": "r", "exactly": exactly}
    given["claims"][:] = [{**given["claims"][0], "spec": {"devices": {"requests": [request]}}}]
    share = {"driver": "gpu.example.com", "pool": "p", "device": "d0", "request": "r", "shareID": "1"}
    for taken, fits in (("4Gi", True), ("5Gi", False)):
        status = {"allocation": {"devices": {"results": [{**share, "consumedCapacity": {"memory": taken}}]}}}
        given["allocated"] = [{"metadata": {"name": "b", "namespace": "d", "uid": "b"}, "spec": {}, "status": status}]
        assert (ours(given) is not None) == fits
        assert (peer([given])[0]["results"] is not None) == fits
