"""Pods in PodGroups of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.contracts import names
from avactl.contracts.pod_annotations import GANG_SIZE
from avactl.contracts.scheduling import PlacementPolicy
from avactl.scheduler.constraints.pod_groups import PodGroups
from avactl.scheduler.objects.node_rules import UnsupportedError
from avactl.scheduler.objects.pod_info import read_pod
from avactl.scheduler.objects.wait_reasons import WaitReason
from tests.scheduler.memory import Memory

BASIC: dict[str, Any] = {"schedulingPolicy": {"basic": {}}}
GANG: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
GROUP = {"podGroupName": "etl-x7"}


def group(spec: dict[str, Any], namespace: str = "vision") -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "etl-x7"}, "spec": spec}


def told(memory: Memory, *items: dict[str, Any]) -> str:
    """The message of the pod `train` after changes of PodGroups; empty once it is bound."""
    groups = memory.constraints.get(PodGroups)
    for item in items:
        groups.put(item)
    for key in sorted(memory.cache.tables.waits.woken):
        memory.queue.push(memory.queue.units[key])
    memory.cache.tables.waits.woken.clear()
    memory.settle()
    return "" if "nodeName" in memory.items["vision/train"]["spec"] else memory.said["train"]


def test_a_basic_group_asks_for_nothing() -> None:
    memory = Memory()
    memory.pod("vision", "train", 8, schedulingGroup=GROUP)
    assert told(memory) == "waits for its PodGroup etl-x7 (scheduling.k8s.io/v1beta1), which does not exist"
    assert memory.reasons["train"] is WaitReason.POD_GROUP
    assert told(memory, group(BASIC, namespace="other")).endswith("does not exist")
    assert told(memory, group({**BASIC, "disruptionMode": {"single": {}}, "priority": 5})) == ""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (GANG, "the policy gang"),
        ({}, "the policy gang"),
        ({**BASIC, "schedulingConstraints": {"topology": [{"key": "rack"}]}}, "`schedulingConstraints`"),
        ({**BASIC, "resourceClaims": [{"name": "gpu"}]}, "`resourceClaims`"),
        ({**BASIC, "disruptionMode": {"all": {}}}, "the disruption mode all"),
        ({**BASIC, "parentCompositePodGroupName": "all"}, "a parent"),
    ],
)
def test_what_others_ask_for_is_refused(spec: dict[str, Any], words: str) -> None:
    memory = Memory()
    memory.pod("vision", "train", 8, schedulingGroup=GROUP)
    assert told(memory, group(spec)).startswith(f"its PodGroup etl-x7 has {words}, which is not supported")


def test_gangs_of_avactl_do_not_need_it() -> None:
    memory = Memory()
    notes = {GANG_SIZE.name: "1"}
    memory.pod("vision", "train", 8, notes=notes, labels={names.GANG_LABEL: "train"}, schedulingGroup=GROUP)
    assert told(memory) == ""


def test_pods_of_different_groups_are_equal() -> None:
    """The name of the group is no requirement: equal pods are decided upon once."""
    pods = []
    for name in ("a", "b"):
        spec = {"containers": [], "schedulerName": "avactl", "schedulingGroup": {"podGroupName": name}}
        metadata = {"namespace": "vision", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        pods.append(read_pod({"metadata": metadata, "spec": spec, "status": {}}, 0.0))
    assert pods[0].shape is pods[1].shape
    assert [pod.pod_group for pod in pods] == ["a", "b"]


def test_an_account_without_the_right_refuses_them() -> None:
    memory = Memory()
    policy = PlacementPolicy(cluster="main", system_namespace="avactl-system", levels=(), gpu_driver="gpu.example.com")
    groups = PodGroups(memory.cache, policy)
    assert list(groups.watches()) == []
    memory.pod("vision", "train", 8, schedulingGroup=GROUP)
    (unit,) = memory.queue.units.values()
    with pytest.raises(UnsupportedError, match="may not read its PodGroup"):
        groups.check_ready(unit.waiting[0])
