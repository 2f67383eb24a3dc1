"""Simulate applying head over base: pods stop, are created and roll out, and the scheduler decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from avactl.base.object_identity import ObjectKey
from avactl.change.plan.model import Surge
from avactl.change.plan.simulator import SimulatedCluster
from avactl.change.plan.workloads import GROUPED, PlannedWorkload, Surroundings, WorkloadMaker
from avactl.contracts import names
from avactl.program.manifest import Body
from avactl.scheduler.objects.pod_info import PodInfo

Op = Literal["added", "changed", "removed", "unchanged"]


class WorkloadEffect(NamedTuple):
    """Effect of the change on one workload."""

    work: PlannedWorkload
    op: Op
    stopped: int = 0
    """Running pods that were stopped and will be recreated."""
    ends: int = 0
    """Running pods that were stopped for good."""
    surge: Surge | None = None
    later: bool = False
    """True if the running pods finish first."""


class PlannedRollout(NamedTuple):
    """A Deployment, LeaderWorkerSet or role of a DisaggregatedSet in a rolling update."""

    work: PlannedWorkload
    old: list[PodInfo]
    first: int
    """New pods that may start before an old one stops (maxSurge)."""
    begins: int
    """Old pods that may stop before a new one starts (maxUnavailable)."""


def place_all(
    world: SimulatedCluster, works: Iterable[PlannedWorkload], around: Surroundings, created: str, mark: str
) -> None:
    """Create the pods of these workloads and let the scheduler place them: the state before the change."""
    maker = WorkloadMaker(around, created, mark)
    for work in _in_order(works):
        _create(world, maker, work, range(work.count()))
    world.settle()


def _in_order(works: Iterable[PlannedWorkload]) -> list[PlannedWorkload]:
    """Sort workloads: DaemonSets first, because their pods are on the machines already; then in API list order."""
    return sorted(works, key=lambda work: (work.id.kind != "DaemonSet", work.id.namespace, work.id.name))


def _create(world: SimulatedCluster, maker: WorkloadMaker, work: PlannedWorkload, numbers: Iterable[int]) -> None:
    if work.id.kind == "DaemonSet":
        for made in maker.daemons(work, world.nodes_for(work.template)):
            world.create(made)
        return
    if work.id.kind == "Job":
        world.put_job(work.id.namespace, work.id.name, work.spec)
    claims = (work.spec.get("volumeClaimTemplates") or ()) if work.id.kind == "StatefulSet" else ()
    for number in numbers:
        for claim in claims:
            name = f"{claim['metadata']['name']}-{work.id.name}-{number}"
            world.want_claim(work.id.namespace, {"metadata": {"name": name}, "spec": claim["spec"]})
        for made in maker.pods(work, [number]):
            world.create(made)


class WorkloadChange:
    """The workloads of two sides, and the transition between them."""

    def __init__(self, world: SimulatedCluster, around: Surroundings, created: str) -> None:
        self.world = world
        self.done: dict[ObjectKey, WorkloadEffect] = {}
        self.scaled: dict[ObjectKey, int] = {}
        """Replicas of autoscaled workloads, in base or head."""
        self._maker = WorkloadMaker(around, created, "new")
        self._rollouts: list[PlannedRollout] = []

    def volumes(self, claims: Iterable[tuple[str, Body]]) -> None:
        """Create declared claims with their namespaces before the pods that mount them."""
        for namespace, body in claims:
            self.world.want_claim(namespace, body)

    def apply(
        self, base: dict[ObjectKey, PlannedWorkload], head: dict[ObjectKey, PlannedWorkload], everything: bool = False
    ) -> None:
        """Do what the controllers do when head is applied over base, before the scheduler decides.

        With `everything`, also start unchanged workloads that have no pods.
        """
        for work in (*base.values(), *head.values()):
            if work.fewest is not None:
                self.scaled[work.id] = len(self.world.pods_of(work))
        for id_ in base.keys() - head.keys():
            self.done[id_] = WorkloadEffect(base[id_], "removed", ends=self._stop(self.world.pods_of(base[id_])))
            if id_.kind == "Job":
                self.world.drop_job(id_.namespace, id_.name)
        create: list[tuple[PlannedWorkload, range]] = []
        for work in _in_order(head.values()):
            old = base.get(work.id)
            if old is None or old.body["spec"] != work.body["spec"] or self._scaled(old, work):
                create += self._changed(old, work)
            elif everything:
                running = self.world.pods_of(work)
                self.done[work.id] = WorkloadEffect(work, "unchanged")
                if not running:
                    create.append((work, range(work.count())))
        for work, numbers in create:
            _create(self.world, self._maker, work, numbers)

    def _scaled(self, old: PlannedWorkload, work: PlannedWorkload) -> bool:
        """Return whether an autoscaler's new bounds change the number of pods; the HPA is a separate object."""
        if (old.fewest, old.most) == (work.fewest, work.most):
            return False
        running = len(self.world.pods_of(work))
        return work.count(running) != running

    def _changed(self, old: PlannedWorkload | None, work: PlannedWorkload) -> list[tuple[PlannedWorkload, range]]:
        """Stop the pods that the change stops; return the pod numbers to create."""
        pods = self.world.pods_of(work)
        if work.id.kind == "Deployment":
            pods.sort(key=lambda pod: not pod.node)  # a ReplicaSet deletes unscheduled pods first
        op: Op = "added" if old is None else "changed"
        count = work.count(len(pods))
        new_pods = old is None or old.pattern != work.pattern
        if not pods:
            self.done[work.id] = WorkloadEffect(work, op)
            if old is None and work.fewest == 0:
                count = work.size  # the API server's default, which the autoscaler leaves for some time
            return [(work, range(count))]
        if not new_pods:
            self.done[work.id] = WorkloadEffect(work, op, ends=self._stop(pods[count:]))
            return [(work, range(len(pods), count))]
        notes = work.body["metadata"].get("annotations") or {}
        if notes.get(names.ON_CHANGE) == "finish" and any(pod.node for pod in pods):
            self.done[work.id] = WorkloadEffect(work, op, later=True)
            return []
        if work.id.kind in ("Deployment", *GROUPED) and count:
            return self._roll(work, op, pods, count)
        gone = self._stop(pods)
        self.done[work.id] = WorkloadEffect(work, op, min(gone, count), max(0, gone - count))
        return [(work, range(count))]

    def _roll(
        self, work: PlannedWorkload, op: Op, pods: list[PodInfo], count: int
    ) -> list[tuple[PlannedWorkload, range]]:
        surge, lost = _rolling_limits(work, count)
        if not surge and not lost:
            lost = work.size
        if (work.spec.get("strategy") or {}).get("type") == "Recreate":
            surge, lost = 0, len(pods)
        # Surplus pods stop at once.
        ends = self._stop(pods[count:])
        running = [pod for pod in pods[:count] if pod.node]
        self._stop([pod for pod in pods[:count] if not pod.node])
        begins = max(0, lost - (count - len(running)))
        self._stop(running[len(running) - begins :] if begins else [])
        left = running[: len(running) - begins]
        first = min(count, count + surge - len(left))
        self._rollouts.append(PlannedRollout(work, left, first, begins))
        self.done[work.id] = WorkloadEffect(work, op, len(running), ends)
        return [(work, range(first))]

    def finish(self) -> None:
        """Complete the rollouts whose new pods were placed, and let the scheduler decide again."""
        stalled = {_replacement_unit(each.work) for each in self._rollouts if each.old and not self._placed(each.work)}
        for rollout in self._rollouts:
            work, done = rollout.work, self.done[rollout.work.id]
            new, placed = self._new(work), self._placed(work)
            beyond = len(placed) - max(0, rollout.first - self._further(rollout))
            wanted = self._further(rollout)
            words = next((self.world.said.get(pod.uid, "") for pod in new if not pod.node), "")
            self.done[work.id] = done._replace(surge=Surge(wanted, max(0, min(wanted, beyond)), words))
            if rollout.old and _replacement_unit(work) in stalled:
                self.done[work.id] = self.done[work.id]._replace(stopped=rollout.begins)
                continue  # the rollout stalls, the old pods keep running
            count = work.count(len(rollout.old))
            self._stop(rollout.old)
            _create(self.world, self._maker, work, range(rollout.first, count))
        if self._rollouts:
            self.world.settle()

    def _new(self, work: PlannedWorkload) -> list[PodInfo]:
        return [pod for pod in self.world.pods_of(work) if self.world.revision(pod) == work.revision]

    def _placed(self, work: PlannedWorkload) -> list[PodInfo]:
        return [pod for pod in self._new(work) if pod.node]

    def _further(self, rollout: PlannedRollout) -> int:
        """Return the number of surge pods."""
        return max(0, len(rollout.old) + rollout.first - rollout.work.count(len(rollout.old)))

    def _stop(self, pods: Iterable[PodInfo]) -> int:
        """Delete pods; return how many of them ran."""
        gone = list(pods)
        for pod in gone:
            self.world.drop_pod(pod.key)
        return sum(1 for pod in gone if pod.node)


def _replacement_unit(work: PlannedWorkload) -> ObjectKey:
    """Return what is replaced together: all roles of a DisaggregatedSet, else the workload."""
    return work.id._replace(name=work.marks.get(names.DISAGGREGATED_NAME, work.id.name))


def _rolling_limits(work: PlannedWorkload, count: int) -> tuple[int, int]:
    """Return how many pods more, and how many fewer, a rolling update may have."""
    defaults: tuple[int | str, int | str]
    if work.id.kind in GROUPED:
        rolling, defaults = (work.spec.get("rolloutStrategy") or {}).get("rollingUpdateConfiguration") or {}, (0, 1)
    else:
        rolling, defaults = (work.spec.get("strategy") or {}).get("rollingUpdate") or {}, ("25%", "25%")
    replicas = count // work.size
    surge = _resolve_pods(rolling.get("maxSurge", defaults[0]), replicas, up=True)
    lost = _resolve_pods(rolling.get("maxUnavailable", defaults[1]), replicas, up=False)
    return surge * work.size, lost * work.size


def _resolve_pods(given: int | str, count: int, up: bool) -> int:
    """Resolve a number or percentage of pods: surge rounds up, unavailable rounds down."""
    if isinstance(given, int):
        return given
    part = int(given.rstrip("%")) * count
    return -(-part // 100) if up else part // 100
