"""Rules that quotas must keep, alone and together; what specs ask of them is in `usage`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from avactl.diagnostics import Diagnostic, Note
from avactl.kinds.feasibility import fit
from avactl.kinds.feasibility.capacity import unknown_model
from avactl.kinds.fields.unique_entries import duplicates
from avactl.kinds.program import Item, Program
from avactl.kinds.quota.demand import usage_problems
from avactl.kinds.quota.limits import entry_span, gpu_limits, in_file_order, quota_of
from avactl.quantity import format_quantity, quantity


def check(item: Item, program: Program) -> Iterator[Diagnostic]:
    """The problems of one quota, and of what its team asks for."""
    yield from duplicates(item, ("spec", "gpus"), (entry.gpu for entry in item.spec.gpus), "GPU", key="gpu")
    yield from _amounts(item)
    if not fit.unknown_capacity(program):
        yield from _models(item, program)
        yield from usage_problems(program, item)
    first = quota_of(program, item.team, item.cluster)
    if first is not None and first is not item:
        yield Diagnostic(
            "duplicate-quota",
            f"team {item.team} has two quotas on cluster {item.cluster}: {first.name} and {item.name}",
            item.span("metadata", "name"),
            hint="put both into one spec",
            notes=(Note(first.span("metadata", "name"), "the other one"),),
        )
    if item.resource.metadata.namespace is not None:
        yield Diagnostic(
            "unknown-key",
            "a Quota is for all namespaces of its team, and has no `metadata.namespace`",
            item.span("metadata", "namespace", key=True),
            hint="remove the key",
        )


def _amounts(item: Item) -> Iterator[Diagnostic]:
    """Amounts that can only be slips."""
    spec = item.spec
    for key, name in (("cpu", "cpu"), ("podMaxCpu", "pod_max_cpu")):
        value = getattr(spec, name)
        if value is not None and quantity(value) == 0:
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}: no pod runs with 0 CPU cores",
                item.span("spec", key),
                hint="write a number above 0; leave the key out for no limit",
            )
    for key, name in (("memory", "memory"), ("storage", "storage"), ("podMaxMemory", "pod_max_memory")):
        value = getattr(spec, name)
        if value is not None and quantity(value) < 2**20:
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}: {format_quantity(quantity(value))} bytes is too little for anything",
                item.span("spec", key),
                hint=f"write `{value.rstrip('kKMGTPEim')}Gi`; leave the key out for no limit",
            )
    for key, most, whole, limit, least in (
        ("podMaxCpu", spec.pod_max_cpu, "cpu", spec.cpu, Fraction(1, 1000)),
        ("podMaxMemory", spec.pod_max_memory, "memory", spec.memory, 2**20),
    ):
        if most is not None and limit is not None and quantity(most) > quantity(limit) >= least:
            yield Diagnostic(
                "invalid-value",
                f"spec.{key}: {most} for one container is more than `{whole}: {limit}` for all",
                item.span("spec", key),
                hint=f"write {limit} or less, or raise `{whole}`",
                notes=(Note(item.span("spec", whole), f"`{whole}`"),),
            )


def _models(item: Item, program: Program) -> Iterator[Diagnostic]:
    """GPU models that the cluster does not have, and machines that are larger or more than it has."""
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


def _shape_problem(item: Item, program: Program, index: int) -> Diagnostic | None:
    """Whole machines that are larger than the cluster's, or more of them than it has."""
    shape, cluster = item.spec.shapes[index], item.cluster
    path = ("spec", "shapes", index)
    found = fit.offers(program, cluster, shape.gpu, None)
    largest = max(offer.topology.count for offer in found)
    if shape.gpus > largest:
        return Diagnostic(
            "quota-over-capacity",
            f"no machine of cluster {cluster} has {shape.gpus} {shape.gpu}; the largest has {largest}",
            item.span(*path, "gpus"),
            hint=f"write `gpus: {largest}`, and more `machines`",
            notes=fit.pool_notes(found),
        )
    most = sum(offer.machines * offer.topology.room(shape.gpus) for offer in found)
    if shape.machines > most:
        return Diagnostic(
            "quota-over-capacity",
            f"cluster {cluster} has {shape.gpus} {shape.gpu} together {most} times, not {shape.machines} times",
            item.span(*path, "machines"),
            hint=f"write `machines: {most}` or less",
            notes=fit.pool_notes(found),
        )
    return None


def check_all(program: Program) -> Iterator[Diagnostic]:
    """Guarantees against what the clusters have."""
    if fit.unknown_capacity(program):
        return
    by_cluster: dict[str, list[Item]] = {}
    for item in in_file_order(program.of("Quota")):
        by_cluster.setdefault(item.cluster, []).append(item)
    for cluster, quotas in sorted(by_cluster.items()):
        for model in program.gpu_models(cluster):
            yield from _guarantees(program, cluster, model, quotas)


_MOST_NOTES = 6


def _guarantees(program: Program, cluster: str, model: str, quotas: list[Item]) -> Iterator[Diagnostic]:
    """One diagnostic a cluster and model, at the last quota that guarantees any; the others are notes."""
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
        Note(entry_span(item, model, "guaranteed"), f"team {item.team}: {count}")
        for item, count in others[:_MOST_NOTES]
    ]
    if len(others) > _MOST_NOTES:
        rest = sum(count for _, count in others[_MOST_NOTES:])
        notes.append(Note(others[_MOST_NOTES][0].span("spec", key=True), f"{len(others) - _MOST_NOTES} more: {rest}"))
    who = "teams are" if others else f"team {last.team} is"
    yield Diagnostic(
        "quota-over-capacity",
        f"{who} guaranteed {total} {model} on cluster {cluster}, which has {has}",
        entry_span(last, model, "guaranteed"),
        label=f"{own} of {total}" if others else "",
        hint=f"lower `guaranteed` by {total - has} in all; what teams may have beyond it is `borrow`",
        notes=tuple(notes),
    )
