"""Carries out actions. Every write is conditional on the observed version of the object, or may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from avactl.contracts import names
from avactl.contracts.document import DocumentError, dump
from avactl.contracts.serving import RolloutState
from avactl.daemons.serving.revisions import (
    HASH_LABEL,
    REJECTED,
    Body,
    ServingRevision,
    new_body,
    revision_membership,
    service_body,
)
from avactl.daemons.serving.view import (
    POOL_GROUP,
    Action,
    AddService,
    AttachVersion,
    Create,
    HoldGroups,
    PointPool,
    Reject,
    RemoveService,
    RemoveVersion,
    Scale,
    Select,
    StartJob,
    StopGroup,
    View,
    Weigh,
)
from avactl.kube.client import MERGE, STRATEGIC, ApiError, Client
from avactl.kube.timestamps import timestamp

CONDITION = f"{names.GROUP}/Rollout"
"""Condition of the Deployment: True while the service runs as its spec says."""
ROUTES = "/apis/gateway.networking.k8s.io/v1"
VALIDATION = "validation"
_NO_TIMEOUTS = (
    "the API server does not store `timeouts` of the route: install Gateway API 1.2 or newer, or write "
    "`gateway: {…, timeouts: false}` in the Cluster"
)


class Actor:
    """Carries out actions on one API server; `seen` takes in the answers, before the watches bring them."""

    def __init__(self, client: Client, seen: Callable[[Body], None]) -> None:
        self._client, self._seen = client, seen

    async def act(self, view: View, action: Action) -> None:
        """Carry out one action. Raises ApiError (409: the object has changed) and UnreachableError."""
        space = view.deployment["metadata"]["namespace"]
        sets, services = f"/apis/apps/v1/namespaces/{space}/replicasets", f"/api/v1/namespaces/{space}/services"
        match action:
            case Create(hash, replicas, attached):
                await self._create(sets, new_body(view.deployment, hash, replicas, attached=attached))
            case Scale(revision, replicas):
                await self._patch_set(sets, revision, {"spec": {"replicas": replicas}})
            case AttachVersion(revision, attached):
                labels, owners = revision_membership(view.deployment, revision.hash, attached=attached)
                await self._patch_set(sets, revision, {"metadata": {"labels": labels, "ownerReferences": owners}})
            case Reject(revision, reason):
                await self._patch_set(
                    sets, revision, {"metadata": {"annotations": {REJECTED: reason[:900] or "worse"}}}
                )
            case RemoveVersion(revision):
                await self._delete(sets, revision.body)
            case AddService(revision):
                name, ports, hash = view.service_name(revision.hash), view.config.ports, revision.hash
                await self._create(
                    services, service_body(name, space, ports, hash, view.selector(hash), view.owner(hash))
                )
            case Weigh(weights):
                for route in view.unweighed(weights):
                    path = f"{ROUTES}/namespaces/{space}/{route.kind.lower()}s/{route.name}"
                    rules = view.rules(route, weights)
                    answer = await self._patch(path, view.routes[route], {"spec": {"rules": rules}})
                    if any("timeouts" in rule for rule in rules) and not any(
                        "timeouts" in rule for rule in answer["spec"]["rules"]
                    ):
                        # Weighed again and again, it would never seem to be done.
                        await self.write_condition(view.deployment, False, "TimeoutsDropped", _NO_TIMEOUTS)
                        raise DocumentError(f"{route}: {_NO_TIMEOUTS}")
            case PointPool(pool, hash):
                await self._point_pool(view.pools[pool], {view.version_label: hash} if hash else {})
            case Select(hash):
                own: dict[str, str] = view.deployment["spec"]["selector"].get("matchLabels", {})
                for name in view.config.services:
                    chosen = {"spec": {"selector": {**own, HASH_LABEL: hash}}}
                    self._seen(await self._client.request("PATCH", f"{services}/{name}", chosen, content_type=MERGE))
            case RemoveService(service):
                await self._delete(services, service)
            case HoldGroups(groups, partition):
                rolling = {"rollingUpdateConfiguration": {"partition": partition}}
                body = view.workload(groups)
                await self._patch(_workload_path(body), body, {"spec": {"rolloutStrategy": rolling}})
            case StopGroup(leader):
                # As the controller does it: the next leader starts once the workers of this one are gone.
                await self._delete(f"/api/v1/namespaces/{space}/pods", leader, "Foreground")
            case StartJob(revision):
                await self._start_job(view, space, revision)

    async def free_pool(self, pool: Body) -> None:
        """Let an InferencePool select the pods of all versions. Raises ApiError and UnreachableError."""
        await self._point_pool(pool, {})

    async def _point_pool(self, pool: Mapping[str, Any], version: Mapping[str, str]) -> None:
        metadata = pool["metadata"]
        path = f"/apis/{POOL_GROUP}/v1/namespaces/{metadata['namespace']}/inferencepools/{metadata['name']}"
        labels = {**dict.fromkeys(names.VERSION_LABELS), **version}
        await self._patch(path, pool, {"spec": {"selector": {"matchLabels": labels}}})

    async def write_state(self, view: View, state: RolloutState) -> None:
        """Write a state, if nobody has changed the Deployment. Raises ApiError and UnreachableError."""
        path = _workload_path(view.deployment)
        await self._patch(path, view.deployment, {"metadata": {"annotations": {names.ROLLOUT_STATE: dump(state)}}})

    async def remove_state(self, view: View) -> None:
        """Remove the state of a service without a rollout. Raises ApiError and UnreachableError."""
        path = _workload_path(view.deployment)
        await self._patch(path, view.deployment, {"metadata": {"annotations": {names.ROLLOUT_STATE: None}}})

    async def write_condition(self, deployment: Mapping[str, Any], good: bool, reason: str, message: str) -> None:
        """Write the condition, if it differs. Raises ApiError and UnreachableError."""
        known = (deployment.get("status") or {}).get("conditions") or ()
        own: Mapping[str, Any] = next((each for each in known if each.get("type") == CONDITION), {})
        status = "True" if good else "False"
        if (own.get("status"), own.get("reason"), own.get("message", "")) == (status, reason, message):
            return
        now = timestamp()
        condition = {"type": CONDITION, "status": status, "reason": reason, "message": message}
        condition["lastTransitionTime"] = now if own.get("status") != status else own.get("lastTransitionTime", now)
        path = f"{_workload_path(deployment)}/status"
        if deployment["kind"] != "Deployment":
            # Custom resources have no strategic merge: all conditions, if nobody has changed the object.
            others = [each for each in known if each.get("type") != CONDITION]
            await self._patch(path, deployment, {"status": {"conditions": [*others, condition]}})
            return
        patch = {"status": {"conditions": [{**condition, "lastUpdateTime": now}]}}
        self._seen(await self._client.request("PATCH", path, patch, content_type=STRATEGIC))

    async def _create(self, path: str, body: Body) -> None:
        self._seen(await self._client.request("POST", path, body))

    async def _delete(self, path: str, observed: Body, propagation: str = "Background") -> None:
        """Delete an object, if it is still the one that was observed."""
        metadata = observed["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": propagation}
        try:
            await self._client.request("DELETE", f"{path}/{metadata['name']}", body)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _patch_set(self, path: str, revision: ServingRevision, body: Body) -> None:
        await self._patch(f"{path}/{revision.name}", revision.body, body)

    async def _patch(self, path: str, observed: Mapping[str, Any], body: Body) -> Body:
        version = {"resourceVersion": observed["metadata"]["resourceVersion"]}
        body = {**body, "metadata": {**body.get("metadata", {}), **version}}
        answer: Body = await self._client.request("PATCH", path, body, content_type=MERGE)
        self._seen(answer)
        return answer

    async def _start_job(self, view: View, space: str, revision: ServingRevision) -> None:
        """Create the Job of a version from the CronJob that the spec compiles to."""
        assert view.config.analysis is not None
        batch = f"/apis/batch/v1/namespaces/{space}"
        template = (await self._client.request("GET", f"{batch}/cronjobs/{view.config.analysis.job}"))["spec"][
            "jobTemplate"
        ]
        spec = template["spec"]
        pod = spec["template"]["spec"]
        urls = {"AVACTL_NEW_URL": revision.hash, "AVACTL_STABLE_URL": view.state.stable}
        env = [
            {"name": name, "value": f"http://{view.service_name(hash)}.{space}:{view.config.port}"}
            for name, hash in urls.items()
        ]
        containers = [{**each, "env": [*env, *(each.get("env") or ())]} for each in pod["containers"]]
        owner = view.job_owner(revision.hash)
        labels = (template.get("metadata") or {}).get("labels") or {}
        await self._create(
            f"{batch}/jobs",
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": f"{view.name}-{revision.hash}",
                    "namespace": space,
                    "labels": {**labels, HASH_LABEL: revision.hash},
                    "ownerReferences": [owner],
                },
                "spec": {**spec, "template": {**spec["template"], "spec": {**pod, "containers": containers}}},
            },
        )


def _workload_path(workload: Mapping[str, Any]) -> str:
    metadata = workload["metadata"]
    plural = f"{workload['kind'].lower()}s"
    return f"/apis/{workload['apiVersion']}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
