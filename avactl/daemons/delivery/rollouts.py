"""How the rollout of a deployed version goes, as the serving daemon has written it down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import MANAGED_BY, MANAGER, MODEL_URLS, ROLLOUT, ROLLOUT_STATE
from avactl.contracts.serving import ModelUrls, RolloutState
from avactl.daemons.delivery.decide import Rollout
from avactl.daemons.delivery.plans import PipelineTarget
from avactl.daemons.serving.revisions import revisions_of, template_of, templates_equal
from avactl.daemons.serving.stores import ANSWER, PAGE, objects_of
from avactl.kube.client import ApiError, Client, list_all

Body = dict[str, Any]


async def rollout_of(client: Client, target: PipelineTarget, url: str) -> Rollout | None:
    """Return how the rollout to a URL goes; None if the service has not taken it up.

    Raises ApiError and UnreachableError.
    """
    deployment = await deployment_of(client, target.namespace, target.service)
    if deployment is None:
        return None
    return rollout_verdict(deployment, await replica_sets(client, deployment), target.model, url)


async def deployment_of(client: Client, namespace: str, name: str) -> Body | None:
    """Return the Deployment of a service; None if it does not exist. Raises ApiError and UnreachableError."""
    try:
        found: Body = await client.request("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found


async def replica_sets(client: Client, deployment: Body) -> list[Body]:
    """Return the ReplicaSets of a service's versions. Raises ApiError and UnreachableError."""
    path = f"/apis/apps/v1/namespaces/{deployment['metadata']['namespace']}/replicasets"
    # Not by the selector of the Deployment: those of versions on their way do not match it.
    query = {"labelSelector": f"{MANAGED_BY}={MANAGER}", "limit": str(PAGE)}
    # Members of the team may create any number of them.
    kept = objects_of("ReplicaSet")

    def keep(page: list[Body]) -> list[Body]:
        for each in page:
            kept.put(each)
        return []

    await list_all(lambda asked: client.page(path, asked, most=ANSWER), query, keep)
    return list(kept.of(deployment["metadata"]["uid"]))


def rollout_verdict(deployment: Body, sets: Iterable[Body], model: str, url: str) -> Rollout | None:
    """Return how the rollout to a URL goes, from the Deployment and the ReplicaSets of its versions."""
    notes = deployment["metadata"].get("annotations") or {}
    if ROLLOUT not in notes or model_urls(deployment).get(model) != url:
        return None
    return template_verdict(deployment, sets)


def template_verdict(deployment: Body, sets: Iterable[Body]) -> Rollout:
    """Return how the rollout to the pod template of a Deployment goes; its ReplicaSets are those of its versions."""
    state, template = rollout_state(deployment), template_of(deployment)
    revisions = revisions_of(deployment, sets)
    hash = next((each.hash for each in revisions.values() if templates_equal(each.template, template)), "")
    if not hash or state.phase != "steady":
        return "progressing"
    if state.stable == hash:
        return "promoted"
    return "rejected" if state.outcome == "rolledBack" and state.version == hash else "progressing"


def rollout_state(deployment: Body) -> RolloutState:
    """Return what the serving daemon has written down of a service's rollout."""
    return RolloutState.read((deployment["metadata"].get("annotations") or {}).get(ROLLOUT_STATE))


def model_urls(deployment: Body) -> Mapping[str, str]:
    """Return the URLs of a service's models, by model."""
    try:
        return load(ModelUrls, (deployment["metadata"].get("annotations") or {}).get(MODEL_URLS)).root
    except DocumentError:
        return {}
