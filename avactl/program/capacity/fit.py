"""Capacity of a cluster's pools in pods, and the diagnostics if it is insufficient."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.contracts.names import CAPACITY, SPOT_ONLY
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.hardware.topology import LEVELS, Topology, satisfies
from avactl.program import registry
from avactl.program.capacity.cache_overhead import Taken, reserved_by_tiers
from avactl.program.capacity.machine_hardware import pool_topology
from avactl.program.program import Item, Program, pool_size
from avactl.program.workload import GpuCompute
from avactl.spec.platform.node_pool import NodePoolSpec

Path = tuple[str | int, ...]
MIN_GPU_SHARE = Fraction(1, 100)
"""Smallest part of a GPU, and the step between two."""


class Ask(NamedTuple):
    """Requests of one pod. `cpu` in cores, `memory` in bytes."""

    gpus: int
    model: str | None
    cpu: Fraction
    memory: Fraction
    link: str
    """Link level that the pod's GPUs must have; `any` if it does not matter."""
    rdma: bool
    nics: int = 0
    """RDMA NICs that a pod asks for by number; 0: those of its GPUs."""
    share: Fraction = Fraction(0)
    """Part of one GPU; 0: whole GPUs."""

    @classmethod
    def of(cls, compute: GpuCompute, model: str | None, link: str | None) -> Ask:
        """Build from a `Compute` or a Workspace spec; values left to the team's defaults count as zero."""
        rdma = getattr(compute, "rdma", False)
        return cls(
            gpus=ceil(compute.gpus),
            model=model,
            cpu=parse_quantity(compute.cpu) if compute.cpu is not None else Fraction(0),
            memory=parse_quantity(compute.memory) if compute.memory is not None else Fraction(0),
            link=link or "any",
            rdma=bool(rdma),
            nics=0 if rdma is True else int(rdma),
            share=Fraction(0) if compute.gpus == ceil(compute.gpus) else Fraction(str(compute.gpus)),
        )

    @property
    def amount(self) -> Fraction:
        """GPUs of a pod, or its part of one."""
        return self.share or Fraction(self.gpus)

    def __str__(self) -> str:
        return f"{_format_number(self.amount)} {self.model}" if self.gpus else "their CPU and memory"


class Offer(NamedTuple):
    """The empty machines of one pool."""

    pool: Item[NodePoolSpec]
    machines: int
    topology: Topology
    cpu: Fraction
    """CPU cores of one machine available to pods, after cache overhead."""
    memory: Fraction
    """Memory of one machine available to pods, after cache overhead, in bytes."""
    taken: Taken

    def pods(self, ask: Ask) -> int:
        """Return the number of such pods that fit on one machine."""
        limits = []
        if ask.gpus:
            limits.append(self._gpu_room(ask))
        if ask.cpu:
            limits.append(int(self.cpu / ask.cpu))
        if ask.memory:
            limits.append(int(self.memory / ask.memory))
        if ask.nics and not str(self.pool.spec.rdma_resource).startswith("rdma/"):
            limits.append(self.nics // ask.nics)
        return min(limits, default=1_000_000)

    def _gpu_room(self, ask: Ask) -> int:
        if ask.share:
            return self.topology.count * int(1 / ask.share)
        return self.topology.room(ask.gpus, ask.link)

    @property
    def nics(self) -> int:
        """RDMA NICs of one machine."""
        return sum(nic.rdma for nic in self.topology.machine.nics)

    def limit(self, ask: Ask) -> str:
        """Return the resources besides GPUs that limit such pods on a machine: `CPU`, `memory`."""
        pods = self.pods(ask)
        if ask.gpus and self._gpu_room(ask) == pods:
            return ""
        return "CPU" if ask.cpu and int(self.cpu / ask.cpu) == pods else "memory"

    def __str__(self) -> str:
        machine = self.topology.machine
        count = f"{self.machines} machine{'' if self.machines == 1 else 's'}"
        gpus = f"{machine.gpus} {machine.gpu}" if machine.gpus else f"{machine.cpu:g} CPU cores"
        return f"pool {self.pool.name}: {count} with {gpus}"

    @property
    def cache(self) -> str:
        """Describe the cache tiers' share of each machine; empty if there is none."""
        if not self.taken.by:
            return ""
        tiers = f"cache tier{'' if len(self.taken.by) == 1 else 's'} {' and '.join(self.taken.by)}"
        reserve = "reserves" if len(self.taken.by) == 1 else "reserve"
        size = format_quantity(self.taken.memory)
        return f"{tiers} {reserve} {_format_number(self.taken.cpu)} CPU cores and {size} of memory on each machine"

    @property
    def size_key(self) -> str:
        """Key of the pool's spec that sets its number of machines."""
        spec = self.pool.spec
        return "nodes" if spec.nodes is not None else "autoscaling" if spec.autoscaling is not None else "count"


def unknown_capacity(program: Program) -> bool:
    """Return True if pools or machine types have errors, so that capacity cannot be checked."""

    def find() -> bool:
        return (
            program.lacks_machines
            or not all(pool_size(pool) for pool in program.pools())
            or any(_has_problems(machine, program) for machine in program.machine_types())
        )

    return bool(program.memo("unknown capacity", find))


def _has_problems(item: Item, program: Program) -> bool:
    return any(True for _ in registry.get_kind(item.kind).check(item, program))


def machine_offers(
    program: Program, cluster: str, model: str | None, pool: str | None, tolerates: Sequence[str] | None = None
) -> list[Offer]:
    """Machines of a cluster where pods that request this GPU model and pool may run; see `Program.candidate_pools`."""

    def find() -> list[Offer]:
        return [_make_offer(program, item) for item in program.candidate_pools(cluster, model, pool, tolerates)]

    return program.memo(("offers", cluster, model, pool, None if tolerates is None else tuple(tolerates)), find)


def offers_for(program: Program, cluster: str, compute: GpuCompute, model: str | None) -> list[Offer]:
    """Return the machines of a cluster where pods of a role may run; `model` is their GPU model."""
    if not compute.gpus and compute.pool is None:
        # Such pods have no tolerations but those of their pod settings; see `PodCompute`.
        own = getattr(compute, "compute", compute).tolerates
        keys = tuple(sorted({*compute.tolerates} - {*own, CAPACITY, SPOT_ONLY}))
        return program.memo(
            ("offers without gpus", cluster, keys),
            lambda: [_make_offer(program, pool) for pool in program.unreserved_pools(cluster, keys)],
        )
    return machine_offers(program, cluster, model, compute.pool, compute.tolerates)


def _make_offer(program: Program, pool: Item[NodePoolSpec]) -> Offer:
    machine = program.machine(pool)
    cache = reserved_by_tiers(program, pool)
    cpu = max(Fraction(0), parse_quantity(machine.cpu) - cache.cpu)
    memory = max(Fraction(0), parse_quantity(machine.memory) - cache.memory)
    return Offer(pool, pool_size(pool), pool_topology(program, pool), cpu, memory, cache)


def total_gpus(program: Program, cluster: str, model: str) -> int:
    """GPUs of a model in all pools of a cluster, at their maximum size."""
    return sum(offer.machines * offer.topology.count for offer in machine_offers(program, cluster, model, None))


def count_fitting_pods(ask: Ask, found: list[Offer]) -> int:
    """Return the number of such pods that the empty machines hold at the same time."""
    return sum(offer.machines * offer.pods(ask) for offer in found)


# -- diagnostics -------------------------------------------------------------------------------------------------------


def _place_text(item: Item, found: list[Offer]) -> str:
    return f"pool {found[0].pool.name}" if len(found) == 1 else f"cluster {item.cluster}"


def pool_notes(found: list[Offer], most: int = 3, sizes: bool = False) -> tuple[Note, ...]:
    """Notes that point at the first pools considered and their capacity; `sizes`: include CPU and memory."""

    def words(offer: Offer) -> str:
        return f"{offer}; {offer.cache}" if sizes and offer.cache else str(offer)

    return tuple(Note(offer.pool.span("spec", offer.size_key), words(offer)) for offer in found[:most])


def pod_problem(item: Item, ask: Ask, found: list[Offer], path: Path) -> Diagnostic | None:
    """Return the diagnostic for a pod that requests more than any machine has."""
    where = _place_text(item, found)
    largest = max(offer.topology.count for offer in found)
    if ask.gpus > largest:
        return Diagnostic(
            "pod-never-fits",
            f"a pod requests {ask.gpus} {ask.model}, but no machine of {where} has more than {largest}",
            item.span(*path, "gpus"),
            hint=f"write `gpus: {largest}` or fewer, and more `replicas`",
            notes=pool_notes(found),
        )
    nics = max((offer.nics for offer in found), default=0)
    if ask.nics > nics:
        return Diagnostic(
            "rdma-unavailable",
            f"a pod requests {ask.nics} RDMA NICs, but machines of {where} have {nics}",
            item.span(*path, "rdma"),
            hint=f"write `rdma: {nics}` or less, or `rdma: true`",
            notes=pool_notes(found),
        )
    linked = [offer for offer in found if offer.topology.room(ask.gpus, ask.link)] if ask.gpus else found
    if not linked:
        return _link_problem(item, ask, [offer for offer in found if offer.topology.count >= ask.gpus], path)
    if any(offer.pods(ask) for offer in linked):
        return None
    cpu, memory = max(offer.cpu for offer in linked), max(offer.memory for offer in linked)
    machines = f"machines of {_place_text(item, linked)}" + (
        f" with {ask.model}" if ask.model and len(linked) > 1 else ""
    )
    if ask.cpu > cpu:
        key = "cpu"
        message = (
            f"a pod requests {_format_number(ask.cpu)} CPU cores, but {machines} offer at most {_format_number(cpu)}"
        )
        hint = f"write `cpu: {_format_number(cpu)}` or less"
    elif ask.memory > memory:
        key, size = "memory", format_quantity(memory)
        message = f"a pod requests {format_quantity(ask.memory)} of memory, but {machines} offer at most {size}"
        hint = f"write `memory: {size}` or less"
    else:
        enough = next(offer for offer in linked if offer.cpu >= ask.cpu)
        key, size = "memory", format_quantity(enough.memory)
        both = f"{_format_number(ask.cpu)} CPU cores and {format_quantity(ask.memory)} of memory"
        message = f"a pod requests {both}, but no machine of cluster {item.cluster} has both"
        hint = f"machines of pool {enough.pool.name} have enough cores: write `memory: {size}` or less"
    return Diagnostic("pod-never-fits", message, item.span(*path, key), hint=hint, notes=pool_notes(linked, sizes=True))


def _format_number(value: Fraction) -> str:
    return f"{float(value):g}"


def _link_problem(item: Item, ask: Ask, found: list[Offer], path: Path) -> Diagnostic:
    """Return the diagnostic for a machine that lacks enough GPUs with the required link."""
    counts = {offer.topology.count for offer in found}
    reachable = max(
        (count for offer in found for count in range(2, max(counts) + 1) if offer.topology.room(count, ask.link)),
        default=0,
    )
    levels = {offer.topology.reachable_level(ask.gpus) for offer in found}
    best = min((level for level in levels if level is not None), key=LEVELS.index)
    if reachable:
        hint = (
            f"at most {reachable} GPUs have it: write `gpus: {reachable}`, `link: {best}`, or `linkPolicy: preferred`"
        )
    else:
        hint = f"write `link: {best}`, or `linkPolicy: preferred`"
    return Diagnostic(
        "link-unreachable",
        f"no machine of {_place_text(item, found)} has {ask.gpus} {ask.model} with link `{ask.link}`; "
        f"`{best}`{' across sockets' if satisfies(best, ask.link) else ''} is the best",
        item.span(*path, "link") if item.doc.get(*path, "link") else item.span(*path, "gpus"),
        hint=hint,
        notes=pool_notes(found),
    )


def _replicas_path(item: Item, path: Path, replicas: int) -> Path | None:
    """Path of the pod count: the key that has exactly this value."""
    for candidate in ((*path, "min"), (*path, "replicas"), ("spec", "replicas", "min"), ("spec", "replicas")):
        if item.doc.get(*candidate) == replicas:
            return candidate
    return None


def gang_problem(item: Item, ask: Ask, found: list[Offer], path: Path, replicas: int) -> Diagnostic | None:
    """Return the diagnostic for a gang that all machines together cannot hold."""
    most = count_fitting_pods(ask, found)
    if replicas <= most:
        return None
    at = _replicas_path(item, path, replicas)
    where = _place_text(item, found)
    limits = {offer.limit(ask) for offer in found if offer.pods(ask)}
    why = ""
    if ask.gpus and "" not in limits:
        one = next(offer for offer in found if offer.pods(ask))
        per = one.pods(ask)
        why = f", limited by {' and '.join(sorted(limits))}: {per} per machine of {one.topology.count} GPUs"
    pods = f"{replicas} pods" if not ask.gpus else f"{replicas} pods of {ask}"
    hint = f"at most {most} fit at once: write `{at[-1]}: {most}` or less" if at else f"at most {most} fit at once"
    pools = {offer.pool.name for offer in found}
    hint += f", or add machines to pool {found[0].pool.name}" if len(pools) == 1 else ", or add machines to a pool"
    return Diagnostic(
        "gang-never-fits",
        f"{pods} cannot run at the same time: {where} fits {most}{why}",
        item.span(*(at or (*path, "gpus"))),
        label=f"{replicas} × {_format_number(ask.amount)} = {_format_number(replicas * ask.amount)} {ask.model}"
        if ask.gpus
        else "",
        hint=hint,
        notes=pool_notes(found, sizes=bool(why)),
    )


def allocation_problem(item: Item, ask: Ask, found: list[Offer], path: Path) -> Diagnostic | None:
    """Return the diagnostic for pools that allocate GPUs or NICs in different ways: a pod spec supports only one."""
    if not ask.gpus:
        return None
    specs = [offer.pool.spec for offer in found]
    if ask.rdma and not any(spec.rdma_resource for spec in specs):
        return Diagnostic(
            "rdma-unavailable",
            f"{_place_text(item, found)} offers no RDMA NICs to pods with {ask.model}",
            item.span(*path, "rdma"),
            hint="add `rdmaResource: …` (the extended resource of the RDMA device plugin) to the pool",
            notes=pool_notes(found),
        )
    ways = {
        (
            spec.allocation,
            spec.resource_name if spec.allocation == "devicePlugin" else "",
            ask.rdma and spec.rdma_resource,
        )
        for spec in specs
    }
    if len(ways) == 1:
        return None
    notes = tuple(
        Note(offer.pool.span("spec", "allocation"), f"pool {offer.pool.name}: {_way_to_fit(offer.pool.spec, ask)}")
        for offer in found
    )
    return Diagnostic(
        "mixed-allocation",
        f"the {ask.model} pools of cluster {item.cluster} allocate devices in different ways",
        item.span(*path, "gpus"),
        hint=f"choose one: add `pool: {found[0].pool.name}`",
        notes=notes,
    )


def _way_to_fit(spec: NodePoolSpec, ask: Ask) -> str:
    way = "ResourceClaims (`dra`)" if spec.allocation == "dra" else f"`{spec.resource_name}`"
    return f"{way}, RDMA by {spec.rdma_resource or 'nothing'}" if ask.rdma else way


def device_choice_problem(item: Item, program: Program, ask: Ask, found: list[Offer], path: Path) -> Diagnostic | None:
    """Return the diagnostic for a part of a GPU, or a required link that only a choice of GPUs gives, where the choice
    may not hold."""
    if ask.share:
        return _share_problem(item, program, ask, found, path)
    if ask.link == "any" or ask.gpus < 2 or not program.cluster_spec(item.cluster).daemons.scheduler:
        return None
    unsure = [
        offer
        for offer in found
        if not offer.pool.spec.honours_scheduler and not offer.topology.is_certain(ask.gpus, ask.link)
    ]
    if not unsure:
        return None
    counts = sorted({offer.topology.count for offer in unsure})
    where = item.span(*path, "link") if item.doc.get(*path, "link") else item.span(*path, "gpus")
    return device_choice(
        item,
        f"link `{ask.link}` between {ask.gpus} of {' or '.join(map(str, counts))} GPUs is required",
        where,
        unsure[0].pool,
        f"write `linkPolicy: preferred`, or request all {counts[0]} GPUs of a machine",
    )


def _share_problem(item: Item, program: Program, ask: Ask, found: list[Offer], path: Path) -> Diagnostic | None:
    """Return the diagnostic for a part of a GPU that nobody keeps track of."""
    cluster = program.cluster(item.cluster)
    key = ".".join(map(str, (*path, "gpus")))
    if ask.share % MIN_GPU_SHARE:
        return Diagnostic(
            "invalid-value",
            f"{key}: fractions are multiples of 0.01, at least 0.01; got {_format_number(ask.share)}",
            item.span(*path, "gpus"),
            hint=f"write {_format_number(max(MIN_GPU_SHARE, round(ask.share / MIN_GPU_SHARE) * MIN_GPU_SHARE))}",
        )
    if not cluster.spec.daemons.scheduler:
        where = ("spec", "daemons", "scheduler") if "daemons" in cluster.spec.model_fields_set else ("spec",)
        return Diagnostic(
            "shared-gpu-needs-scheduler",
            f"{key}: fractional GPUs require avactl's scheduler, which is disabled on Cluster {cluster.name}",
            item.span(*path, "gpus"),
            hint=f"add `daemons: {{scheduler: true}}` to Cluster {cluster.name}, or request a whole GPU",
            notes=(Note(cluster.span(*where, key=True), "the cluster's daemons"),),
        )
    pools = [offer.pool for offer in found]
    if all(pool.spec.allocation == "dra" for pool in pools):
        return Diagnostic(
            "invalid-value",
            f"{key}: pool {pools[0].name} allocates whole GPUs only (`allocation: dra`)",
            item.span(*path, "gpus"),
            hint="request a whole GPU, or use a `pool` with `allocation: devicePlugin`",
            notes=(Note(pools[0].span("spec", "allocation"), "set here"),),
        )
    unsure = [pool for pool in pools if not pool.spec.honours_scheduler]
    if not unsure:
        return None
    promise = f"{key}: {_format_number(ask.share)} of a GPU is a share that avactl's scheduler keeps track of"
    return device_choice(item, promise, item.span(*path, "gpus"), unsure[0], "request a whole GPU", dra=False)


def device_choice(
    item: Item, promise: str, span: Span, pool: Item[NodePoolSpec], instead: str, dra: bool = True
) -> Diagnostic:
    """Return the diagnostic for a promise that holds only if pods get the GPUs that the scheduler chose.

    `dra`: DRA keeps it, too.
    """
    remedies = ["set `allocation: dra` in the pool"] if dra else []
    if pool.spec.kubelet_chooses:
        why, key = "the kubelet chooses the GPUs of pods", "devicesChosenBy"
        if pool.spec.devices_chosen_by is None:
            key = "resourceName"
        note = Note(pool.span("spec", key, key=True), "the scheduler's choice has no effect here")
    else:
        why = "it is not known who chooses the GPUs of pods"
        remedies.append(
            "set `devicesChosenBy: scheduler` if its nodes honour that choice, which `avactl doctor` checks"
        )
        note = Note(pool.span("spec", key=True), "`devicesChosenBy` is not set")
    return Diagnostic(
        "device-choice",
        f"{promise}, but {why} in pool {pool.name}",
        span,
        hint=", or ".join([*remedies, instead]),
        notes=(note,),
    )


def link_warning(item: Item, program: Program, ask: Ask, found: list[Offer], path: Path) -> Diagnostic | None:
    """Return the warning for a required link on a cluster whose scheduler ignores GPU links."""
    if ask.link == "any" or ask.gpus < 2 or program.cluster_spec(item.cluster).daemons.scheduler:
        return None
    for offer in found:
        if not offer.topology.is_certain(ask.gpus, ask.link):
            level = offer.topology.certain_level(ask.gpus)
            return Diagnostic(
                "link-not-enforced",
                f"link `{ask.link}` is required, but the scheduler of cluster {item.cluster} ignores GPU links",
                item.span(*path, "link"),
                severity="warning",
                hint="add `daemons: {scheduler: true}` to the Cluster, or request all GPUs of a machine",
                notes=(
                    Note(offer.pool.span("spec", "machineType"), f"any {ask.gpus} GPUs are only guaranteed `{level}`"),
                ),
            )
    return None
