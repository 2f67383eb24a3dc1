"""Versions of a service whose replicas are groups of pods: revisions of one LeaderWorkerSet, or of one for each role.

The controller of a LeaderWorkerSet replaces the groups from an ordinal on, `partition`, one after the other, and starts
a group below it with the revision that all groups had last. At rest the daemon holds the partition at `GROUPS_HOLD`: a
changed spec replaces nothing, and a group that stops comes back with the stable version. It lowers it while groups of
the new version are to start. Raising it again stops none of them.

With one LeaderWorkerSet, a version is its revision, a label of its pods. With several, the pods of all of them have a
label that the compiler gives to what belongs together, and a version serves once each role has a ready group.

Sources: `rollingUpdateParameters` in pkg/controllers/leaderworkerset_controller.go of sigs.k8s.io/lws 0.9;
`newVersionedStatefulSetPod` and `completeRollingUpdate` in pkg/controller/statefulset of k8s.io/kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from avactl.base.object_identity import controller_of
from avactl.contracts import names
from avactl.contracts.serving import RolloutConfig, RolloutRoute, RolloutState
from avactl.daemons.serving.revisions import HASH, HASH_LABEL, Body, ServingRevision
from avactl.daemons.serving.view import View
from avactl.kube.pod_diagnosis import is_ready

API, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"
_SET_REVISION = "controller-revision-hash"
"""Label of a StatefulSet's pod: name of its revision there."""


@dataclass(frozen=True, slots=True)
class GroupSet:
    """One LeaderWorkerSet, as observed."""

    body: Body
    surge: int
    target: str
    """Version of the spec; empty: the controller has not observed the spec."""
    current: str
    """Version with which groups below the partition start; empty: not known, or none has a pod."""
    leaders: Mapping[str, tuple[str, Body]]
    """Version and leader of each group by name, without leaders that are being deleted."""

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def total(self) -> int:
        """Groups outside of a rollout, as its spec, an autoscaler or `kubectl scale` says."""
        return int(self.body["spec"].get("replicas", 1))

    @property
    def partition(self) -> int:
        """Ordinal from which on groups are replaced by those of the spec."""
        rolling = (self.body["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
        return int(rolling.get("partition") or 0)

    @property
    def most(self) -> int:
        """Groups during a rollout: the controller adds `maxSurge` as soon as the spec changes."""
        return self.total + min(self.surge, self.total)

    def of_version(self, hash: str) -> list[Body]:
        """Return the leaders of a version, that of the highest ordinal first."""
        found = [leader for version, leader in self.leaders.values() if version == hash]
        return sorted(found, key=lambda each: -_ordinal(each))

    def ready(self, hash: str) -> int:
        """Return the ready groups of a version."""
        return sum(map(is_ready, self.of_version(hash)))

    def partition_for(self, hash: str, count: int) -> int:
        """Return the partition with which this many groups have a version. Those that have it already count: after a
        change of `replicas`, they may not be those of the highest ordinals."""
        if count >= self.most:
            return 0
        known = {ordinal for each in self.of_version(hash) if (ordinal := _ordinal(each)) < self.most}
        partition, have = self.most, len(known)
        while partition and have < count:
            partition -= 1
            have += partition not in known
        return partition

    def others(self, *hashes: str) -> list[Body]:
        """Return the leaders of groups that have none of these versions."""
        return [leader for version, leader in self.leaders.values() if version not in hashes]


@dataclass(frozen=True, slots=True)
class GroupView(View):
    """One service of groups, as observed. `deployment` is the LeaderWorkerSet with its rollout, `revisions` are by its
    versions: their numbers are those of the role that has the fewest ready groups."""

    sets: tuple[GroupSet, ...]
    """Its LeaderWorkerSets, that of `deployment` first."""
    problem: str
    """Why its roles cannot be rolled out together; empty: they can."""
    old_services: tuple[Body, ...]
    """Services of versions that are neither stable nor new."""

    @property
    def target(self) -> str:
        """Version of the spec; empty: the controller has not observed the spec of a role."""
        return _common([each.target for each in self.sets])

    @property
    def current(self) -> str:
        """Version with which groups of all roles start again; empty: not known, or not one."""
        return _common([each.current for each in self.sets])

    @property
    def total(self) -> int:
        """Groups of the role that has fewest: 0 if the service has no pods to answer with."""
        return min(each.total for each in self.sets)

    @property
    def reference(self) -> tuple[str, str]:
        """API version and kind of the object that declares the service."""
        return API, KIND

    @property
    def version_label(self) -> str:
        """Label of pods with their version."""
        return _version_label(self.config)

    def workload(self, name: str) -> Mapping[str, Any]:
        """Return one of the objects that declare the service."""
        return next(each.body for each in self.sets if each.name == name)

    def serves(self, hash: str) -> bool:
        """Return True if each role has a ready group of a version."""
        return all(each.ready(hash) for each in self.sets)

    def selector(self, hash: str) -> dict[str, str]:
        """Return labels by which the Service of a version selects the pods that answer requests."""
        return {names.LWS_NAME: self.name, self.version_label: hash, names.LWS_INDEX: "0"}

    def all_pods(self, hash: str) -> dict[str, str]:
        """Return labels of all pods of a version, also of those that answer no requests."""
        # The label of several roles is a digest of their names, too, so no other service has it.
        own = {names.LWS_NAME: self.name} if len(self.sets) == 1 else {}
        return {**own, self.version_label: hash}

    def owner(self, hash: str) -> Body:
        """Return the reference by which the Service of a version is deleted with the service."""
        return {"apiVersion": API, "kind": KIND, "name": self.name, "uid": self.deployment["metadata"]["uid"]}

    def job_owner(self, hash: str) -> Body:
        """Return the reference by which the validation Job of a version is deleted with its Service."""
        name = self.service_name(hash)
        return {"apiVersion": "v1", "kind": "Service", "name": name, "uid": self.services[name]["metadata"]["uid"]}

    def pod_names(self, hash: str) -> str:
        """Return a regular expression of the names of the leaders of a version, of all roles."""
        found = []
        for each in self.sets:
            ordinals = sorted(map(_ordinal, each.of_version(hash)))
            found.append(f"{each.name}-({'|'.join(map(str, ordinals)) or 'none'})")
        return found[0] if len(found) == 1 else f"({'|'.join(found)})"


def _common(versions: Iterable[str]) -> str:
    found = set(versions)
    return found.pop() if len(found) == 1 else ""


def _version_label(config: RolloutConfig) -> str:
    return names.SERVICE_VERSION if config.roles else names.LWS_REVISION


def _label(body: Mapping[str, Any], key: str) -> str:
    """Return the version in a label; empty if it is none."""
    text = str((body["metadata"].get("labels") or {}).get(key, ""))
    return text if HASH(text) else ""


def _ordinal(leader: Mapping[str, Any]) -> int:
    text = str(leader["metadata"]["name"]).rpartition("-")[2]
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def view_set(groups: Body, config: RolloutConfig, leader_set: Body | None, pods: Iterable[Body]) -> GroupSet:
    """Return a LeaderWorkerSet as observed. `leader_set`: the StatefulSet of its leaders; `pods`: those that this one
    owns."""
    metadata, key = groups["metadata"], _version_label(config)
    if leader_set is not None and controller_of(leader_set["metadata"]).get("uid") != metadata["uid"]:
        leader_set = None
    set_uid = leader_set["metadata"]["uid"] if leader_set is not None else ""
    leaders = [
        each
        for each in pods
        if set_uid
        and controller_of(each["metadata"]).get("uid") == set_uid
        and not each["metadata"].get("deletionTimestamp")
    ]
    status = groups.get("status") or {}
    observed = leader_set is not None and status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    running = (leader_set.get("status") or {}).get("currentRevision") if leader_set is not None else None
    current = next(
        (
            _label(each, key)
            for each in leaders
            if running and (each["metadata"].get("labels") or {}).get(_SET_REVISION) == running
        ),
        "",
    )
    # Of several roles, the compiler names the version, in their templates.
    named = groups if config.roles else leader_set
    return GroupSet(
        groups,
        config.surge,
        _label(named, key) if observed and named is not None else "",
        current,
        {each["metadata"]["name"]: (_label(each, key), each) for each in leaders},
    )


def view_groups(
    sets: Iterable[GroupSet],
    config: RolloutConfig,
    state: RolloutState,
    services: Iterable[Body],
    routes: Mapping[RolloutRoute, Body],
    jobs: Iterable[Body],
    pools: Mapping[str, Body] = {},
) -> GroupView:
    """Return a service as observed. `sets`: its LeaderWorkerSets, that with the rollout first; `services`, `jobs`:
    those of its versions."""
    sets = tuple(sets)
    body = sets[0].body
    targets = {each.target for each in sets}
    seen = {version for each in sets for version, _ in each.leaders.values()}
    revisions: dict[str, ServingRevision] = {}
    for hash in {state.stable, state.canary, *targets, *(each.current for each in sets), *seen} - {""}:
        own = min(len(each.of_version(hash)) for each in sets)
        ready = min(each.ready(hash) for each in sets)
        revisions[hash] = ServingRevision(hash, body, False, own, ready, own - ready, hash == state.rejected, "")
    by_version = {str((each["metadata"].get("labels") or {}).get(HASH_LABEL)): each for each in services}
    missing = [name for name in config.roles if name not in {each.name for each in sets}]
    problem = ""
    if missing:
        problem = f"{KIND} {missing[0]} does not exist: apply the specs"
    elif len(targets) > 1 and "" not in targets:
        problem = "the roles have different versions: apply the specs again"
    kept = {state.stable, state.canary, *targets}
    return GroupView(
        body,
        config,
        state,
        revisions,
        {each["metadata"]["name"]: each for each in by_version.values()},
        routes,
        {str((each["metadata"].get("labels") or {}).get(HASH_LABEL)): each for each in jobs},
        sets,
        problem,
        tuple(each for hash, each in by_version.items() if hash not in kept),
        pools=pools,
    )
