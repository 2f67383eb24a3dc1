"""The observed state of one service, and actions on it: values between the watches and the decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.serving import RolloutConfig, RolloutRoute, RolloutState, RouteRules
from avactl.daemons.serving.revisions import HASH_LABEL, Body, ServingRevision, owner_of
from avactl.daemons.serving.sizes import Sizes
from avactl.kube.pod_diagnosis import PodDiagnosis

POOL_GROUP, POOL_KIND = "inference.networking.k8s.io", "InferencePool"


@dataclass(frozen=True, slots=True)
class View:
    """One service, as observed."""

    deployment: Mapping[str, Any]
    config: RolloutConfig
    state: RolloutState
    revisions: Mapping[str, ServingRevision]
    services: Mapping[str, Body]
    """Services of its namespace by name: its own, and those of its versions."""
    routes: Mapping[RolloutRoute, Body]
    """Routes of its document that exist."""
    jobs: Mapping[str, Body]
    """Validation Jobs by the hash of their version."""
    pools: Mapping[str, Body] = field(default_factory=dict, kw_only=True)
    """InferencePools of its document that exist, by name."""

    @property
    def name(self) -> str:
        name: str = self.deployment["metadata"]["name"]
        return name

    @property
    def total(self) -> int:
        """Pods of the service, as its spec, an autoscaler or `kubectl scale` says."""
        return int(self.deployment["spec"].get("replicas", 1))

    @property
    def deadline(self) -> float:
        """Seconds in which pods of a new version must be ready, from their creation on."""
        if self.config.deadline is not None:
            return self.config.deadline
        return float(self.deployment["spec"].get("progressDeadlineSeconds", 600))

    @property
    def start_limit(self) -> float:
        """Seconds in which pods must be ready once their images are pulled and their files copied."""
        return self.deadline if self.config.start is None else min(self.deadline, self.config.start)

    def workload(self, name: str) -> Mapping[str, Any]:
        """Return one of the objects that declare the service."""
        return self.deployment

    def of(self, hash: str) -> ServingRevision | None:
        """Return a version; None if its ReplicaSet is gone."""
        return self.revisions.get(hash)

    def sizes(self) -> Sizes:
        """Return the pods of both versions."""
        found = (self.of(self.state.stable), self.of(self.state.canary))
        return Sizes(*(each.replicas if each is not None else 0 for each in found))

    def ready(self) -> Sizes:
        """Return the ready pods of both versions."""
        found = (self.of(self.state.stable), self.of(self.state.canary))
        return Sizes(*(each.ready if each is not None else 0 for each in found))

    def unready(self) -> Sizes:
        """Return the pods of both versions that are known not to be ready."""
        found = (self.of(self.state.stable), self.of(self.state.canary))
        return Sizes(*(each.unready if each is not None else 0 for each in found))

    @property
    def reference(self) -> tuple[str, str]:
        """API version and kind of the object that declares the service."""
        return "apps/v1", "Deployment"

    def selector(self, hash: str) -> dict[str, str]:
        """Return labels by which the Service of a version selects its pods."""
        return {**self.deployment["spec"]["selector"].get("matchLabels", {}), HASH_LABEL: hash}

    def owner(self, hash: str) -> Body:
        """Return the reference by which the Service of a version is deleted with it."""
        return owner_of(self.revisions[hash])

    def job_owner(self, hash: str) -> Body:
        """Return the reference by which the validation Job of a version is deleted with it."""
        return self.owner(hash)

    def all_pods(self, hash: str) -> dict[str, str]:
        """Return labels of all pods of a version, also of those that answer no requests."""
        return self.selector(hash)

    def pod_names(self, hash: str) -> str:
        """Return a regular expression of the names of the pods of a version that answer requests."""
        return f"{self.name}-{hash}-[a-z0-9]+"

    @property
    def version_label(self) -> str:
        """Label of pods with their version."""
        return HASH_LABEL

    def service_name(self, hash: str) -> str:
        """Name of the Service of a version."""
        return f"{self.name}-{hash}"

    def rules(self, route: RolloutRoute, weights: tuple[tuple[str, int], ...]) -> list[Body]:
        """Return the rules of a route with these weights. Raises DocumentError."""
        notes = self.routes[route]["metadata"].get("annotations") or {}
        # The stable version last: some gateways ask one endpoint picker for all requests of a rule, and its pool should
        # be the one that surely has pods (Istio 1.31.0: the last one with a weight).
        backends = [{**self._backend(route, hash), "weight": weight} for hash, weight in reversed(weights)]
        try:
            rules = load(RouteRules, notes.get(names.ROLLOUT_ROUTE)).root
        except DocumentError as error:
            raise DocumentError(f"{route}: annotation {names.ROLLOUT_ROUTE}: {error}") from None
        return [{**rule, "backendRefs": backends} for rule in rules]

    def unweighed(self, weights: tuple[tuple[str, int], ...]) -> list[RolloutRoute]:
        """Return the routes that have other weights, or other matches than those of the spec. Raises DocumentError."""
        return [
            route
            for route, body in self.routes.items()
            if _outline_rules(body["spec"].get("rules")) != _outline_rules(self.rules(route, weights))
        ]

    def backed(self, hash: str) -> list[RolloutRoute]:
        """Return the routes that name the Service, or the pool, of a version."""
        name = self.pool_of(hash) if self.config.pools else self.service_name(hash)
        return [route for route in self.routes if name in self._route_weights(route)]

    def _backend(self, route: RolloutRoute, hash: str) -> Body:
        if self.config.pools:
            return {"group": POOL_GROUP, "kind": POOL_KIND, "name": self.pool_of(hash)}
        return {"name": self.service_name(hash), "port": route.port}

    def _route_weights(self, route: RolloutRoute) -> dict[str, int]:
        """Return the backends of a route, by name, and their weights."""
        return {
            str(ref.get("name")): int(ref.get("weight", 1))
            for rule in self.routes[route]["spec"].get("rules") or ()
            for ref in rule.get("backendRefs") or ()
        }

    def pool_of(self, hash: str) -> str:
        """Return the pool that selects a version: of two, the one that gets more requests. Empty: none selects it."""
        selecting = [name for name in self.config.pools if self._pool_version(name) == hash]
        return max(selecting, key=self._pool_weight, default="")

    def _pool_version(self, name: str) -> str:
        labels = pool_labels(self.pools.get(name) or {"spec": {}})
        # One of a service that had replicas of another kind selects no pod at all.
        return labels.get(self.version_label, "") if len(labels) == 1 else ""

    def _pool_weight(self, name: str) -> int:
        return max((self._route_weights(route).get(name, 0) for route in self.routes), default=0)

    def missing_backends(self, *revisions: ServingRevision) -> list[Action]:
        """Return what versions lack to be backends of the routes; the stable version is first."""
        if not self.config.pools:
            return [AddService(each) for each in revisions if self.service_name(each.hash) not in self.services]
        main = self.pool_of(revisions[0].hash)
        if not main:
            # The pool with requests: it keeps them, and now has the version that it is for.
            others = {self.pool_of(each.hash) for each in revisions[1:]}
            free = [name for name in self.config.pools if name not in others]
            return [PointPool(max(free, key=self._pool_weight), revisions[0].hash)]
        spare = next(name for name in self.config.pools if name != main)
        if all(self.pool_of(each.hash) for each in revisions):
            return []
        if self._pool_weight(spare):
            return [Weigh(((revisions[0].hash, 100),))]
        return [PointPool(spare, revisions[-1].hash)]

    def idle_backends(self, stable: ServingRevision) -> list[Action]:
        """Return what lets the pool without requests select the stable version, too, so that its picker is ready."""
        return [PointPool(name, stable.hash) for name in self.config.pools if self._pool_version(name) != stable.hash]

    def selects(self, hash: str) -> bool:
        """Return True if the service's own Services select this version alone."""
        found = [self.services.get(name) for name in self.config.services]
        return all(each is not None and (each["spec"].get("selector") or {}).get(HASH_LABEL) == hash for each in found)

    def gateway_rules_problem(self) -> str:
        """Return why the rules of a route, or its pools, are not known; empty if they are."""
        for name in self.config.pools:
            if name not in self.pools:
                return f"{POOL_KIND} {name} does not exist: apply the specs, and install the inference extension"
        try:
            self.unweighed(())
        except DocumentError as error:
            return str(error)
        return ""

    def gateway_problem(self) -> str:
        """Return why requests cannot be divided by the gateway; empty if they can."""
        for route in self.config.routes:
            if route not in self.routes:
                return f"{route} does not exist: apply the specs, and install the Gateway API"
        problem = self.gateway_rules_problem()
        if problem:
            return problem
        return next(filter(None, (_refusal_reason(route, body) for route, body in self.routes.items())), "")


def pool_labels(pool: Body) -> dict[str, str]:
    """Return the labels of versions that a pool selects."""
    labels = (pool["spec"].get("selector") or {}).get("matchLabels") or {}
    return {key: str(labels[key]) for key in names.VERSION_LABELS if key in labels}


def _refusal_reason(route: RolloutRoute, body: Body) -> str:
    """Return why no gateway has accepted a route; empty if one has."""
    said = ""
    for parent in (body.get("status") or {}).get("parents") or ():
        for condition in parent.get("conditions") or ():
            if condition.get("type") == "Accepted":
                if condition.get("status") == "True":
                    return ""
                said = f": {condition.get('reason', '')} {condition.get('message', '')}"[:300]
    return f"no gateway has accepted {route}{said}"


def _outline_rules(rules: Any) -> list[Any]:
    return [
        (
            [(each.get("path"), each.get("method")) for each in rule.get("matches") or ()],
            [
                (ref.get("kind", "Service"), ref.get("name"), ref.get("port"), ref.get("weight", 1))
                for ref in rule.get("backendRefs") or ()
            ],
            rule.get("timeouts"),
        )
        for rule in rules or ()
    ]


class Create(NamedTuple):
    """Create the ReplicaSet of a version with the Deployment's template."""

    hash: str
    replicas: int
    attached: bool


class Scale(NamedTuple):
    revision: ServingRevision
    replicas: int


class AttachVersion(NamedTuple):
    """Attach a version to the Deployment controller, or detach it."""

    revision: ServingRevision
    attached: bool


class Reject(NamedTuple):
    """Mark a version as rolled back."""

    revision: ServingRevision
    reason: str


class RemoveVersion(NamedTuple):
    """Delete the ReplicaSet of a version, which has no pods, with all that it owns."""

    revision: ServingRevision


class AddService(NamedTuple):
    revision: ServingRevision


class Weigh(NamedTuple):
    """Set the weights of all routes, by hash."""

    weights: tuple[tuple[str, int], ...]


class PointPool(NamedTuple):
    """Let an InferencePool select one version; empty: all."""

    pool: str
    hash: str


class Select(NamedTuple):
    """Let the service's own Services select one version."""

    hash: str


class StartJob(NamedTuple):
    revision: ServingRevision


class RemoveService(NamedTuple):
    """Delete the Service of a version of groups that is gone, with the validation Job that it owns."""

    service: Body


class HoldGroups(NamedTuple):
    """Set the ordinal from which on the controller of a LeaderWorkerSet replaces groups of another version."""

    groups: str
    partition: int


class StopGroup(NamedTuple):
    """Delete the leader of a group: its controller starts the group again, with the version of its ordinal."""

    leader: Body


Action = (
    Create
    | Scale
    | AttachVersion
    | Reject
    | RemoveVersion
    | AddService
    | Weigh
    | PointPool
    | Select
    | StartJob
    | RemoveService
    | HoldGroups
    | StopGroup
)


class Event(NamedTuple):
    """An Event about the Deployment."""

    reason: str
    note: str
    warning: bool = False


@dataclass(slots=True)
class ServingPlan:
    """The next thing to do: a question, else actions, else a new state; the next pass sees the result."""

    state: RolloutState
    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ask: str = ""
    """`room`, `pods` (those of the new version are not ready), `measure`: the answer is given to the next decision."""


class Answers(NamedTuple):
    """Answers to questions. None: not asked."""

    room: str | None = None
    """Missing room for another version; empty: none is missing."""
    pods: PodDiagnosis | None = None
    """Reasons why the pods of the new version, or of its validation Job, are not ready."""
    measured: tuple[str, str] | None = None
    """`passed`, `failed`, `unavailable` or `empty`, and the values or the reason."""
