"""Checks of quotas, alone and together; for the demand of specs see `demand`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.quota.demand import usage_problems
from avactl.kinds.quota.limits import MIN_QUOTA_BYTES, entry_span, gpu_limits, in_file_order, quota_of
from avactl.program.capacity import fit
from avactl.program.capacity.capacity import unknown_model
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.quota import QuotaSpec


def check(item: Item[QuotaSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one quota, and of its team's demand."""
    yield from check_duplicates(item, ("spec", "gpus"), (entry.gpu for entry in item.spec.gpus), "GPU", key="gpu")
    yield from _check_amounts(item)
    yield from _check_member_limits(item, program)
    if not fit.unknown_capacity(program):
        yield from _check_models(item, program)
        yield from _check_borrowing(item, program)
        yield from usage_problems(program, item)
    first = quota_of(program, item.team, item.cluster)
    if first is not None and first is not item:
        yield Diagnostic(
            "duplicate-quota",
            f"team {item.team} has two quotas on cluster {item.cluster}: {first.name} and {item.name}",
            item.span("metadata", "name"),
            hint="merge them into one spec",
            notes=(Note(first.span("metadata", "name"), "other quota"),),
        )
    if item.resource.metadata.namespace is not None:
        yield Diagnostic(
            "unknown-key",
            "a Quota applies to all namespaces of its team and has no `metadata.namespace`",
            item.span("metadata", "namespace", key=True),
            hint="remove the key",
        )


def _check_amounts(item: Item[QuotaSpec]) -> Iterator[Diagnostic]:
    """Yield amounts that are probably mistakes."""
    spec = item.spec
    for key, name in (("cpu", "cpu"), ("podMaxCpu", "pod_max_cpu")):
        value = getattr(spec, name)
        if value is not None and parse_quantity(value) == 0:
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}: 0 CPU cores allow no pods",
                item.span("spec", key),
                hint="write a number above 0, or omit the key for no limit",
            )
    for key, name in (("memory", "memory"), ("storage", "storage"), ("podMaxMemory", "pod_max_memory")):
        value = getattr(spec, name)
        if value is not None and parse_quantity(value) < MIN_QUOTA_BYTES:
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}: {format_quantity(parse_quantity(value))} bytes is too small for any pod",
                item.span("spec", key),
                hint=f"write `{value.rstrip('kKMGTPEim')}Gi`, or omit the key for no limit",
            )
    for key, most, whole, limit, least in (
        ("podMaxCpu", spec.pod_max_cpu, "cpu", spec.cpu, Fraction(1, 1000)),
        ("podMaxMemory", spec.pod_max_memory, "memory", spec.memory, 2**20),
    ):
        if most is not None and limit is not None and parse_quantity(most) > parse_quantity(limit) >= least:
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}: the limit of {most} per container exceeds the total `{whole}: {limit}`",
                item.span("spec", key),
                hint=f"write {limit} or less, or raise `{whole}`",
                notes=(Note(item.span("spec", whole), f"`{whole}`"),),
            )


def _check_member_limits(item: Item[QuotaSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield limits of members that nothing enforces, or that the quota never reaches."""
    cluster, limits = program.cluster(item.cluster), gpu_limits(item.spec)
    for index, entry in enumerate(item.spec.gpus):
        if entry.per_member is None:
            continue
        where = item.span("spec", "gpus", index, "perMember")
        if not cluster.spec.daemons.scheduler:
            yield Diagnostic(
                "missing-daemon",
                f"`perMember` needs the daemon `scheduler`, which cluster {cluster.name} does not run",
                where,
                hint=f"write `daemons: {{scheduler: true}}` in Cluster {cluster.name}",
                notes=(Note(cluster.span("metadata", "name"), "the cluster"),),
            )
        elif entry.per_member >= limits[entry.gpu].total:
            yield Diagnostic(
                "without-effect",
                f"spec.gpus[{index}].perMember: the whole team may use {limits[entry.gpu]}",
                where,
                severity="warning",
                hint="write less, or remove the key",
            )


def _check_models(item: Item[QuotaSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield GPU models that the cluster does not have, and shapes that exceed its machines."""
    cluster = item.cluster
    known = program.gpu_models(cluster)
    for index, entry in enumerate(item.spec.gpus):
        if entry.gpu not in known:
            yield unknown_model(item, program, cluster, entry.gpu, ("spec", "gpus", index, "gpu"))
    for index, shape in enumerate(item.spec.shapes):
        if shape.gpu not in known:
            yield unknown_model(item, program, cluster, shape.gpu, ("spec", "shapes", index, "gpu"))
        elif (problem := _shape_problem(item, program, index)) is not None:
            yield problem


def _shape_problem(item: Item[QuotaSpec], program: Program, index: int) -> Diagnostic | None:
    """Yield shapes with larger machines than the cluster has, or more of them."""
    shape, cluster = item.spec.shapes[index], item.cluster
    path = ("spec", "shapes", index)
    found = fit.machine_offers(program, cluster, shape.gpu, None)
    largest = max(offer.topology.count for offer in found)
    if shape.gpus > largest:
        return Diagnostic(
            "quota-over-capacity",
            f"no machine of cluster {cluster} has {shape.gpus} {shape.gpu}; the largest has {largest}",
            item.span(*path, "gpus"),
            hint=f"write `gpus: {largest}` and more `machines`",
            notes=fit.pool_notes(found),
        )
    most = sum(offer.machines * offer.topology.room(shape.gpus) for offer in found)
    if shape.machines > most:
        return Diagnostic(
            "quota-over-capacity",
            f"cluster {cluster} can hold {most} shapes of {shape.gpus} {shape.gpu}, not {shape.machines}",
            item.span(*path, "machines"),
            hint=f"write `machines: {most}` or less",
            notes=fit.pool_notes(found),
        )
    return None


def _check_borrowing(item: Item[QuotaSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield `borrow` beyond the cluster's GPUs, which can never be reached."""
    for index, entry in enumerate(item.spec.gpus):
        has = fit.total_gpus(program, item.cluster, entry.gpu)
        most = max(0, has - entry.guaranteed)
        if entry.borrow > most and entry.gpu in program.gpu_models(item.cluster):
            yield Diagnostic(
                "quota-over-capacity",
                f"team {item.team} may borrow {entry.borrow} {entry.gpu}, but cluster {item.cluster} has only {has}",
                item.span("spec", "gpus", index, "borrow"),
                severity="warning",
                hint=f"at most {most} can be borrowed beyond the {entry.guaranteed} guaranteed",
            )


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Yield guarantees that exceed the clusters' capacity."""
    if fit.unknown_capacity(program):
        return
    by_cluster: dict[str, list[Item[QuotaSpec]]] = {}
    for item in in_file_order(program.quotas()):
        by_cluster.setdefault(item.cluster, []).append(item)
    for cluster, quotas in sorted(by_cluster.items()):
        for model in program.gpu_models(cluster):
            yield from _check_guarantees(program, cluster, model, quotas)


_MAX_NOTES = 6


def _check_guarantees(
    program: Program, cluster: str, model: str, quotas: list[Item[QuotaSpec]]
) -> Iterator[Diagnostic]:
    """Return one diagnostic per cluster and model, at the last quota with a guarantee; the others become notes."""
    given = [(item, limit.guaranteed) for item in quotas if (limit := gpu_limits(item.spec).get(model)) is not None]
    given = [(item, count) for item, count in given if count]
    total, has = sum(count for _, count in given), fit.total_gpus(program, cluster, model)
    if total <= has or any(
        shape.gpu == model and _shape_problem(item, program, index) is not None
        for item, _ in given
        for index, shape in enumerate(item.spec.shapes)
    ):
        return
    last, own = given[-1]
    others = given[:-1]
    notes = [
        Note(entry_span(item, model, "guaranteed"), f"team {item.team}: {count}") for item, count in others[:_MAX_NOTES]
    ]
    if len(others) > _MAX_NOTES:
        rest = sum(count for _, count in others[_MAX_NOTES:])
        notes.append(Note(others[_MAX_NOTES][0].span("spec", key=True), f"{len(others) - _MAX_NOTES} more: {rest}"))
    who = "teams are" if others else f"team {last.team} is"
    yield Diagnostic(
        "quota-over-capacity",
        f"{who} guaranteed {total} {model} on cluster {cluster}, which has only {has}",
        entry_span(last, model, "guaranteed"),
        label=f"{own} of {total}" if others else "",
        hint=f"lower `guaranteed` by {total - has} in total; use `borrow` for GPUs beyond the guarantee",
        notes=tuple(notes),
    )
