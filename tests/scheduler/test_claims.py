"""Decisions on pods with claims, in memory: which GPUs, who else waits, and when they are looked at again."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from avactl.change.plan.cluster_state import ClusterState
from avactl.change.plan.simulator import SimulatedCluster
from avactl.contracts.scheduling import PlacementPolicy
from avactl.hardware.machine import Machine, PcieSwitch
from avactl.scheduler.cache.claim_bookings import MAX_CONSUMERS
from avactl.scheduler.dra.allocator import Allocator
from avactl.scheduler.dra.manager import MAX_DEMANDS_CACHED, DraManager
from avactl.scheduler.dra.resource_claim import ResourceClaim
from avactl.scheduler.dra.resource_slices import ReachablePool
from avactl.scheduler.handlers.resources import slices
from avactl.scheduler.objects.config import ConfiguredPool
from avactl.scheduler.objects.node_rules import NotYetError, UnsupportedError
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.scheduling_queue import QueuedPodGroup
from tests.scheduler import offline
from tests.scheduler.memory import Memory

GPU, NIC = "gpu.example.com", "nic.example.com"
SWITCHES = tuple(PcieSwitch(socket, tuple(range(4 * socket, 4 * socket + 4)), ()) for socket in (0, 1))
TWO_SOCKETS = Machine("V100", 8, 2**34, 64.0, 2**39, SWITCHES, None, (), 3.0, 8.0, 12.0)
Given = dict[str, Any]


class Claiming(Memory):
    """Machines with two sockets of four GPUs and a NIC, by two drivers. Allocations are known at once."""

    def __init__(self, machines: int = 1) -> None:
        super().__init__(0)
        self.cache.put_pool(ConfiguredPool("p", "dra", "", "", GPU, TWO_SOCKETS))
        for name, driver in (("gpu", GPU), ("nic", NIC)):
            selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
            self.cache.dra.put_class({"metadata": {"name": name}, "spec": {"selectors": selectors}})
        for number in range(machines):
            labels = {"avactl.dev/pool": "p", "avactl.dev/gpu": "V100"}
            amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
            node = {"metadata": {"name": f"n{number}", "labels": labels}, "status": {"allocatable": amounts}}
            self.cache.put_node(node)
            for driver, count in ((GPU, 8), (NIC, 2)):
                self._publish(driver, f"n{number}", 8 // count, count)

    def _publish(self, driver: str, node: str, each: int, count: int) -> None:
        devices = [
            {"name": f"d{n}", "attributes": {"index": {"int": n}, f"{GPU}/socket": {"int": n * each // 4}}}
            for n in range(count)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"nodeName": node, "driver": driver, "pool": pool, "devices": devices}
        self.cache.dra.put_slice({"metadata": {"name": f"{driver}-{node}"}, "spec": spec})

    def claim(
        self, name: str, *requests: Given, constraints: Sequence[Given] = (), status: Given | None = None
    ) -> None:
        metadata = {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"}
        devices = {"requests": list(requests), "constraints": list(constraints)}
        self.cache.claims.put({"metadata": metadata, "spec": {"devices": devices}, "status": status or {}})

    def asking(self, name: str, *claims: str, **more: Any) -> None:
        self.pod("a", name, resourceClaims=[{"name": each, "resourceClaimName": each} for each in claims], **more)

    def settle(self) -> None:
        for key in self.cache.tables.waits.woken:
            self.queue.push(self.queue.units[key])
        self.cache.tables.waits.woken.clear()
        super().settle()

    def gpus(self, claim: str) -> set[int]:
        held = self.cache.dra.devices.held(claim)
        return {int(result.key[2][1:]) for result in held if result.key[0] == GPU}


def request(name: str, count: int = 1, device_class: str = "gpu") -> Given:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}


def test_gpus_of_claims_are_linked() -> None:
    world = Claiming()
    world.claim("two", request("gpus", 2))
    world.claim("four", request("gpus", 4))
    world.asking("two", "two")
    world.asking("four", "four")
    world.settle()
    assert len({gpu // 4 for gpu in world.gpus("two")}) == len({gpu // 4 for gpu in world.gpus("four")}) == 1
    # With a constraint too: the pair that is left on the first one's socket, beside that socket's NIC.
    near = [{"matchAttribute": f"{GPU}/socket"}]
    world.claim("near", request("gpus", 2), request("nic", 1, "nic"), constraints=near)
    world.asking("near", "near")
    world.settle()
    assert {gpu // 4 for gpu in world.gpus("near")} == {gpu // 4 for gpu in world.gpus("two")}


def test_a_link_that_is_required_is_waited_for() -> None:
    world = Claiming()
    far = [{"distinctAttribute": f"{GPU}/socket"}]
    world.claim("near", request("one"), request("other"), request("nic", 1, "nic"))
    world.claim("far", request("one"), request("other"), constraints=far)
    notes = {"avactl.dev/link": "socket", "avactl.dev/link-policy": "required"}
    world.asking("near", "near", notes=notes)
    world.asking("far", "far", notes=notes)
    world.settle()
    assert len({gpu // 4 for gpu in world.gpus("near")}) == 1
    assert not world.gpus("far")
    world.asking("any", "far")
    world.settle()
    assert len({gpu // 4 for gpu in world.gpus("far")}) == 2


def test_who_waits_for_devices_does_not_speak_for_others() -> None:
    world = Claiming()
    world.claim("nics", request("nics", 2, "nic"))
    world.claim("more", request("nics", 1, "nic"))
    world.asking("first", "nics")
    world.asking("second", "more")
    world.pod("a", "plain")
    world.settle()
    nodes = {name: item["spec"].get("nodeName") for name, item in world.items.items()}
    assert nodes == {"a/first": "n0", "a/second": None, "a/plain": "n0"}
    assert "1 without free devices for its ResourceClaim" in world.said["second"]
    world.cache.claims.drop("a/nics")
    world.settle()
    assert world.items["a/second"]["spec"]["nodeName"] == "n0"


def test_pods_are_looked_at_again_when_their_own_claim_comes() -> None:
    world = Claiming()
    for number in range(100):
        world.asking(f"p{number}", f"c{number}")
    world.settle()
    decided: list[str] = []
    pop = world.queue.pop

    def popped() -> QueuedPodGroup | None:
        unit = pop()
        if unit is not None:
            decided.append(unit.key)
        return unit

    world.queue.pop = popped  # type: ignore[method-assign]
    for number in range(3):
        world.claim(f"c{number}", request("gpus"))
        world.settle()
    assert len(decided) == 3
    assert sum(bool(item["spec"].get("nodeName")) for item in world.items.values()) == 3


def test_a_gang_shares_a_claim_or_gets_nothing() -> None:
    world = Claiming()
    world.claim("shared", request("gpus", 6))
    for number in range(2):
        world.claim(f"own-{number}", request("gpu"))
        world.asking(
            f"g-{number}",
            "shared",
            f"own-{number}",
            labels={"avactl.dev/gang": "g"},
            notes={"avactl.dev/gang-size": "2"},
        )
    world.settle()
    assert {item["spec"].get("nodeName") for item in world.items.values()} == {"n0"}
    assert world.gpus("shared") | world.gpus("own-0") | world.gpus("own-1") == set(range(8))
    world.claim("big", request("gpus", 9))
    for number in range(2):
        world.claim(f"h-{number}", request("nic", 1, "nic"))
        world.asking(
            f"h-{number}",
            f"h-{number}",
            *(["big"] if number else []),
            labels={"avactl.dev/gang": "h"},
            notes={"avactl.dev/gang-size": "2"},
        )
    world.settle()
    assert not any(item["spec"].get("nodeName") for key, item in world.items.items() if key.startswith("a/h-"))
    assert not world.cache.dra.devices.held("h-0")


def test_a_pod_waits_until_a_shared_claim_has_room_for_another_consumer() -> None:
    world = Claiming()
    results = [{"request": "gpus", "driver": GPU, "pool": "n0", "device": "d0"}]
    users = [{"resource": "pods", "name": f"user-{n}", "uid": f"user-{n}"} for n in range(MAX_CONSUMERS)]
    status: Given = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    world.claim("shared", request("gpus"), status=status)
    world.asking("p", "shared")
    world.settle()
    assert world.said["p"] == "ResourceClaim shared is in use by 256 pods, which is the limit"
    world.claim("shared", request("gpus"), status={**status, "reservedFor": users[1:]})
    world.settle()
    assert world.where() == {"p": "n0"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"resourceClaimName": "mine"}, "waits for its ResourceClaim mine, which does not exist yet"),
        ({"resourceClaimTemplateName": "t"}, "waits for its ResourceClaim gpu: does its ResourceClaimTemplate exist?"),
    ],
)
def test_a_claim_that_is_missing_is_named(given: dict[str, str], words: str) -> None:
    item = offline.pod("p", 0)
    item["spec"]["resourceClaims"] = [{"name": "gpu", **given}]
    with pytest.raises(NotYetError, match=re.escape(words)):
        DraManager("gpu.nvidia.com").demand(PodInfo(item, 0.0))


def test_a_pod_that_is_told_the_name_of_an_older_claim_is_not_answered_from_memory() -> None:
    manager = DraManager("gpu.nvidia.com")
    item = offline.pod("p", 0)
    item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    spec: dict[str, Any] = {"devices": {"requests": []}}
    metadata = {"name": "p-gpu-x", "namespace": "vision", "uid": "c", "resourceVersion": "1"}
    claim = ResourceClaim({"metadata": metadata, "spec": spec})
    manager.claims[claim.key] = claim
    pod = PodInfo(item, 0.0)
    with pytest.raises(NotYetError):
        manager.demand(pod)
    # The claim has been there, so nothing but the pod changes.
    item["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]}
    pod.update(item)
    assert [each for each, _ in manager.demand(pod).wanted] == [claim]


def test_a_template_for_which_the_pod_needs_no_claim_is_not_waited_for() -> None:
    item = offline.pod("p", 0)
    item["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    item["status"] = {"resourceClaimStatuses": [{"name": "gpu"}]}
    assert PodInfo(item, 0.0).claims == ()


def shared_slice(name: str, zone: str, capacity: str = "4Gi") -> Given:
    """Return a slice of one device that all nodes of a zone can share."""
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    device = {"name": "d", "allowMultipleAllocations": True, "capacity": {"memory": {"value": capacity}}}
    spec = {
        "driver": "storage.example.com",
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "nodeSelector": {"nodeSelectorTerms": [term]},
        "devices": [device],
    }
    return {"metadata": {"name": name}, "spec": spec}


def sharing(name: str, memory: str) -> Given:
    capacity = {"requests": {"memory": memory}}
    return {"name": name, "exactly": {"deviceClassName": "storage", "capacity": capacity}}


class Zones(Claiming):
    """Machines in two zones, whose ResourceSlices the scheduler watches."""

    def __init__(self, machines: int) -> None:
        super().__init__(machines)
        selectors = [{"cel": {"expression": 'device.driver == "storage.example.com"'}}]
        self.cache.dra.put_class({"metadata": {"name": "storage"}, "spec": {"selectors": selectors}})
        for number in range(machines):
            labels = {"avactl.dev/pool": "p", "avactl.dev/gpu": "V100", "zone": "ab"[number % 2]}
            amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
            self.cache.put_node(
                {"metadata": {"name": f"n{number}", "labels": labels}, "status": {"allocatable": amounts}}
            )
        self.slices = slices(self.cache)


def test_devices_that_many_nodes_reach_are_searched_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    searches, run = [], Allocator.run

    def count(allocator: Allocator) -> Any:
        searches.append(allocator)
        return run(allocator)

    monkeypatch.setattr(Allocator, "run", count)
    world = Zones(20)
    for number in range(4):
        world.slices.put(shared_slice(f"{'ab'[number % 2]}{number}", "ab"[number % 2]))
    for number in range(8):
        world.claim(f"c{number}", sharing("one", "2Gi"), sharing("other", "2Gi"))
        world.asking(f"c{number}", f"c{number}")
    world.settle()
    held = Counter(pod.node for pod in world.cache.tables.pods.values() if pod.node)
    assert held.total() == 4  # each device holds two parts
    for name in [key for key in world.cache.tables.pods if world.cache.tables.pods[key].node]:
        pod = world.cache.tables.pods[name]
        (first, second) = world.cache.dra.devices.held(pod.claims[0][1])
        zone = "ab"[int(pod.node[1:]) % 2]
        assert first.key[1][0] == second.key[1][0] == zone
    assert len(searches) <= 2 * 6  # both zones, for each pod that was placed and the first that was not


def test_own_devices_and_those_of_other_nodes_too_are_given_together() -> None:
    world = Zones(4)
    world.slices.put(shared_slice("a0", "a"))
    world.claim("both", request("gpus", 2), sharing("part", "1Gi"))
    world.asking("both", "both")
    world.settle()
    assert int(world.where()["both"][1:]) % 2 == 0
    assert len(world.gpus("both")) == 2


def test_a_slice_of_several_nodes_wakes_pods_and_numbers_no_gpus_again() -> None:
    world = Zones(2)
    world.claim("part", sharing("part", "1Gi"))
    world.asking("part", "part")
    world.settle()
    assert not world.where().get("part")
    world.slices.put(shared_slice("a0", "a"))
    assert not world.cache.tables.stale
    world.settle()
    assert world.where()["part"] == "n0"
    world.slices.remove("a0")  # a claim holds its device: what its pod uses is counted again
    assert world.cache.tables.stale


def fabric(*, devices: int = 1) -> Given:
    """Return a slice of GPUs that all nodes reach."""
    spec = {
        "driver": GPU,
        "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1},
        "allNodes": True,
        "devices": [{"name": f"f{number}"} for number in range(devices)],
    }
    return {"metadata": {"name": "fabric"}, "spec": spec}


def counted_nodes(world: Claiming, pod: str) -> int:
    """Return the number of nodes on which the placement engine counts the GPUs of a pod's claims."""
    info = world.cache.tables.pods[f"a/{pod}"]
    nodes = world.cache.requests.request(info.shape, world.cache.dra.demand(info)).nodes
    return int(world.cache.tables.state.allowed[nodes].sum())


def test_nodes_count_their_gpus_unless_a_slice_of_several_nodes_offers_others() -> None:
    world = Claiming()
    world.settle()
    watched = slices(world.cache)
    for name in ("first", "second", "third"):
        world.claim(name, request("gpus", 2))
    world.asking("first", "first")
    assert counted_nodes(world, "first") == 1
    watched.put(fabric())
    assert counted_nodes(world, "first") == 0
    world.settle()
    assert len(world.cache.dra.devices.held("first")) == 2
    world.asking("second", "second")
    assert counted_nodes(world, "second") == 0
    world.cache.claims.drop("a/first")
    watched.remove("fabric")
    assert not world.cache.tables.stale
    assert counted_nodes(world, "second") == 1
    world.asking("third", "third")
    world.settle()
    assert {"second", "third"} <= world.where().keys()
    assert len(world.gpus("second") | world.gpus("third")) == 4


def test_a_node_is_relabelled_after_many_different_demands() -> None:
    world = Claiming()
    for number in range(MAX_DEMANDS_CACHED + 8):
        selector = {"cel": {"expression": f'device.driver == "{GPU}" && {number} >= 0'}}
        world.claim(f"c{number}", {"name": "g", "exactly": {"deviceClassName": "gpu", "selectors": [selector]}})
        world.asking(f"c{number}", f"c{number}")
    world.settle()
    assert len(world.where()) == 8
    labels = {"avactl.dev/pool": "p", "avactl.dev/gpu": "V100", "new": "label"}
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    world.cache.put_node({"metadata": {"name": "n0", "labels": labels}, "status": {"allocatable": amounts}})
    world.drop("a", "c0")
    world.cache.claims.drop("a/c0")
    world.settle()
    assert len(world.where()) == 8


def zone_node(name: str, zone: str) -> Given:
    """Return a node without GPUs."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {"metadata": {"name": name, "labels": {"zone": zone}}, "status": {"allocatable": amounts}}


def test_a_node_that_comes_or_returns_reaches_devices_by_its_labels() -> None:
    world = Zones(1)
    world.slices.put(shared_slice("c0", "c"))
    world.claim("part", sharing("part", "1Gi"))
    world.asking("part", "part")
    world.settle()
    assert not world.where()
    world.cache.put_node(zone_node("new", "c"))
    world.settle()
    assert world.where() == {"part": "new"}
    world.cache.drop_node("new")
    world.claim("next", sharing("part", "1Gi"))
    world.asking("next", "next")
    world.settle()
    assert world.where() == {"part": "new"}
    world.cache.put_node(zone_node("new", "c"))
    world.settle()
    assert world.where() == {"part": "new", "next": "new"}


def test_gpus_are_counted_for_a_pod_that_waited_before_their_node_came() -> None:
    world = Claiming(0)
    world.claim("c", request("gpus", 2))
    world.asking("p", "c")
    world._publish(GPU, "n0", 1, 8)
    world.settle()
    pod = world.cache.tables.pods["a/p"]
    assert not world.cache.dra.demand(pod).gpus
    world.cache.put_node(zone_node("n0", "a"))
    assert world.cache.dra.demand(pod).gpus == 2


def pools_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, ReachablePool) for each in gc.get_objects())


def test_what_selectors_match_is_remembered_for_a_bounded_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avactl.scheduler.dra.manager.MAX_RELEVANT_DEVICES", 20, raising=False)
    world = Zones(4)
    for number in range(3):
        world.slices.put(shared_slice(f"a{number}", "a"))
    world.settle()
    for name in world.cache.tables.nodes:
        world.cache.dra.devices.view(name, world.cache.tables.nodes[name].labels)
    before = pools_in_memory()
    for number in range(100):
        asked = sharing("part", "1Gi")
        asked["exactly"]["selectors"] = [{"cel": {"expression": f"{number} >= 0"}}]
        world.claim(f"c{number}", request("gpus"), asked)
        world.asking(f"c{number}", f"c{number}")
    world.settle()
    assert len(world.where()) == 12  # as many as the devices have capacity for
    assert pools_in_memory() - before <= 20


class Extended(Claiming):
    """GPUs and NICs by extended resources as well."""

    def __init__(self, machines: int = 1) -> None:
        super().__init__(machines)
        for name, driver, resource in (("gpu", GPU, "nvidia.com/gpu"), ("nic", NIC, "example.com/nic")):
            selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
            spec = {"selectors": selectors, "extendedResourceName": resource}
            self.cache.dra.put_class({"metadata": {"name": name}, "spec": spec})
        self.cache.tables.stale = True

    def plugin(self, name: str, **amounts: str) -> None:
        """Add a machine with device plugins."""
        usual = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        given = {"gpu": "nvidia.com/gpu", "nic": "example.com/nic"}
        offered = {given[key]: value for key, value in amounts.items()}
        labels = {"avactl.dev/gpu": "V100"}
        self.cache.put_node({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": usual | offered}})

    def taken(self, pod: str) -> set[str]:
        """The devices that a pod's claim of extended resources holds."""
        info = self.cache.tables.pods[f"a/{pod}"]
        claims = [claim for claim in self.cache.claims.claims_of(info) if claim.extended_for]
        return {
            f"{each.key[0][:3]}-{each.key[2]}" for claim in claims for each in self.cache.dra.devices.held(claim.uid)
        }


IMPLICIT = "deviceclass.resource.kubernetes.io/"


def test_extended_resources_get_a_claim_where_no_device_plugin_offers_them() -> None:
    world = Extended()
    world.plugin("p0", nic="1")
    world.plugin("p1", gpu="8", nic="4")
    world.settle()
    # Only n0 has GPUs by a driver, and only p1 those of a plugin.
    world.pod("a", "gpus", 8)
    world.pod("a", "more", 8)
    world.pod("a", "none", 1)
    world.settle()
    assert sorted(world.where().values()) == ["n0", "p1"]
    by_node = {node: name for name, node in world.where().items()}
    assert len(world.taken(by_node["n0"])) == 8
    assert not world.taken(by_node["p1"])
    world.drop("a", "gpus", "more", "none")
    # NICs are counted by the plugins of p0 and p1, and allocated on n0.
    for number in range(7):
        world.pod("a", f"nic-{number}", amounts={"example.com/nic": "1"})
    world.pod("a", "too-many", amounts={"example.com/nic": "1"})
    world.settle()
    assert Counter(world.where().values()) == {"n0": 2, "p0": 1, "p1": 4}
    assert {each for number in range(7) for each in world.taken(f"nic-{number}")} == {"nic-d0", "nic-d1"}


def test_a_node_can_have_one_of_two_extended_resources_from_a_device_plugin() -> None:
    world = Extended(0)
    world.plugin("mixed", nic="4")
    world._publish(GPU, "mixed", 1, 8)
    world.settle()
    world.pod("a", "both", 4, amounts={"example.com/nic": "3"})
    world.pod("a", "second", 4, amounts={"example.com/nic": "2"})
    world.settle()
    assert world.where() == {"both": "mixed"}
    assert len(world.taken("both")) == 4
    assert {each[:3] for each in world.taken("both")} == {"gpu"}
    world.drop("a", "both")
    world.settle()
    assert world.where() == {"second": "mixed"}


def test_gpus_by_the_name_of_their_class_count_for_quotas() -> None:
    world = Extended(2)
    world.settle()
    world.quota("a", 4, 0)
    world.pod("a", "p", amounts={f"{IMPLICIT}gpu": "3"})
    world.pod("a", "q", amounts={f"{IMPLICIT}gpu": "3"})
    world.settle()
    assert len(world.where()) == 1
    (waiting,) = {"p", "q"} - world.where().keys()
    assert "quota" in world.said[waiting]
    assert world.cache.claims.held_gpus(world.cache.tables.pods[f"a/{next(iter(world.where()))}"]) == 3000
    assert world.cache.claims.requested_gpus(world.cache.tables.pods[f"a/{waiting}"]) == 3


def test_extended_resources_beside_claims_and_links() -> None:
    world = Extended(2)
    world.settle()
    world.claim("nics", request("nics", 2, "nic"))
    world.asking("p", "nics", gpus=4, notes={"avactl.dev/link": "socket", "avactl.dev/link-policy": "required"})
    world.settle()
    assert len(world.where()) == 1
    assert world.taken("p") in ({f"gpu-d{n}" for n in range(4)}, {f"gpu-d{n}" for n in range(4, 8)})
    world.pod("a", "rest", 4)
    world.pod("a", "large", 8)
    world.settle()
    assert set(world.where()) == {"p", "rest", "large"}


def test_a_gang_is_placed_on_drivers_and_device_plugins_alike() -> None:
    world = Extended(2)
    for number in range(2):
        world.plugin(f"p{number}", gpu="8")
    world.settle()
    world.gang("a", "train", 4, 8)
    world.settle()
    assert sorted(world.where().values()) == ["n0", "n1", "p0", "p1"]
    world.gang("a", "next", 2, 8)
    world.settle()
    assert len(world.where()) == 4


def test_of_two_classes_for_one_resource_the_newer_counts() -> None:
    world = Extended()
    none = [{"cel": {"expression": "false"}}]
    for name, created in (("older", "2026-01-01T00:00:00Z"), ("newer", "2026-01-02T00:00:00Z")):
        spec = {"selectors": none if name == "older" else [], "extendedResourceName": "example.com/x"}
        world.cache.dra.put_class({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec})
    world.cache.tables.stale = True
    world.settle()
    world.pod("a", "p", amounts={"example.com/x": "1"})
    world.settle()
    assert world.where() == {"p": "n0"}
    world.cache.dra.drop_class("newer")
    world.cache.tables.stale = True
    world.pod("a", "q", amounts={"example.com/x": "1"})
    world.settle()
    assert "q" not in world.where()


def test_a_pod_whose_status_names_a_claim_goes_to_no_device_plugin() -> None:
    world = Extended(0)
    world.plugin("p0", gpu="8")
    world.settle()
    world.pod("a", "p", 1)
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-2"}
    told = {"resourceClaimName": "p-extended-resources-x", "requestMappings": [mapping]}
    world.items["a/p"]["status"]["extendedResourceClaimStatus"] = told
    world.pod_handler.put(world.items["a/p"])
    world.settle()
    assert not world.where()


def test_a_claim_with_the_annotation_of_others_is_no_pods_own() -> None:
    world = Extended()
    world.settle()
    world.pod("a", "p", 2)
    uid = world.items["a/p"]["metadata"]["uid"]
    owner = {"kind": "Pod", "name": "p", "uid": uid, "controller": True}
    result = {"request": "container-0-request-2", "driver": GPU, "pool": "n0", "device": "d0"}
    for name, namespace, user in (("shared", "a", "other"), ("foreign", "b", uid)):
        notes = {"resource.kubernetes.io/extended-resource-claim": "true"}
        metadata: Given = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
        metadata["annotations"] = notes
        spec = {"devices": {"requests": [request("container-0-request-2", 1)]}}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "x", "uid": user}],
        }
        world.cache.claims.put({"metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec, "status": status})
        world.settle()
        assert len(world.taken("p") - {"gpu-d0"}) == 2
        world.drop("a", "p")
        world.cache.claims.drop(f"{namespace}/{name}")
        world.pod("a", "p", 2)
        owner["uid"] = uid = world.items["a/p"]["metadata"]["uid"]


def test_a_plan_places_pods_with_extended_resources() -> None:
    devices = [{"name": f"d{n}", "attributes": {"index": {"int": n}}} for n in range(8)]
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    slices = [{"metadata": {"name": "s"}, "spec": {"nodeName": "n0", "driver": GPU, "pool": pool, "devices": devices}}]
    classes = [{"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}]
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    node = {"metadata": {"name": "n0"}, "status": {"allocatable": amounts}}
    policy = PlacementPolicy(cluster="main", system_namespace="s", levels=(), gpu_driver=GPU)
    objects: dict[str, list[Given]] = {"nodes": [node], "resourceslices": slices, "deviceclasses": classes}
    world = SimulatedCluster(ClusterState("main", policy, objects))
    for name in ("p", "q"):
        metadata = {"name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        resources = {"requests": {"nvidia.com/gpu": "5"}}
        spec = {"schedulerName": "avactl", "containers": [{"name": "main", "resources": resources}]}
        world.put_pod({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
    world.settle()
    bound = [key for key, item in world.items.items() if item["spec"].get("nodeName")]
    assert bound == ["a/p"]
    pod = world.cache.tables.pods["a/p"]
    assert world.cache.claims.held_gpus(pod) == 5000
    assert "GPU" in world.said["q"] or "devices" in world.said["q"]
    world.drop_pod("a/p")
    world.settle()
    assert world.items["a/q"]["spec"]["nodeName"] == "n0"
    assert len(world.cache.dra.claims) == 1


def test_containers_that_share_many_devices_are_refused_before_they_are_mapped() -> None:
    """Of 512 init containers and 512 others the mapping would have 262,144 entries, for each pod."""
    world = Extended()
    found = offline.pod("many", 1)
    for group, first, amount in (("initContainers", 0, 600), ("containers", 512, 1)):
        found["spec"][group] = [
            {
                "name": f"c{first + index}",
                "image": "x",
                "resources": {key: {"nvidia.com/gpu": str(amount)} for key in ("limits", "requests")},
            }
            for index in range(512)
        ]
    with pytest.raises(UnsupportedError, match="requests 600 devices; the limit is 32"):
        world.cache.dra.demand(PodInfo(found, 0.0))
    assert not world.cache.dra._mapped
