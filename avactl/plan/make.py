"""From two compilations, and perhaps a snapshot, to a plan for each cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from avactl import names
from avactl.compiler import Compilation
from avactl.kinds.manifest import Manifest
from avactl.kinds.program import Item, pool_size
from avactl.plan import effects
from avactl.plan.change import Change, Done, Op, place_all
from avactl.plan.cluster_state import ClusterState, configured, declared, machines, reserved
from avactl.plan.cost import Hardware, cost, hardware
from avactl.plan.model import Cost, Entry, Owner, Plan, Verdict, worst
from avactl.plan.verdicts import places, waits
from avactl.plan.workloads import Surroundings, Workload, WorkloadId, surroundings, workloads
from avactl.plan.world import World

_BEFORE, _AFTER = "2000-01-01T00:00:00Z", "2000-01-01T00:00:01Z"
"""When pods are made, as far as specs go: those of the base are older."""
_LATER = "9999-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class _Side:
    """One compilation, for one cluster."""

    known: bool
    """Whether it has the cluster."""
    manifests: tuple[Manifest, ...]
    works: dict[WorkloadId, Workload]
    around: Surroundings
    hardware: Hardware

    @classmethod
    def of(cls, compilation: Compilation | None, cluster: str) -> _Side:
        if compilation is None or compilation.program.find("Cluster", cluster) is None:
            return cls(False, (), {}, Surroundings(), Hardware({}, frozenset()))
        manifests = tuple(manifest for manifest in compilation.manifests if manifest.cluster == cluster)
        return cls(
            True,
            manifests,
            workloads(manifests, cluster),
            surroundings(manifests, cluster),
            hardware(compilation.program, cluster),
        )


def clusters(base: Compilation | None, head: Compilation) -> list[str]:
    """The clusters that either side declares."""
    sides = [side for side in (base, head) if side is not None]
    return sorted({item.name for side in sides for item in side.program.of("Cluster")})


def make_plan(
    base: Compilation | None,
    head: Compilation,
    cluster: str,
    live: ClusterState | None = None,
    *,
    everything: bool = False,
) -> Plan:
    """What would happen in a cluster if head were applied where base is.

    `base` is None where nothing is there yet, or where it does not compile. Without `live`, the machines are those
    that the specs declare, and all of base runs on them as far as it fits. With `everything` also specs that do not
    change are told of.
    """
    # As in the compiler: there is no cyclic garbage here, and two compilations are a large heap to walk.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _make_plan(base, head, cluster, live, everything)
    finally:
        if collecting:
            gc.enable()


def _make_plan(
    base: Compilation | None, head: Compilation, cluster: str, live: ClusterState | None, everything: bool
) -> Plan:
    before, after = _Side.of(base, cluster), _Side.of(head, cluster)
    if live is None:
        world, created = _declared(base, head, cluster, before, everything), _AFTER
    else:
        world, created = World(live), live.taken or _LATER
    world.settle()
    then = effects.Moment(world)
    old_works = {} if live is None and everything else before.works
    _configure(world, base, head, cluster, (before, after), declared_only=live is None)
    change = Change(world, after.around, created)
    change.volumes(after.manifests, cluster)
    change.apply(old_works, after.works, everything)
    world.settle()
    change.finish()
    prices = head.program.cluster_spec(cluster).prices if after.known else None
    entries = _entries(world, change.done, before, after, (base, head), cluster)
    return Plan(
        cluster=cluster,
        source=_source(live, head, cluster, after.known),
        entries=tuple(entries),
        effects=tuple(effects.effects(world, then, {entry.owner for entry in entries})),
        pools=tuple(effects.pools(world, then)),
        quotas=tuple(effects.quotas(world, then)),
        currency=prices.currency if prices is not None else "",
        assumed=tuple(_assumed(head, cluster, live, entries, after)),
    )


def _declared(base: Compilation | None, head: Compilation, cluster: str, before: _Side, everything: bool) -> World:
    """The machines of the base, with what the base runs on them; those of the head where there is no base."""
    if before.known and base is not None and not everything:
        world = World(declared(base.program, before.manifests, cluster))
        for manifest in before.manifests:
            if manifest.kind == "PersistentVolumeClaim":
                world.want_claim(manifest.namespace, manifest.body)
        place_all(world, before.works.values(), before.around, _BEFORE, "base")
        for manifest in before.manifests:
            if manifest.kind == "PodDisruptionBudget":
                world.protect(manifest.body)
        return world
    return World(declared(head.program, head.manifests, cluster))


def _configure(
    world: World,
    base: Compilation | None,
    head: Compilation,
    cluster: str,
    sides: tuple[_Side, _Side],
    *,
    declared_only: bool,
) -> None:
    """Pools, quotas, namespaces and machines as the head has them."""
    before, after = sides
    old, new = configured(before.manifests, cluster), configured(after.manifests, cluster)
    kept = {_key(item) for item in new["configmaps"]}
    for item in old["configmaps"]:
        if _key(item) not in kept:
            world.drop_config(_key(item))
    was = {_key(item): item for item in old["configmaps"]}
    changed = [item for item in new["configmaps"] if was.get(_key(item)) != item or declared_only]
    world.put_objects({"configmaps": changed, "namespaces": new["namespaces"]})
    if not declared_only:
        _label_nodes(world, after.manifests)
        return
    if after.known:
        there = machines(head.program, cluster)
        world.put_objects(there)
        left = {item["metadata"]["name"] for item in there["nodes"]}
    else:
        left = set()
    for name in [name for name in world.fleet.nodes if name not in left]:
        world.drop_node(name)


def _label_nodes(world: World, manifests: Iterable[Manifest]) -> None:
    """Labels and taints that pools put on machines which they name."""
    for manifest in manifests:
        if manifest.kind == "Node":
            world.patch_node(manifest.name, manifest.body)


def _key(item: dict[str, dict[str, str]]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


# -- entries ---------------------------------------------------------------------------------------------------------


def _entries(
    world: World,
    done: dict[WorkloadId, Done],
    before: _Side,
    after: _Side,
    sides: tuple[Compilation | None, Compilation],
    cluster: str,
) -> list[Entry]:
    by_item: dict[Owner, list[Done]] = {}
    for each in done.values():
        by_item.setdefault(_owner(each.work.item), []).append(each)
    prices = [
        side.program.cluster_spec(cluster).prices if side is not None and known else None
        for side, known in zip(sides, (before.known, after.known), strict=True)
    ]
    olds, news = _by_owner(before.works), _by_owner(after.works)
    found = []
    for owner, mine in by_item.items():
        item = next((each.work.item for each in mine if each.op != "removed"), mine[0].work.item)
        old, new = olds.get(owner, []), news.get(owner, [])
        now = cost(new, after.around, after.hardware, prices[1])
        was = cost(old, before.around, before.hardware, prices[0])
        found.append(_entry(world, owner, item, mine, cluster, len(new), now, was))
    return found


def _by_owner(works: dict[WorkloadId, Workload]) -> dict[Owner, list[Workload]]:
    found: dict[Owner, list[Workload]] = {}
    for work in works.values():
        found.setdefault(_owner(work.item), []).append(work)
    return found


def _owner(item: Item) -> Owner:
    return Owner(*item.key)


def _entry(
    world: World, owner: Owner, item: Item, done: Sequence[Done], cluster: str, left: int, now: Cost, was: Cost
) -> Entry:
    pods = [pod for each in done if each.op != "removed" for pod in world.pods_of(each.work)]
    running = [pod for pod in pods if pod.node]
    found = waits(world, pods)
    stopped = sum(each.stopped for each in done)
    op: Op = "removed" if not left else "added" if all(each.op == "added" for each in done) else "changed"
    if all(each.op == "unchanged" for each in done):
        op = "unchanged"
    verdict = Verdict.REMOVED if not left else Verdict.STOPPED if not pods else Verdict.STARTS
    if pods and op in ("changed", "unchanged") and not found and not stopped and not _new(pods):
        verdict = Verdict.GOES_ON
    for wait in found:
        verdict = worst(verdict, wait.verdict)
    surges = [each.surge for each in done if each.surge is not None]
    surge = min(surges, key=lambda each: each.placed - each.wanted) if surges else None
    if surge is not None and surge.placed < surge.wanted and verdict.fine and surge.wanted and not running:
        verdict = Verdict.ROOM
    scheduler = {each.work.template["spec"].get("schedulerName") for each in done}
    return Entry(
        owner=owner,
        cluster=cluster,
        change=op,
        verdict=verdict,
        pods=len(pods),
        placed=len(running),
        places=places(world, running),
        waits=found,
        restarts=stopped if left else 0,
        surge=surge,
        later=any(each.later for each in done),
        cost=now,
        before=was,
        estimated=scheduler != {names.SCHEDULER_NAME} and bool(left),
        item=item,
    )


def _new(pods: Iterable[object]) -> bool:
    return any(getattr(pod, "uid", "").startswith("new:") for pod in pods)


# -- what is told beside ---------------------------------------------------------------------------------------------


def _source(live: ClusterState | None, head: Compilation, cluster: str, known: bool) -> str:
    if live is not None:
        running = sum(1 for pod in live.objects.get("pods", ()) if pod["spec"].get("nodeName"))
        return f"the snapshot of {live.taken}: {len(live.objects.get('nodes', ()))} machines, {running} pods"
    if not known:
        return "what the specs declare"
    count = sum(pool_size(pool) for pool in head.program.pools(cluster))
    return f"what the specs declare: {count} machines, and everything that they run on it"


def _assumed(
    head: Compilation, cluster: str, live: ClusterState | None, entries: Sequence[Entry], after: _Side
) -> Iterable[str]:
    if live is None and after.known:
        largest = [pool for pool in head.program.pools(cluster) if pool.spec.autoscaling is not None]
        if largest:
            yield "pools that grow are at their largest: " + ", ".join(pool.name for pool in largest)
        if reserved(head.program, cluster):
            yield "pods without GPUs have room: machines for them are not declared"
    if any(work.fewest is not None for work in after.works.values()):
        yield "services with an autoscaler have " + (
            "as many pods as run now" if live is not None else "their fewest pods"
        )
    if any(entry.estimated and entry.pods for entry in entries):
        yield "pods of kube-scheduler are placed as avactl's scheduler would, which is an estimate"
    endless = [e for e in entries if e.pods and e.cost.gpus and not e.cost.always and e.cost.hours is None]
    if endless:
        yield f"{len(endless)} job{'s say' if len(endless) > 1 else ' says'} no `timeout`: without hours in the sums"
