"""Versions of a service whose replicas are groups of pods: all of one LeaderWorkerSet, which keeps two revisions.

Its controller replaces the groups from an ordinal on, `partition`, one after the other, and starts a group below it
with the revision that all groups had last. At rest the daemon holds the partition at `GROUPS_HOLD`: a changed spec
replaces nothing, and a group that stops comes back with the stable version. It lowers it while groups of the new
version are to start. Raising it again stops none of them.

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
class GroupView(View):
    """One service of groups, as observed. `deployment` is its LeaderWorkerSet, `revisions` are by its revisions."""

    target: str
    """Revision of the spec; empty: the controller has not observed the spec."""
    current: str
    """Revision with which groups below the partition start; empty: not known, or none has a pod."""
    leaders: Mapping[str, Body]
    """Leaders of groups by name, without those that are being deleted."""
    old_services: tuple[Body, ...]
    """Services of versions that are neither stable nor new."""

    @property
    def reference(self) -> tuple[str, str]:
        """API version and kind of the object that declares the service."""
        return API, KIND

    @property
    def version_label(self) -> str:
        """Label of pods with their version."""
        return names.LWS_REVISION

    @property
    def partition(self) -> int:
        """Ordinal from which on groups are replaced by those of the spec."""
        rolling = (self.deployment["spec"].get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}
        return int(rolling.get("partition") or 0)

    @property
    def most(self) -> int:
        """Groups during a rollout: the controller adds `maxSurge` as soon as the spec changes."""
        return self.total + min(self.config.surge, self.total)

    def of_version(self, hash: str) -> list[Body]:
        """Return the leaders of a version, that of the highest ordinal first."""
        found = [each for each in self.leaders.values() if revision_of(each) == hash]
        return sorted(found, key=lambda each: -_ordinal(each))

    def selector(self, hash: str) -> dict[str, str]:
        """Return labels by which the Service of a version selects the leaders of its groups."""
        return {**self.all_pods(hash), names.LWS_INDEX: "0"}

    def all_pods(self, hash: str) -> dict[str, str]:
        """Return labels of all pods of a version, also of those that answer no requests."""
        return {names.LWS_NAME: self.name, names.LWS_REVISION: hash}

    def owner(self, hash: str) -> Body:
        """Return the reference by which the Service of a version is deleted with the service."""
        return {"apiVersion": API, "kind": KIND, "name": self.name, "uid": self.deployment["metadata"]["uid"]}

    def job_owner(self, hash: str) -> Body:
        """Return the reference by which the validation Job of a version is deleted with its Service."""
        name = self.service_name(hash)
        return {"apiVersion": "v1", "kind": "Service", "name": name, "uid": self.services[name]["metadata"]["uid"]}

    def pod_names(self, hash: str) -> str:
        """Return a regular expression of the names of the pods of a version that answer requests."""
        ordinals = sorted(_ordinal(each) for each in self.of_version(hash))
        return f"{self.name}-({'|'.join(map(str, ordinals)) or 'none'})"


def revision_of(body: Mapping[str, Any]) -> str:
    """Return the revision of a leader, or of the StatefulSet of leaders; empty if it is not one of the controller's."""
    text = str((body["metadata"].get("labels") or {}).get(names.LWS_REVISION, ""))
    return text if HASH(text) else ""


def _ordinal(leader: Mapping[str, Any]) -> int:
    text = str(leader["metadata"]["name"]).rpartition("-")[2]
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def view_groups(
    groups: Body,
    config: RolloutConfig,
    state: RolloutState,
    leader_set: Body | None,
    pods: Iterable[Body],
    services: Iterable[Body],
    routes: Mapping[RolloutRoute, Body],
    jobs: Iterable[Body],
    pools: Mapping[str, Body] = {},
) -> GroupView:
    """Return a service as observed. `leader_set`: the StatefulSet of its leaders; `pods`: those that this one owns;
    `services`, `jobs`: those of its versions."""
    metadata = groups["metadata"]
    owned = leader_set is not None and controller_of(leader_set["metadata"]).get("uid") == metadata["uid"]
    set_uid = leader_set["metadata"]["uid"] if leader_set is not None and owned else ""
    leaders = {
        each["metadata"]["name"]: each
        for each in pods
        if set_uid
        and controller_of(each["metadata"]).get("uid") == set_uid
        and not each["metadata"].get("deletionTimestamp")
    }
    status = groups.get("status") or {}
    observed = status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    target = revision_of(leader_set) if leader_set is not None and owned and observed else ""
    running = (leader_set.get("status") or {}).get("currentRevision") if leader_set is not None and owned else None
    current = next(
        (
            revision_of(each)
            for each in leaders.values()
            if running and (each["metadata"].get("labels") or {}).get(_SET_REVISION) == running
        ),
        "",
    )
    revisions: dict[str, ServingRevision] = {}
    for hash in filter(None, {state.stable, state.canary, target, current, *map(revision_of, leaders.values())}):
        own = [each for each in leaders.values() if revision_of(each) == hash]
        ready = sum(map(is_ready, own))
        rejected = hash == state.rejected
        revisions[hash] = ServingRevision(hash, groups, False, len(own), ready, len(own) - ready, rejected, "")
    by_version = {str((each["metadata"].get("labels") or {}).get(HASH_LABEL)): each for each in services}
    kept = {state.stable, state.canary, target}
    return GroupView(
        groups,
        config,
        state,
        revisions,
        {each["metadata"]["name"]: each for each in by_version.values()},
        routes,
        {str((each["metadata"].get("labels") or {}).get(HASH_LABEL)): each for each in jobs},
        target,
        current,
        leaders,
        tuple(each for hash, each in by_version.items() if hash not in kept),
        pools=pools,
    )
