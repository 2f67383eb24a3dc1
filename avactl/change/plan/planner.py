"""Plan each cluster, from two compilations and optionally a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from avactl.base import gc_control as collector
from avactl.base.object_identity import ObjectKey, namespaced_name
from avactl.change.plan import effects
from avactl.change.plan.cluster_state import ClusterState, declared_machines, declared_state, has_only_reserved_pools
from avactl.change.plan.compiled_side import Side
from avactl.change.plan.cost import workload_cost
from avactl.change.plan.model import Cost, Plan, PlanEntry, PlannedOwner, PlanVerdict, worse_verdict
from avactl.change.plan.rollout import Op, WorkloadChange, WorkloadEffect, place_all
from avactl.change.plan.simulator import SimulatedCluster
from avactl.change.plan.spec_origin import SpecOrigin
from avactl.change.plan.verdicts import count_on_spot, group_waits, pod_places
from avactl.change.plan.workloads import PlannedWorkload
from avactl.compiler import Compilation
from avactl.contracts import names
from avactl.contracts.pod_annotations import DATA_LOCALITY, START_WHEN_WARM
from avactl.program.program import pool_size
from avactl.scheduler.cache.cluster import ClusterCache

_BEFORE, _AFTER = "2000-01-01T00:00:00Z", "2000-01-01T00:00:01Z"
"""Creation time of the head's pods and of the base's: those of the base are older."""
_FAR_FUTURE = "9999-01-01T00:00:00Z"


def declared_clusters(base: Compilation | None, head: Compilation) -> list[str]:
    """Return the clusters that either side declares."""
    sides = [side for side in (base, head) if side is not None]
    return sorted({item.name for side in sides for item in side.program.clusters()})


@collector.pause_gc()
def make_plan(
    base: Compilation | None,
    head: Compilation,
    cluster: str,
    live: ClusterState | None = None,
    *,
    everything: bool = False,
) -> Plan:
    """Predict the result of applying head to a cluster that has base.

    `base` is None if it does not exist or does not compile. Without `live`, the machines are the declared ones, and
    all workloads of base run on them as far as they fit. With `everything`, unchanged specs are included.
    """
    before, after = Side.of(base, cluster), Side.of(head, cluster)
    if live is None:
        return _on_declared(base, head, cluster, (before, after), everything)
    return plan_live(live, lambda: (before, after), everything=everything)


@collector.pause_gc()
def plan_live(live: ClusterState, sides: Callable[[], tuple[Side, Side]], *, everything: bool = False) -> Plan:
    """Plan on a snapshot. `sides` returns base and head, and is called as late as possible."""
    world = SimulatedCluster(live)
    world.settle()
    then = effects.Moment(world)
    before, after = sides()
    _apply_configuration(world, before, after, declared_only=False)
    for name, body in after.nodes:
        world.patch_node(name, body)
    running = sum(1 for pod in live.objects.get("pods", ()) if pod["spec"].get("nodeName"))
    source = f"the snapshot of {live.taken}: {len(live.objects.get('nodes', ()))} machines, {running} pods"
    change = WorkloadChange(world, after.around, live.taken or _FAR_FUTURE)
    change.volumes(after.claims)
    change.apply(before.works, after.works, everything)
    return _decide(change, then, live.cluster, source, (before, after), (), live=True)


def _on_declared(
    base: Compilation | None, head: Compilation, cluster: str, sides: tuple[Side, Side], everything: bool
) -> Plan:
    before, after = sides
    world = _declared_world(base, head, cluster, before, everything)
    world.settle()
    then = effects.Moment(world)
    _apply_configuration(world, before, after, declared_only=True)
    there = declared_machines(head.program, cluster) if after.known else {"nodes": []}
    world.put_objects(there)
    left = {item["metadata"]["name"] for item in there["nodes"]}
    for name in [name for name in world.cache.tables.nodes if name not in left]:
        world.drop_node(name)
    change = WorkloadChange(world, after.around, _AFTER)
    change.volumes(after.claims)
    change.apply({} if everything else before.works, after.works, everything)
    source, assumed = _describe_machines(head, cluster, after.known)
    return _decide(change, then, cluster, source, sides, assumed, live=False)


def _decide(
    change: WorkloadChange,
    then: effects.Moment,
    cluster: str,
    source: str,
    sides: tuple[Side, Side],
    assumed: Iterable[str],
    *,
    live: bool,
) -> Plan:
    """Let the scheduler decide on a change, and describe the result."""
    world, (before, after) = change.world, sides
    world.settle()
    change.finish()
    entries = _make_entries(change, before, after, cluster)
    affected = tuple(effects.spec_effects(world, then, {entry.owner for entry in entries}))
    pools, quotas = tuple(effects.pool_changes(world, then)), tuple(effects.quota_changes(world, then))
    currency = after.prices.currency if after.prices is not None else ""
    assumptions = (*assumed, *_assumptions(live, entries, after))
    return Plan(cluster, source, tuple(entries), affected, pools, quotas, currency, assumptions, after.uncounted)


def _declared_world(
    base: Compilation | None, head: Compilation, cluster: str, before: Side, everything: bool
) -> SimulatedCluster:
    """Return the declared machines with the base's workloads on them; without a base, the head's machines."""
    if before.known and base is not None and not everything:
        world = SimulatedCluster(declared_state(base.program, base.manifests, cluster))
        for namespace, body in before.claims:
            world.want_claim(namespace, body)
        place_all(world, before.works.values(), before.around, _BEFORE, "base")
        for body in before.budgets:
            world.protect(body)
        return world
    return SimulatedCluster(declared_state(head.program, head.manifests, cluster))


@collector.pause_gc()
def declared_cluster(compilation: Compilation, cluster: str) -> ClusterCache:
    """Return the scheduler's view of a cluster with the declared machines and workloads, placed as far as they fit."""
    world = _declared_world(compilation, compilation, cluster, Side.of(compilation, cluster), everything=False)
    world.settle()
    return world.cache


def _apply_configuration(world: SimulatedCluster, before: Side, after: Side, *, declared_only: bool) -> None:
    """Apply the head's pools, quotas and namespaces."""
    old, new = before.configured, after.configured
    was = {namespaced_name(item): item for item in old["configmaps"]}
    kept = set(map(namespaced_name, new["configmaps"]))
    for key in was:
        if key not in kept:
            world.drop_config(key)
    changed = [item for item in new["configmaps"] if declared_only or was.get(namespaced_name(item)) != item]
    world.put_objects({"configmaps": changed, "namespaces": new["namespaces"]})


# -- entries ---------------------------------------------------------------------------------------------------------


def _make_entries(change: WorkloadChange, before: Side, after: Side, cluster: str) -> list[PlanEntry]:
    by_item: dict[PlannedOwner, list[WorkloadEffect]] = defaultdict(list)
    for each in change.done.values():
        by_item[each.work.owner].append(each)
    olds, news = _by_owner(before.works), _by_owner(after.works)
    found = []
    for owner, mine in by_item.items():
        origin = next((each.work.origin for each in mine if each.op != "removed"), mine[0].work.origin)
        old, new = olds.get(owner, []), news.get(owner, [])
        now = workload_cost(new, after.around, after.hardware, after.prices, change.scaled)
        was = workload_cost(old, before.around, before.hardware, before.prices, change.scaled)
        found.append(_make_entry(change.world, owner, origin, mine, cluster, len(new), now, was))
    return found


def _by_owner(works: dict[ObjectKey, PlannedWorkload]) -> dict[PlannedOwner, list[PlannedWorkload]]:
    found: dict[PlannedOwner, list[PlannedWorkload]] = defaultdict(list)
    for work in works.values():
        found[work.owner].append(work)
    return found


def _make_entry(
    world: SimulatedCluster,
    owner: PlannedOwner,
    origin: SpecOrigin,
    done: Sequence[WorkloadEffect],
    cluster: str,
    left: int,
    now: Cost,
    was: Cost,
) -> PlanEntry:
    pods = [pod for each in done if each.op != "removed" for pod in world.pods_of(each.work)]
    running = [pod for pod in pods if pod.node]
    found = group_waits(world, pods)
    stopped = sum(each.stopped for each in done)
    op: Op = "removed" if not left else "added" if all(each.op == "added" for each in done) else "changed"
    if all(each.op == "unchanged" for each in done):
        op = "unchanged"
    verdict = PlanVerdict.REMOVED if not left else PlanVerdict.STOPPED if not pods else PlanVerdict.STARTS
    new = any(pod.uid.startswith("new:") for pod in pods)
    if pods and op in ("changed", "unchanged") and not (found or stopped or new):
        verdict = PlanVerdict.GOES_ON
    for wait in found:
        verdict = worse_verdict(verdict, wait.verdict)
    surges = [each.surge for each in done if each.surge is not None]
    surge = min(surges, key=lambda each: each.placed - each.wanted) if surges else None
    if surge is not None and surge.placed < surge.wanted and verdict.fine and surge.wanted and not running:
        verdict = PlanVerdict.ROOM
    scheduler = {each.work.template["spec"].get("schedulerName") for each in done}
    return PlanEntry(
        owner,
        cluster,
        op,
        verdict,
        len(pods),
        len(running),
        pod_places(world, running),
        found,
        restarts=stopped,
        ends=sum(each.ends for each in done) if left else 0,
        surge=surge,
        later=any(each.later for each in done),
        reclaimable=count_on_spot(world, running) if owner.team else 0,
        cost=now,
        before=was,
        estimated=scheduler != {names.SCHEDULER_NAME} and bool(left),
        origin=origin,
    )


# -- source and assumptions -------------------------------------------------------------------------------------------


def _describe_machines(head: Compilation, cluster: str, known: bool) -> tuple[str, list[str]]:
    """Describe the machines of a plan without a snapshot; return the source and the assumptions."""
    if not known:
        return "declared capacity; the live cluster was not read", []
    pools = head.program.pools(cluster)
    source = (
        f"declared capacity ({sum(map(pool_size, pools))} machines) with all declared workloads running; "
        "the live cluster was not read"
    )
    assumed = []
    largest = [pool for pool in pools if pool.spec.autoscaling is not None]
    if largest:
        assumed.append("growing pools are counted at their largest size: " + ", ".join(pool.name for pool in largest))
    if has_only_reserved_pools(head.program, cluster):
        assumed.append("pods without GPUs are assumed to fit: machines without taints are not declared")
    return source, assumed


def _waits_for_datasets(work: PlannedWorkload) -> bool:
    notes = (work.template.get("metadata") or {}).get("annotations") or {}
    return START_WHEN_WARM.name in notes or DATA_LOCALITY.name in notes


def _assumptions(live: bool, entries: Sequence[PlanEntry], after: Side) -> Iterable[str]:
    if any(work.fewest is not None for work in after.works.values()):
        yield f"autoscaled services are counted with their {'current' if live else 'minimum'} number of pods"
    if not live and any(_waits_for_datasets(work) for work in after.works.values()):
        yield "datasets are assumed to be cached"
    if any(entry.estimated and entry.pods for entry in entries):
        yield "pods of kube-scheduler are placed with avactl's rules (estimate)"
    endless = [e for e in entries if e.pods and e.cost.gpus and not e.cost.always and e.cost.hours is None]
    if endless:
        jobs = "1 job has no timeout and is" if len(endless) == 1 else f"{len(endless)} jobs have no timeout and are"
        yield f"{jobs} not in the GPU-hour total"
