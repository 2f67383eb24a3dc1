"""Capacity of pools for all roles of a gang together: each may fit by itself, and not all at once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from avactl.base.quantity import format_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.program.capacity import fit
from avactl.program.capacity.capacity import gpu_model
from avactl.program.program import Item, Program
from avactl.program.workload import WorkloadRole


class _Demand(NamedTuple):
    role: WorkloadRole
    pods: int
    amounts: dict[str, Fraction]
    """Of one pod, by resource."""
    pools: frozenset[str]


def together_problem(item: Item, program: Program, roles: Sequence[WorkloadRole]) -> Diagnostic | None:
    """Return the diagnostic for roles that each fit, but not at the same time; None if they may fit.

    Compares sums of CPU, memory and GPUs with the empty machines of the pools where the pods may run. Roles without
    GPUs and `pool` may run on machines that are not declared, and do not count.
    """
    if fit.unknown_capacity(program):
        return None
    offers: dict[str, fit.Offer] = {}
    demands: list[_Demand] = []
    for role in roles:
        compute = role.compute
        if not role.least or not (compute.gpus or compute.pool):
            continue
        ask = fit.Ask.of(compute, gpu_model(program, item.cluster, compute), None)
        found = fit.machine_offers(program, item.cluster, ask.model, compute.pool, compute.tolerates)
        offers |= {offer.pool.name: offer for offer in found}
        amounts = {"gpus": ask.amount, "memory": ask.memory, "cpu": ask.cpu}
        demands.append(_Demand(role, role.least, amounts, frozenset(offer.pool.name for offer in found)))
    if len(demands) < 2:
        return None
    for pools in sorted({*(each.pools for each in demands), frozenset(offers)}, key=lambda names: sorted(names)):
        inside = [each for each in demands if each.pools <= pools]
        machines = [offers[name] for name in sorted(pools)]
        for resource in ("gpus", "memory", "cpu"):
            problem = _make_problem(item, inside, machines, resource)
            if problem is not None:
                return problem
    return None


def _total_capacity(machines: list[fit.Offer], resource: str) -> Fraction:
    def each(offer: fit.Offer) -> Fraction:
        if resource == "gpus":
            return Fraction(offer.topology.count)
        return offer.cpu if resource == "cpu" else offer.memory

    return sum((offer.machines * each(offer) for offer in machines), Fraction(0))


def _make_problem(item: Item, demands: list[_Demand], machines: list[fit.Offer], resource: str) -> Diagnostic | None:
    most = _total_capacity(machines, resource)
    asking = [each for each in demands if each.amounts[resource]]
    sums = list(accumulate(each.pods * each.amounts[resource] for each in asking))
    if len(asking) < 2 or sums[-1] <= most:
        return None
    # The first role that exceeds the capacity beside those before it.
    at = next(index for index, value in enumerate(sums) if value > most)
    beside = sums[at - 1] if at else Fraction(0)
    role, one = asking[at].role, asking[at].amounts[resource]
    rest = int((most - beside) / one)
    path = role.path
    given = item.doc.get(*path, "replicas") is not None
    where = f"pool {machines[0].pool.name}" if len(machines) == 1 else f"the pools of cluster {item.cluster}"
    name = ".".join(str(step) for step in path[1:])
    hint = f"at most {rest} of `{name}` fit beside the others" if rest else f"no pod of `{name}` fits beside the others"
    return Diagnostic(
        "gang-never-fits",
        f"the roles of {item} request {_format_amount(sums[-1], resource)} together; "
        f"{where} has {_format_amount(most, resource)}",
        item.span(*path, "replicas" if given else resource),
        label=f"{asking[at].pods} × {_format_number(one, resource)}, "
        f"and {_format_number(beside, resource)} of the roles before",
        hint=f"{hint}: {'reduce `replicas`' if rest else 'use another `pool`'}, or add machines",
        notes=tuple(Note(each.pool.span("spec", each.size_key), str(each)) for each in machines[:3]),
    )


def _format_number(amount: Fraction, resource: str) -> str:
    return format_quantity(amount) if resource == "memory" else f"{float(amount):g}"


def _format_amount(amount: Fraction, resource: str) -> str:
    noun = {"gpus": "GPUs", "memory": "memory", "cpu": "CPU cores"}[resource]
    return (
        f"{_format_number(amount, resource)} {noun}"
        if resource != "memory"
        else f"{_format_number(amount, resource)} of memory"
    )
