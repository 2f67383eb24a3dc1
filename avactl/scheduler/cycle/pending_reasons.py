"""Messages of pending pods: why a unit, or one pod, fits nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.hardware.placement.diagnosis import gang_message, pod_message, short, why_gang, why_pod
from avactl.hardware.placement.gang import Gang, GangRole, is_impossible
from avactl.hardware.placement.masks import Mask, intersect_masks
from avactl.hardware.placement.request import Request
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.constraints.constraint import NodeFilter
from avactl.scheduler.cycle.placer import Placer, StartAttempt
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.queue.gang_domains import gang_domains
from avactl.scheduler.queue.gang_request import gang_of

MAX_OBSTACLES = 4
"""Maximum number of reasons that a message names for nodes outside a request's node set."""

APART = "each of its pods would fit, but not all of them together"
NOT_FOUND = "no placement found for all of its pods together, though each of them would fit"
"""For gangs that are too large for an exhaustive search: a placement may exist."""


class PendingReasons:
    """Explains why pods do not fit in the current state of the cache."""

    def __init__(self, cache: ClusterCache, placer: Placer) -> None:
        self._cache, self._placer = cache, placer
        self._unrestricted: dict[Request, str] = {}
        """Messages for requests without restrictions."""
        self._state = (0, 0, 0)
        """State of the cluster for which those messages hold."""

    def clear(self) -> None:
        """Reset after a rebuild of the state."""
        self._unrestricted, self._state = {}, (0, 0, 0)

    def explain_unit(self, attempt: StartAttempt, models: Mask | None) -> str:
        """Return why the pods do not fit; `models`: nodes whose GPU models the quota permits. Raises RuleError."""
        unit, pods, requests = attempt.unit, attempt.pods, attempt.requests
        tables = self._cache.tables
        if attempt.nodes is not None:
            return self.explain_pod(pods[0], requests[pods[0].uid], self.within_quota(attempt.nodes, models))
        if attempt.restricted:
            where = f"all pods need one {short(unit.within)}: " if unit.within else ""
            domains = gang_domains(tables.state, unit, single_domains=True)
            if not domains:
                return f"{where}no machine has the label {unit.within}"
            mask = intersect_masks(domains[-1], models)
            return f"{where}{self._placer.place_one_by_one(attempt, mask, self.explain_pod).reason}"
        mask = intersect_masks(gang_domains(tables.state, unit)[-1], models)
        gang = gang_of(unit, pods, requests)[0]
        reason = why_gang(tables.state, gang, mask)
        if reason is None:
            if self._cache.requests.never_fits(gang, mask, untried=True):
                return f"{APART}, not even if the cluster is empty"
            return APART if is_impossible(tables.scorer, gang, mask) else NOT_FOUND
        if reason.pod.barred or not (reason.ever or self._cache.requests.never_fits(gang)):
            reason = reason._replace(ever=True, pod=reason.pod._replace(ever=True))
        return gang_message(reason, self._obstacles(reason.role.request, self._cache.quotas.describe_excluded(models)))

    def within_quota(self, nodes: NodeFilter, models: Mask | None) -> NodeFilter:
        """Restrict the nodes of a pod to those whose GPU models the quota permits."""
        reason = join_reasons(nodes.reason, self._cache.quotas.describe_excluded(models))
        return NodeFilter(intersect_masks(nodes.mask, models), reason)

    def explain_pod(self, pod: PodInfo, request: Request, nodes: NodeFilter) -> str:
        """Return why a pod fits on none of the nodes."""
        if self._cache.claims.concern(pod) or nodes.mask is not None or nodes.reason:
            return self._explain_restricted(pod, request, nodes)
        tables = self._cache.tables
        state = (tables.state.position, tables.change_epoch, tables.node_epoch)
        if self._state != state:
            self._unrestricted, self._state = {}, state
        if request not in self._unrestricted:
            self._unrestricted[request] = self._explain_restricted(pod, request, nodes)
        return self._unrestricted[request]

    def _explain_restricted(self, pod: PodInfo, request: Request, nodes: NodeFilter) -> str:
        mask, excluded = nodes
        claims = self._cache.claims.explain(pod, request) if self._cache.claims.concern(pod) else None
        if claims is not None:
            request, claims_mask, claims_reason = claims
            mask, excluded = intersect_masks(mask, claims_mask), join_reasons(excluded, claims_reason)
        reason = why_pod(self._cache.tables.state, request, mask)
        if reason.barred or not (reason.ever or self._cache.requests.never_fits(Gang((GangRole("", request, 1),)))):
            reason = reason._replace(ever=True)
        return pod_message(reason, self._obstacles(request, excluded))

    def _obstacles(self, request: Request, excluded: str) -> Sequence[str]:
        """Return the most frequent obstacles to a request's node set with their number of nodes, `excluded` last."""
        counts = sorted((-count, str(obstacle)) for obstacle, count in self._cache.requests.obstacles(request).items())
        obstacles = [f"{-count} {obstacle}" for count, obstacle in counts[:MAX_OBSTACLES]]
        return [*obstacles, excluded] if excluded else obstacles


def join_reasons(*reasons: str) -> str:
    """Join the non-empty reasons with commas."""
    return ", ".join(filter(None, reasons))
