"""DisaggregatedSets are ready once the LeaderWorkerSets of their current templates are, and no others are left."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from avactl.apply.reconcile.health import Health, HealthState, object_health
from tests.definitions import define_groups
from tests.reconcile.world import World

DIGEST = "sha256:5fc197963c82353a79543c56348ccfa631c386c5b9c4eb50de4fc9bcca31ceee"
OBSERVED = "the controller has not observed the change yet"
PREFIX = "disaggregatedset.x-k8s.io"


def live(version: str = "1", replicas: int = 2) -> dict[str, Any]:
    def role(name: str, count: int) -> dict[str, Any]:
        container = {"name": "server", "image": f"x:{version}", "resources": {"requests": {"cpu": "0.5"}}}
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container, {"name": "other"}]}}
        pattern = {"size": 1, "workerTemplate": template}
        return {"name": name, "spec": {"replicas": count, "leaderWorkerTemplate": pattern}}

    return {
        "apiVersion": f"{PREFIX}/v1",
        "kind": "DisaggregatedSet",
        "metadata": {"name": "chat", "namespace": "n", "uid": "u", "generation": 3},
        "spec": {"roles": [role("prefill", 1), role("decode", replicas)]},
    }


def made(body: dict[str, Any], revision: str, **replicas: int) -> list[dict[str, Any]]:
    """The sets that the controller makes of a DisaggregatedSet, ready, with quantities and fields as its types have."""
    found = []
    for role in body["spec"]["roles"]:
        name = role["name"]
        spec = deepcopy(role["spec"])
        spec["replicas"] = count = replicas.get(name, spec["replicas"])
        labels = {f"{PREFIX}/name": "chat", f"{PREFIX}/role": name, f"{PREFIX}/revision": revision}
        template = spec["leaderWorkerTemplate"]["workerTemplate"]
        template["metadata"]["labels"] |= {**labels, "app": f"chat-{name}"}
        for container in template["spec"]["containers"]:
            amounts = container.setdefault("resources", {}).get("requests", {})
            amounts |= {key: "500m" for key, value in amounts.items() if value == "0.5"}
        status = {
            "observedGeneration": 1,
            "updatedReplicas": count,
            "readyReplicas": count,
            "conditions": [{"type": "Available", "status": "True"}],
        }
        found.append(
            {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "spec": spec,
                "status": status,
                "metadata": {"name": f"chat-{revision}-{name}", "namespace": "n", "labels": labels, "generation": 1},
            }
        )
    return found


def test_the_groups_of_the_current_templates_are_ready() -> None:
    assert object_health(live(), made(live(), "r1")).state is HealthState.ready
    assert object_health(live()) == Health(HealthState.progressing, OBSERVED)
    assert object_health(live(), made(live(), "r1")[:1]) == Health(HealthState.progressing, OBSERVED)


def test_groups_of_other_templates_do_not_count() -> None:
    old, new = made(live(), "r1"), made(live("2"), "r2")
    assert object_health(live("2"), old) == Health(HealthState.progressing, OBSERVED)
    assert object_health(live("2"), [*old, *new]) == Health(
        HealthState.progressing, "3 old groups are still terminating"
    )
    drained = made(live(), "r1", prefill=0, decode=0)
    assert object_health(live("2"), [*drained, *new]).state is HealthState.ready
    # A key that is removed is a change, too.
    less = live()
    del less["spec"]["roles"][0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]["labels"]
    assert object_health(less, old) == Health(HealthState.progressing, OBSERVED)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"replicas": 1}, "decode: 1 of 2 groups are updated"),
        ({"readyReplicas": 1}, "decode: 1 of 2 groups are ready"),
        ({"observedGeneration": 0}, f"decode: {OBSERVED}"),
    ],
)
def test_each_role_is_ready(change: dict[str, int], reason: str) -> None:
    sets = made(live(), "r1")
    (sets[1]["spec"] if "replicas" in change else sets[1]["status"]).update(change)
    assert object_health(live(), sets) == Health(HealthState.progressing, reason)


SERVICE = f"""\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: chat, team: vision}}
spec:
  model: {{name: m, version: "1", path: /opt/m-1}}
  runtime: {{name: vllm, image: registry.example.com/vllm@{DIGEST}}}
  resources: {{cpu: "0.5", memory: 1Gi}}
  llm: {{prefill: {{router: {{image: registry.example.com/router@{DIGEST}}}}}}}
"""


@pytest.mark.controlplane
def test_a_run_waits_for_both_roles(world: World) -> None:
    define_groups(world.kube)
    cluster = "reconcile: {mode: builtin}\n"
    platform = world.specs().replace(cluster, f"{cluster}  leaderWorkerSet: {{}}\n")
    world.commit({"platform.yaml": platform, "service.yaml": SERVICE})
    namespace = f"{world.name}-vision"
    title = f"DisaggregatedSet {namespace}/chat"

    def seen() -> Health | None:
        return world.once(timeout=1.0).health.get(title)

    assert seen() == Health(HealthState.progressing, OBSERVED)
    body = world.kube.get(f"{PREFIX}/v1", "DisaggregatedSet", "chat", namespace)
    owner = {"apiVersion": f"{PREFIX}/v1", "kind": "DisaggregatedSet", "name": "chat", "uid": body["metadata"]["uid"]}
    for each in made(body, "r1"):
        each["metadata"] = {**each["metadata"], "namespace": namespace, "ownerReferences": [owner]}
        status = each.pop("status")
        world.kube.create(each)
        for condition in status["conditions"]:
            condition |= {"reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        del each["spec"]
        world.kube.patch({**each, "status": status}, subresource="/status")
    assert seen() is None
    world.replace("service.yaml", 'version: "1", path: /opt/m-1', 'version: "2", path: /opt/m-2')
    assert seen() == Health(HealthState.progressing, OBSERVED)
