"""Documents that the daemon obeys: members of a team cannot write them, and forged ones reveal nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts.names import MANAGED_BY, MANAGER, REJECTED_VERSION, ROLLOUT, ROLLOUT_STATE, TEMPLATE_DIGEST
from tests.kinds.tenancy_attempts import pod_spec
from tests.serving.prometheus import Prometheus
from tests.serving.world import World
from tools.controlplane import ApiError, KubeClient

CANARY = "{canary: {traffic: replicas, steps: [{percent: 25, pause: 1s}]}}"
FORGED = {
    ROLLOUT: '{"traffic": "replicas"}',
    ROLLOUT_STATE: '{"phase": "promoting"}',
    REJECTED_VERSION: "worse",
    TEMPLATE_DIGEST: "0123456789abcdef",
}


@pytest.fixture
def member(world: World) -> Iterator[KubeClient]:
    """A member of the team, and a service of it with a rollout."""
    world.deploy(world.service(1, CANARY))
    with world.plane.client(world.plane.token("member")) as kube:

        def enforced() -> bool:
            try:
                kube.patch(named(world, annotations=FORGED), dry_run=True)
            except ApiError:
                return True
            return False

        # The API server takes up a new policy a moment after it was written.
        world.until(enforced)
        yield kube


def named(world: World, name: str = "web", **metadata: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": world.team, **metadata}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}


def refused(world: World, error: pytest.ExceptionInfo[ApiError]) -> bool:
    return "avactl-team-rollouts" in str(error.value) and "rollout: avactl.dev/rollout, " in str(error.value)


@pytest.mark.parametrize("value", ["forged", None])
@pytest.mark.parametrize("key", FORGED)
def test_members_do_not_change_them(world: World, member: KubeClient, key: str, value: str | None) -> None:
    world.kube.patch(named(world, annotations={ROLLOUT_STATE: "{}", REJECTED_VERSION: "slow"}))
    before = world.deployment()["metadata"]["annotations"]
    with pytest.raises(ApiError) as error:
        member.patch(named(world, annotations={key: value and FORGED[key]}))
    assert refused(world, error)
    assert world.deployment()["metadata"]["annotations"] == before


@pytest.mark.parametrize("key", FORGED)
def test_members_do_not_create_or_replace_with_them(world: World, member: KubeClient, key: str) -> None:
    found = world.deployment()
    del found["metadata"]["resourceVersion"]  # controllers write, too
    found["metadata"]["annotations"] |= FORGED
    with pytest.raises(ApiError) as error:
        member.replace(found)
    assert refused(world, error)
    own = {"app": "forged"}
    spec = {"selector": {"matchLabels": own}, "template": {"metadata": {"labels": own}, "spec": pod_spec()}}
    # The label by which the daemon finds services.
    labels = {MANAGED_BY: MANAGER}
    forged = {**named(world, "forged", labels=labels, annotations={key: FORGED[key]}), "spec": spec}
    for attempt in (member.create, member.apply):
        with pytest.raises(ApiError) as error:
            attempt(forged)
        assert refused(world, error)
    assert world.kube.find("apps/v1", "Deployment", "forged", world.team) is None


@pytest.mark.parametrize("key", FORGED)
def test_members_do_not_say_which_versions_were_rolled_back(world: World, member: KubeClient, key: str) -> None:
    """By these the delivery daemon commits an earlier text of the spec, which nobody has reviewed as the newest."""
    world.start()
    world.until(lambda: world.settled("1"))
    (found,) = world.sets().values()
    name = found["metadata"]["name"]
    metadata = {"name": name, "namespace": world.team}
    body: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}
    with pytest.raises(ApiError) as error:
        member.patch({**body, "metadata": {**metadata, "annotations": {key: FORGED[key]}}})
    assert refused(world, error)
    own = {"metadata": {"name": "forged", "namespace": world.team, "annotations": {key: FORGED[key]}}}
    template = {"metadata": {"labels": {"app": "forged"}}, "spec": pod_spec()}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "forged"}}, "template": template}
    with pytest.raises(ApiError) as error:
        member.create({**body, **own, "spec": spec})
    assert refused(world, error)
    member.patch({**body, "metadata": {**metadata, "annotations": {"note": "mine"}}})


def test_honest_changes_pass(world: World, member: KubeClient) -> None:
    member.patch({**named(world, annotations={"note": "mine"}), "spec": {"replicas": 3}})
    found = world.deployment()
    assert (found["spec"]["replicas"], found["metadata"]["annotations"]["note"]) == (3, "mine")
    token = world.plane.service_account_token("avactl-system", "avactl-serving")
    with world.plane.client(token) as daemon:
        daemon.patch(named(world, annotations={ROLLOUT_STATE: "{}"}))
    # The status is another way to the annotations. Whoever may write it, as the controllers may, is not a member.
    with pytest.raises(ApiError) as error:
        member.patch(named(world, annotations=FORGED), subresource="/status")
    assert error.value.status == 403


QUERIES = {
    "another namespace": 'sum(secret{namespace="other",pod=~"{{pods}}"})',
    "all namespaces": 'sum(secret{pod=~"{{pods}}"})',
    "beside its own": 'sum(mine{namespace="{{namespace}}",pod=~"{{pods}}"}) + sum(secret)',
    "not PromQL": "{{pods}} (",
}


@pytest.mark.parametrize("promql", QUERIES.values(), ids=QUERIES)
def test_the_daemon_asks_no_query_of_other_namespaces(world: World, promql: str) -> None:
    """Whoever has got round the compiler and the policy learns nothing."""
    prometheus = Prometheus()
    world.options = ["--prometheus", prometheus.url]
    world.start()
    own = 'sum(mine{namespace="{{namespace}}",pod=~"{{pods}}"})'
    analysis = f"analysis: {{interval: 2s, query: [{{name: secret, max: 1, promql: '{own}'}}]}}"
    canary = f"{{canary: {{traffic: replicas, steps: [{{percent: 25, pause: 1s}}], {analysis}}}}}"
    world.deploy(world.service(1, canary))
    world.until(lambda: world.settled("1"))
    honest = world.deployment()["metadata"]["annotations"][ROLLOUT]
    document = json.loads(honest)
    document["analysis"]["queries"][0]["promql"] = promql
    world.deploy(world.service(2, canary))
    world.kube.patch(named(world, annotations={ROLLOUT: json.dumps(document)}))
    world.until(lambda: world.condition()[1] == "InvalidRollout")
    assert "query `secret`: " in world.condition()[2]
    # The honest document goes to the end.
    world.kube.patch(named(world, annotations={ROLLOUT: honest}))
    world.until(lambda: world.settled("2"))
    assert prometheus.queries
    assert not any("secret" in query or "(\n" in query for query in prometheus.queries)
    assert [query for query in prometheus.queries if f'namespace="{world.team}"' not in query] == []
    prometheus.close()
