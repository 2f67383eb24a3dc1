"""What tenants write uses a bounded part of the daemon's memory, and takes none of another team's."""

from __future__ import annotations

from typing import Any

import orjson

from avactl.contracts.names import MANAGED_BY, MANAGER, ROLLOUT, ROLLOUT_STATE, TEMPLATE_DIGEST
from avactl.daemons.serving.revisions import (
    HASH_LABEL,
    NUMBER,
    REJECTED,
    new_body,
    revision_number,
    revisions_of,
    template_of,
    templates_equal,
)
from avactl.daemons.serving.stores import LARGEST, MOST, objects_of

BIG = [{"name": f"A{number}", "value": "x"} for number in range(4000)]


def deployment(namespace: str, env: list[dict[str, str]], **notes: str) -> dict[str, Any]:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "env": env}]}}
    metadata = {"name": "web", "namespace": namespace, "uid": f"uid-{namespace}", "annotations": notes}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {**metadata, "resourceVersion": "1"}, "spec": spec}


def replica_set(owner: dict[str, Any], number: int) -> dict[str, Any]:
    made = new_body(owner, f"{number:010d}".replace("0", "x"), 1, attached=True)
    made["metadata"] |= {"resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{}]}
    return made


def test_a_namespace_full_of_versions() -> None:
    """Thirty ReplicaSets of a member were enough to end the daemon of all teams."""
    sets, owner = objects_of("ReplicaSet"), deployment("vision", BIG)
    for number in range(200):
        sets.put(replica_set(owner, number))
    kept = len(sets.keys())
    assert 20 < kept < 200
    # As text: parsed, it has twenty times the size.
    templates = [body["spec"]["template"] for body in sets.of("uid-vision")]
    assert all(isinstance(each, bytes) for each in templates)
    assert sum(map(len, templates)) < MOST
    honest = deployment("speech", BIG)
    sets.put(replica_set(honest, 1))
    (revision,) = revisions_of(honest, sets.of("uid-speech")).values()
    assert templates_equal(revision.template, template_of(honest))
    # What goes makes room.
    for key in sets.keys()[:10]:
        sets.remove(key)
    for number in range(200, 300):
        sets.put(replica_set(owner, number))
    assert len(sets.keys()) >= kept


def test_huge_objects_and_those_of_others_are_not_kept() -> None:
    sets, owner = objects_of("ReplicaSet"), deployment("vision", BIG * 4)
    assert len(orjson.dumps(owner)) > LARGEST
    sets.put(replica_set(owner, 1))
    own = replica_set(deployment("vision", []), 2)
    own["metadata"]["ownerReferences"] = []
    sets.put(own)
    assert sets.keys() == []
    deployments = objects_of("Deployment")
    deployments.put(deployment("vision", []))
    assert deployments.keys() == []
    for key in (ROLLOUT, ROLLOUT_STATE):
        deployments.put(deployment("vision", [], **{key: "{}"}))
        assert deployments.keys() == ["vision/web"]
    # One that is rolling again, or has become huge, is none of the daemon's.
    deployments.put(deployment("vision", []))
    assert deployments.keys() == []


def test_only_what_is_read_is_kept() -> None:
    services, jobs = objects_of("Service"), objects_of("Job")
    labels = {**{f"l{number}": "x" * 60 for number in range(3000)}, MANAGED_BY: MANAGER, HASH_LABEL: "abc"}
    metadata = {"name": "web", "namespace": "vision", "uid": "u", "labels": labels, "annotations": labels}
    for number in range(200):
        each = {**metadata, "name": f"web-{number}"}
        services.put({"metadata": each, "spec": {"selector": labels, "ports": [labels]}})
        jobs.put({"metadata": each, "spec": {"template": labels}, "status": {"conditions": []}})
    assert len(services.keys()) == len(jobs.keys()) == 200
    assert len(orjson.dumps([services.get(key) for key in services.keys()])) < 100_000  # noqa: SIM118 - not a mapping
    found = jobs.get("vision/web-0")
    assert found is not None
    assert found["metadata"]["labels"] == {HASH_LABEL: "abc"}


def test_what_decisions_read_of_a_version_is_kept() -> None:
    """The version of a sleeping service that ran last is known by the Deployment controller's number alone."""
    notes = {NUMBER: "7", REJECTED: "worse", TEMPLATE_DIGEST: "ab", "example.com/other": "x"}
    store = objects_of("ReplicaSet")
    store.put(
        {
            "metadata": {
                "name": "web-abc",
                "namespace": "vision",
                "uid": "s",
                "resourceVersion": "1",
                "annotations": notes,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"pod-template-hash": "abc"},
                "ownerReferences": [{"kind": "Deployment", "uid": "d", "controller": True}],
            },
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"pod-template-hash": "abc"}},
                "template": {"metadata": {"labels": {"pod-template-hash": "abc"}}, "spec": {}},
            },
        }
    )
    deployment = {"metadata": {"uid": "d"}, "spec": {"selector": {"matchLabels": {}}}}
    found = revisions_of(deployment, store.of("d"))["abc"]
    assert (revision_number(found), found.rejected, found.attached) == (7, True, True)
    kept = {key: value for key, value in notes.items() if key != "example.com/other"}
    assert found.body["metadata"]["annotations"] == kept
