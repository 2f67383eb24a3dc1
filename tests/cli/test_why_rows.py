"""What `avactl why` makes of pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from avactl.cli.cluster.why import JobObjects, group_rows, select

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


def pod(name: str, *, labels: dict[str, str] | None = None, deleted: bool = False, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels or {}}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:59:00Z"
    return {"metadata": metadata, "spec": {"nodeName": status.pop("node", "")}, "status": status}


def test_who_is_stopped_is_told_for_whom() -> None:
    words = "Preempted for ads/rank: team vision borrowed GPUs guaranteed to team ads"
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": words}
    found = group_rows(
        JobObjects(
            [pod("a-1", deleted=True, node="n", conditions=[condition]), pod("a-0", deleted=True, node="n")], [], {}
        ),
        NOW,
    )
    assert [row[1:] for row in found] == [
        ("ends", "1 h", "it is being deleted"),
        ("ends", "1 h", f"it is being deleted: {words}"),
    ]
    (row,) = group_rows(JobObjects([pod("a-1", node="n", phase="Failed", conditions=[condition])], [], {}), NOW)
    assert row[1:] == ("ended", "1 h", words)


def test_pods_are_known_by_what_makes_them() -> None:
    pods = [
        pod("web-5d8f-x1", labels={"pod-template-hash": "5d8f"}),
        pod("train-0", labels={"app.kubernetes.io/instance": "train", "job-name": "train-worker"}),
        pod("web", labels={"job-name": "other"}),
    ]
    pods[0]["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "shop-5d8f"}]
    for name, found in (("shop", 0), ("shop-5d8f", 0), ("train", 1), ("train-worker", 1), ("web", 2), ("other", 2)):
        assert select(pods, name) == [pods[found]], name
    assert select(pods, "5d8f") == []


def test_pods_of_a_job_set_are_known_by_its_name() -> None:
    """Their owner is one of its Jobs."""
    pods = [pod(f"pre-w-{number}-0", labels={"jobset.sigs.k8s.io/jobset-name": "pre"}) for number in range(2)]
    for number, each in enumerate(pods):
        each["metadata"]["ownerReferences"] = [{"kind": "Job", "name": f"pre-w-{number}"}]
    assert select(pods, "pre") == pods
    assert select(pods, "pre-w-1") == pods[1:]
