"""The serving daemon: watches, and one pass a service."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from avactl.base.object_identity import namespaced_name, object_reference
from avactl.contracts.document import DocumentError, load
from avactl.contracts.names import (
    LWS_INDEX,
    LWS_NAME,
    MANAGED_BY,
    MANAGER,
    ROLLOUT,
    ROLLOUT_STATE,
    SERVING_DAEMON,
)
from avactl.contracts.serving import RolloutConfig, RolloutRoute, RolloutState, RolloutStep
from avactl.daemons.serving import groups, metrics
from avactl.daemons.serving.actions import ROUTES, VALIDATION, Actor
from avactl.daemons.serving.analysis import Prometheus, of_version, run_analysis
from avactl.daemons.serving.decide import decide
from avactl.daemons.serving.decide_groups import decide_groups
from avactl.daemons.serving.questions import Room, diagnose_version
from avactl.daemons.serving.revisions import HASH_LABEL, Body, revisions_of
from avactl.daemons.serving.stores import ANSWER, PAGE, objects_of, owner_uids
from avactl.daemons.serving.view import (
    POOL_GROUP,
    POOL_KIND,
    Answers,
    AttachVersion,
    HoldGroups,
    PointPool,
    RemoveService,
    ServingPlan,
    View,
    pool_labels,
)
from avactl.daemons.serving.weights import Weights
from avactl.kube import logs
from avactl.kube.access import ClusterAccess
from avactl.kube.client import ApiError, Client, UnreachableError, list_all
from avactl.kube.elected_daemon import ElectedDaemon, ReplicaOptions, run_elected
from avactl.kube.events import EventRecorder
from avactl.kube.passes import Passes
from avactl.kube.reflector import Reflector

_MAX_TURNS = 12
"""Decisions of one pass over a service."""
_MAX_PARALLEL = 4
"""Maximum number of concurrent passes of one namespace: slow queries or many objects of one team delay no other."""
_BATCH_S = 0.05
"""Seconds between two turns: a batch of events, such as those of many pods, is one."""
_WORKLOADS = ("Deployment", "LeaderWorkerSet")
"""Kinds that declare a service with a rollout."""
_GROUP_KINDS = ("LeaderWorkerSet", "StatefulSet", "Pod")
GOOD = ("Stable", "Promoted")
_API_PATHS = {
    "Deployment": "/apis/apps/v1/deployments",
    "LeaderWorkerSet": f"/apis/{groups.API}/leaderworkersets",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "Pod": "/api/v1/pods",
    "ReplicaSet": "/apis/apps/v1/replicasets",
    "Service": "/api/v1/services",
    "Job": "/apis/batch/v1/jobs",
    POOL_KIND: f"/apis/{POOL_GROUP}/v1/inferencepools",
    **{kind: f"{ROUTES}/{kind.lower()}s" for kind in ("HTTPRoute", "GRPCRoute")},
}


@dataclass(frozen=True, slots=True)
class ServingOptions(ReplicaOptions):
    """Options of a replica."""

    prometheus: str = ""
    interval: float = 1.0
    """Seconds between two passes."""
    settle: float = 5.0
    """Seconds that gateways and clients get to see changed Services and weights."""
    groups: bool = False
    """Services may have replicas of several machines: watch LeaderWorkerSets and their leaders."""
    pools: bool = False
    """Services may have endpoint pickers: watch InferencePools."""


class ServingDaemon(ElectedDaemon):
    """One replica."""

    registry, leader_gauge, stuck_after_s = metrics.REGISTRY, metrics.LEADER, 600.0

    def __init__(self, client: Client, options: ServingOptions) -> None:
        super().__init__(options.listen, options.leader(client))
        self._client, self._options = client, options
        self._stores = {kind: objects_of(kind) for kind in _API_PATHS}
        self._actor = Actor(client, self._update_store)
        self._room = Room(client)
        self._events = EventRecorder(client, SERVING_DAEMON, "Rollout")
        self._prometheus = Prometheus(options.prometheus) if options.prometheus else None
        self._passes = Passes(self._wake.set, _MAX_PARALLEL)
        self._errors: dict[str, str] = {}
        own = f"{MANAGED_BY}={MANAGER}"
        selectors = {
            "Job": f"app.kubernetes.io/component={VALIDATION}",
            "StatefulSet": LWS_NAME,
            "Pod": f"{own},{LWS_NAME},{LWS_INDEX}=0",
        }
        self._reflectors = [
            Reflector(
                client,
                path,
                self._stores[kind],
                self._wake.set,
                optional=path.startswith((ROUTES, f"/apis/{groups.API}", f"/apis/{POOL_GROUP}")),
                query={"labelSelector": selectors.get(kind, own)},
                page=PAGE,
                most=ANSWER,
            )
            for kind, path in _API_PATHS.items()
            if (options.groups or kind not in _GROUP_KINDS) and (options.pools or kind != POOL_KIND)
        ]
        self._weights = Weights(client, self._stores["Service"], self._wake.set)
        self._reflectors += self._weights.reflectors

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as group:

            async def turn() -> None:
                for kind in _WORKLOADS:
                    for key in self._stores[kind].keys():  # noqa: SIM118 - not a mapping
                        self._passes.begin(group, self._advance_service, f"{kind}/{key}", key.partition("/")[0])
                for key in self._stores[POOL_KIND].keys():  # noqa: SIM118 - not a mapping
                    self._passes.begin(group, self._free_pool, key, key.partition("/")[0])
                for key in self._stores["Service"].keys():  # noqa: SIM118 - not a mapping
                    self._passes.begin(group, self._weights.sync, key, key.partition("/")[0])

            await self._repeat(turn, self._options.interval, _BATCH_S)

    def _is_stuck(self) -> bool:
        return super()._is_stuck() or self._passes.longest() >= self.stuck_after_s

    def _update_store(self, body: Body) -> None:
        store = self._stores.get(str(body.get("kind")))
        if store is not None:
            store.put(body)

    # -- one service

    async def _advance_service(self, key: str) -> None:
        """Bring one service forward; what fails is that service's error, and is tried again."""
        try:
            await self._advance(key)
            self._errors.pop(key, None)
        except (ApiError, UnreachableError, DocumentError) as error:
            if not isinstance(error, ApiError) or error.status != 409:  # 409: seen too early, or made before a crash
                self._record_failure(key, str(error))
            elif self._errors.get(key) != str(error):
                self._errors[key] = str(error)
                logs.info("conflict", service=key, error=str(error)[:300])
        except Exception:  # a defect with one service must not stop the others
            self._record_failure(key, traceback.format_exc())

    def _record_failure(self, key: str, text: str) -> None:
        metrics.ERRORS.inc()
        if self._errors.get(key) != text:
            logs.warn("pass failed", service=key, error=text[-2000:])
        self._errors[key] = text

    async def _advance(self, key: str) -> None:
        kind, _, name = key.partition("/")
        for _ in range(_MAX_TURNS):
            deployment = self._stores[kind].get(name)
            if deployment is None or deployment["metadata"].get("deletionTimestamp") or not self.leading():
                return
            notes = deployment["metadata"].get("annotations") or {}
            if ROLLOUT not in notes:
                if ROLLOUT_STATE in notes:
                    await self._release(deployment)
                return
            try:
                config = load(RolloutConfig, notes[ROLLOUT])
                self._validate_queries(deployment, config)
            except DocumentError as error:
                await self._actor.write_condition(deployment, False, "InvalidRollout", f"invalid rollout: {error}")
                raise
            view = self._view(deployment, config)
            plan = await self._plan(view)
            for action in plan.actions:
                logs.info("action", service=key, action=_describe_action(action))
                await self._actor.act(view, action)
            moved = plan.state != view.state
            if moved:
                await self._actor.write_state(view, plan.state)
                await self._emit_events(view, plan)
            if not moved and not plan.actions:
                state = view.state
                message = state.message if state.reason else "the daemon has seen it"
                await self._actor.write_condition(deployment, state.reason in GOOD, state.reason or "Starting", message)
                return

    def _validate_queries(self, deployment: Body, config: RolloutConfig) -> None:
        """Raise DocumentError for queries that read other teams' metrics: specs that passed their check have none."""
        metadata = deployment["metadata"]
        for query in config.analysis.queries if config.analysis is not None else ():
            assert config.analysis is not None
            of_version(query, config.analysis, metadata["namespace"], f"{metadata['name']}-x")

    async def _plan(self, view: View) -> ServingPlan:
        """Decide; answer the questions that it has."""
        answers = Answers()
        while True:
            now, settle = self._client.clock.now(), self._options.settle
            if isinstance(view, groups.GroupView):
                plan = decide_groups(view, now, settle, answers)
            else:
                plan = decide(view, now, settle, answers)
            match plan.ask:
                case "":
                    return plan
                case "room":
                    answers = answers._replace(room=await self._room.problem(view))
                case "pods":
                    answers = answers._replace(pods=await diagnose_version(self._client, view))
                case _:
                    assert view.config.analysis is not None
                    metadata = view.deployment["metadata"]
                    measured = await run_analysis(
                        self._prometheus,
                        view.config.analysis,
                        metadata["namespace"],
                        view.pod_names(view.state.stable),
                        view.pod_names(view.state.canary),
                    )
                    answers = answers._replace(measured=measured)

    def _view(self, deployment: Body, config: RolloutConfig) -> View:
        metadata = deployment["metadata"]
        space = metadata["namespace"]
        routes = {
            route: body for route in config.routes if (body := self._stores[route.kind].get(f"{space}/{route.name}"))
        }
        state = RolloutState.read((metadata.get("annotations") or {}).get(ROLLOUT_STATE))
        pools = {name: body for name in config.pools if (body := self._stores[POOL_KIND].get(f"{space}/{name}"))}
        if deployment["kind"] == groups.KIND:
            return self._view_groups(deployment, config, state, routes, pools)
        revisions = revisions_of(deployment, self._stores["ReplicaSet"].of(metadata["uid"]))
        jobs = {
            each.hash: job
            for each in revisions.values()
            for job in self._stores["Job"].of(each.body["metadata"]["uid"])
            if (job["metadata"].get("labels") or {}).get(HASH_LABEL) == each.hash
        }
        names = {*config.services, *(f"{metadata['name']}-{hash}" for hash in revisions)}
        services = {name: found for name in names if (found := self._stores["Service"].get(f"{space}/{name}"))}
        return View(deployment, config, state, revisions, services, routes, jobs, pools=pools)

    def _view_groups(
        self,
        workload: Body,
        config: RolloutConfig,
        state: RolloutState,
        routes: Mapping[RolloutRoute, Body],
        pools: Mapping[str, Body],
    ) -> groups.GroupView:
        metadata = workload["metadata"]
        uid, space = metadata["uid"], metadata["namespace"]
        sets = []
        for name in (metadata["name"], *config.roles):
            body = self._stores[groups.KIND].get(f"{space}/{name}")
            if body is not None and not body["metadata"].get("deletionTimestamp"):
                leader_set = self._stores["StatefulSet"].get(f"{space}/{name}")
                pods = self._stores["Pod"].of(leader_set["metadata"]["uid"]) if leader_set is not None else ()
                sets.append(groups.view_set(body, config, leader_set, pods))
        services = [
            each
            for each in self._stores["Service"].of(space)
            if HASH_LABEL in each["metadata"]["labels"] and uid in owner_uids(each)
        ]
        jobs = [job for each in services for job in self._stores["Job"].of(each["metadata"]["uid"])]
        return groups.view_groups(sets, config, state, services, routes, jobs, pools)

    async def _release(self, deployment: Body) -> None:
        """Give the versions of a service that is rolling again to its controller, with their pods."""
        config = RolloutConfig(
            traffic="replicas",
            steps=(RolloutStep(percent=100, pause=0),),
            surge=0,
            in_place=False,
            port=1,
            ports={},
        )
        view = self._view(deployment, config)
        name = deployment["metadata"]["name"]
        pool = self._stores[POOL_KIND].get(namespaced_name(deployment))
        if pool is not None and pool_labels(pool):
            await self._actor.act(replace(view, pools={name: pool}), PointPool(name, ""))
        if isinstance(view, groups.GroupView):  # their versions are no objects, except for these
            for service in view.services.values():
                await self._actor.act(view, RemoveService(service))
            if view.sets[0].partition:
                await self._actor.act(view, HoldGroups(name, 0))
                return  # the object has changed: the next pass removes the state
        for each in view.revisions.values():
            if not each.attached and not isinstance(view, groups.GroupView):
                await self._actor.act(view, AttachVersion(each, True))
        await self._actor.remove_state(view)

    async def _free_pool(self, key: str) -> None:
        """Let a pool select all pods of a service that has no rollout any more, and whose replicas are others now.

        A service that only rolls again has its state still: `_release` does it.
        """
        pool = self._stores[POOL_KIND].get(key)
        owners = {key, key.removesuffix("-alt")}
        if pool is None or not pool_labels(pool) or not self.leading():
            return
        if any(self._stores[kind].get(each) is not None for kind in _WORKLOADS for each in owners):
            return
        try:
            await self._actor.free_pool(pool)
            logs.info("action", service=key, action="PointPool")
        except (ApiError, UnreachableError) as error:
            if not isinstance(error, ApiError) or error.status not in (404, 409):
                self._record_failure(f"{POOL_KIND}/{key}", str(error))

    async def _emit_events(self, view: View, plan: ServingPlan) -> None:
        """Write events, and count what has ended. One that fails is logged only: the state says the same."""
        if plan.state.ended != view.state.ended:
            metrics.ENDED.labels(plan.state.outcome).inc()
        regarding = object_reference(*view.reference, view.deployment["metadata"])
        for event in plan.events:
            logs.info("event", service=namespaced_name(view.deployment), reason=event.reason, note=event.note)
            await self._events.record(regarding, event.reason, event.note, warning=event.warning)

    async def _update_metrics(self) -> None:
        phases: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for kind, key in ((each, key) for each in _WORKLOADS for key in self._stores[each].keys()):  # noqa: SIM118
            deployment = self._stores[kind].get(key) or {"metadata": {}}
            notes = deployment["metadata"].get("annotations") or {}
            if ROLLOUT in notes:
                state = RolloutState.read(notes.get(ROLLOUT_STATE))
                phases[state.phase] += 1
                if state.phase != "steady" and state.reason in _WAITING_REASONS:
                    waiting[state.reason] += 1
        for gauge, counted in ((metrics.ROLLOUTS, phases), (metrics.WAITING, waiting)):
            gauge.clear()
            for label, count in counted.items():
                gauge.labels(label).set(count)


_WAITING_REASONS = frozenset(
    {"NoRoom", "GatewayUnavailable", "PrometheusUnavailable", "NoRequests", "Validating", "Starting"}
)


def _describe_action(action: Any) -> str:
    shown = [getattr(each, "name", each) for each in action]
    return f"{type(action).__name__} {' '.join(map(str, shown))}"[:300]


async def run(access: ClusterAccess, options: ServingOptions) -> None:
    """Run a replica until SIGTERM or SIGINT."""
    await run_elected(Client(access, SERVING_DAEMON), lambda client: ServingDaemon(client, options))


async def list_services(client: Client, namespace: str = "") -> list[Body]:
    """Return the objects with a rollout, of one namespace or all. Raises ApiError and UnreachableError."""
    found: list[Body] = []
    for kind in _WORKLOADS:
        path = _API_PATHS[kind]
        if namespace:
            api, _, plural = path.rpartition("/")
            path = f"{api}/namespaces/{namespace}/{plural}"
        query = {"labelSelector": f"{MANAGED_BY}={MANAGER}", "limit": "500"}
        try:
            found += await list_all(partial(client.page, path), query)
        except ApiError as error:
            if error.status != 404 or kind == "Deployment":  # clusters without LeaderWorkerSet
                raise
    return [each for each in found if ROLLOUT in (each["metadata"].get("annotations") or {})]
