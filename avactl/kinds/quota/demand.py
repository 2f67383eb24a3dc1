"""Demand of a team's specs, compared with its quota.

A training job or workspace that exceeds the quota now can wait. An error is only a spec that can never run: one that,
together with the team's services, which run permanently, requests more than the quota allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from avactl.diagnostics import Diagnostic, Note, Span
from avactl.kinds import registry
from avactl.kinds.feasibility import fit
from avactl.kinds.feasibility.capacity import gpu_model, roles
from avactl.kinds.program import Item, Program
from avactl.kinds.quota.limits import Limit, entry_span, gpu_limits, in_file_order, quota_of
from avactl.kinds.workload import Lifecycle, Role, WorkloadHooks
from avactl.quantity import format_quantity, quantity

Milli = int
"""An amount of GPUs, CPU cores or bytes, in thousandths: exact for every quantity, and fast to add."""


@lru_cache(maxsize=4096)
def milli(value: str | int | float) -> Milli:
    """Convert a quantity to thousandths, rounded up."""
    return ceil(quantity(value) * 1000)


Ask = tuple[tuple[str | int, ...], int, tuple[tuple[str, str, Milli], ...]]
"""Demand of one role: its path, its pods, and the amount per pod of each resource (key, GPU model)."""


class Part(NamedTuple):
    """Demand of one role of a spec for one resource."""

    path: tuple[str | int, ...]
    pods: int
    each: Milli

    @property
    def total(self) -> Milli:
        return self.pods * self.each


class Use(NamedTuple):
    """Demand of one spec for one resource, at its minimum size."""

    item: Item
    parts: tuple[Part, ...]
    total: Milli
    lifecycle: Lifecycle | None

    @property
    def main(self) -> Part:
        """The role with the largest demand."""
        return max(self.parts, key=lambda part: part.total)


class Resource(NamedTuple):
    """A resource that a quota limits: GPUs of a model, CPU cores, or memory."""

    key: str
    """Key of a role's compute: `gpus`, `cpu`, `memory`."""
    model: str = ""

    def number(self, amount: Milli) -> str:
        """Format an amount without the resource name."""
        return format_quantity(Fraction(amount, 1000)) if self.key == "memory" else f"{amount / 1000:g}"

    def show(self, amount: Milli) -> str:
        """Format an amount with the resource name."""
        return f"{self.number(amount)} {self.model or ('memory' if self.key == 'memory' else 'CPU cores')}"


def usage_problems(program: Program, quota: Item) -> Iterator[Diagnostic]:
    """Yield the problems of the specs under one quota. They depend on that team's specs and quota only."""

    def by_team() -> dict[tuple[str | None, str], list[Item]]:
        found: dict[tuple[str | None, str], list[Item]] = {}
        for kind in registry.workload_kinds():
            for item in program.of(kind):
                found.setdefault((item.team, item.cluster), []).append(item)
        return found

    if quota_of(program, quota.team, quota.cluster) is quota:
        running: dict[tuple[str | None, str], list[Item]] = program.memo("running specs", by_team)
        yield from _team(program, quota, in_file_order(running.get((quota.team, quota.cluster), [])))


def _team(program: Program, quota: Item, items: list[Item]) -> Iterator[Diagnostic]:
    uses: dict[Resource, list[Use]] = {}
    for item in items:
        refused = list(_containers(item, program, quota))
        yield from refused
        for resource, use in _uses(item, program):
            if not refused or resource.model:  # smaller pods may fit together
                uses.setdefault(resource, []).append(use)
    limits = gpu_limits(quota.spec)
    told: set[Item] = set()
    """Specs that are already reported: one diagnostic per spec, GPUs first."""
    for resource in sorted(uses, key=lambda resource: not resource.model):
        if resource.model:
            has = fit.total_gpus(program, quota.cluster, resource.model)
            # Requests beyond the cluster's capacity are reported by the spec's own check.
            told.update(use.item for use in uses[resource] if use.total > 1000 * has)
            limit = limits.get(resource.model, Limit(0, 0))
            yield from _resource(quota, resource, 1000 * limit.total, str(limit), uses[resource], told)
        elif most := milli(getattr(quota.spec, resource.key) or 0):
            yield from _resource(quota, resource, most, resource.show(most), uses[resource], told)


def _uses(item: Item, program: Program) -> Iterator[tuple[Resource, Use]]:
    parts: dict[Resource, list[Part]] = {}
    for path, pods, amounts in program.derive(item, asks):
        for key, model, each in amounts:
            parts.setdefault(Resource(key, model), []).append(Part(path, pods, each))
    lifecycle = registry.lifecycle(item.kind)
    for resource, found in parts.items():
        yield resource, Use(item, tuple(found), sum(part.pods * part.each for part in found), lifecycle)


def asks(item: Item, program: Program) -> list[Ask]:
    """Return the demand of a spec's roles."""
    found = []
    for role in roles(item):
        amounts = [(key, "", _amount(item, program, role, key)) for key in ("cpu", "memory")]
        model = gpu_model(program, item.cluster, role.compute)
        if model is not None and model in program.gpu_models(item.cluster):
            amounts.insert(0, ("gpus", model, milli(role.compute.gpus)))
        found.append((role.path, role.least, tuple(amounts)))
    return found


def _amount(item: Item, program: Program, role: Role, key: str) -> Milli:
    value = getattr(role.compute, key)
    if value is None:
        workload = registry.kind(item.kind).workload
        if workload is not None and workload.default_requests is not None:
            value = getattr(workload.default_requests(item, program), key)
    return milli(value or 0)


def _resource(
    quota: Item, resource: Resource, limit: Milli, allowed: str, uses: list[Use], told: set[Item]
) -> Iterator[Diagnostic]:
    """Compare the demand for one resource with its limit, in file order."""
    uses = [use for use in uses if use.item not in told]
    services = [use for use in uses if use.lifecycle is Lifecycle.SERVICE]
    always = _sum(services)
    if always > limit:
        before: list[Use] = []
        for use in services:
            if _sum(before) + use.total > limit:
                told.update(each.item for each in uses)
                yield _exceeded(quota, resource, limit, allowed, use, before)
                return
            before.append(use)
    never = [use for use in uses if use.lifecycle is not Lifecycle.SERVICE and use.total + always > limit]
    for use in never:
        told.add(use.item)
        yield _exceeded(quota, resource, limit, allowed, use, services if use.total <= limit else [])
    sessions = [use for use in uses if use.lifecycle is Lifecycle.SESSION]
    if sessions and not never and _sum(sessions) + always > limit:
        yield _waits(quota, resource, allowed, sessions, services)


def _sum(uses: Iterable[Use]) -> Milli:
    return sum(use.total for use in uses)


def _place(span: Span) -> str:
    return f"{span.file}:{span.line}"


def _raise(quota: Item, resource: Resource) -> str:
    """Return the remedy in the quota."""
    if not resource.model:
        return f"raise `{resource.key}` in {_place(quota.span('spec', resource.key))}"
    limit = gpu_limits(quota.spec).get(resource.model)
    if limit is None:
        return f"add `{{gpu: {resource.model}, guaranteed: …}}` to `gpus` in {_place(quota.span('spec', key=True))}"
    return f"raise `borrow` in {_place(entry_span(quota, resource.model, 'borrow', 'guaranteed'))}"


def _exceeded(quota: Item, resource: Resource, limit: Milli, allowed: str, use: Use, beside: list[Use]) -> Diagnostic:
    main, number = use.main, resource.number
    label = f"{main.pods} × {number(main.each)} = {number(main.total)}" if main.pods > 1 else ""
    if use.total != main.total:
        label = f"{label or number(main.total)}, {number(use.total)} with its other roles"
    if beside:
        who = f"{beside[0].item.team}/{beside[0].item.name}" if len(beside) == 1 else f"{len(beside)} services"
        label = f"{label or number(main.total)}, with {number(_sum(beside))} for {who}"
    left = limit - _sum(beside) - (use.total - main.total)
    fits = left // main.each
    hint = _raise(quota, resource)
    if main.pods > 1 and fits > 0:
        hint = f"at most {fits} replica{'s fit' if fits > 1 else ' fits'}; or {hint}"
    return Diagnostic(
        "quota-exceeded",
        f"team {quota.team} requests {resource.show(use.total + _sum(beside))}; its quota allows {allowed}",
        use.item.span(*main.path, resource.key),
        label=label,
        hint=hint,
        notes=tuple(
            Note(other.item.span(*other.main.path, resource.key), f"{other.item} requests {resource.show(other.total)}")
            for other in beside[:6]
        ),
    )


def _workload(use: Use) -> WorkloadHooks:
    workload = registry.kind(use.item.kind).workload
    if workload is None:
        raise LookupError(f"{use.item} runs no pods")
    return workload


def _nouns(uses: Iterable[Use]) -> str:
    """Return the plural nouns of the specs' kinds: `services and workspaces`."""
    found = dict.fromkeys(f"{_workload(use).noun}s" for use in uses)
    *most, last = found
    return f"{', '.join(most)} and {last}" if most else last


def _waits(quota: Item, resource: Resource, allowed: str, sessions: list[Use], services: list[Use]) -> Diagnostic:
    last = sessions[-1]
    what = _nouns([*services, *sessions])
    total = _sum(sessions) + _sum(services)
    return Diagnostic(
        "quota-waits",
        f"the {what} of team {quota.team} request {resource.show(total)}; its quota allows {allowed}, so some wait",
        last.item.span(*last.main.path, resource.key),
        severity="warning",
        label=f"{len(sessions)} {_nouns(sessions)}" if len(sessions) > 1 else "",
        hint=f"{_workload(last).stop}; or {_raise(quota, resource)}",
    )


def _containers(item: Item, program: Program, quota: Item) -> Iterator[Diagnostic]:
    """Yield containers that the LimitRange would reject."""
    for key, limit_key in (("cpu", "podMaxCpu"), ("memory", "podMaxMemory")):
        most = quota.spec.pod_max_cpu if key == "cpu" else quota.spec.pod_max_memory
        if not milli(most or 0):
            continue
        resource = Resource(key)
        for path, _, amounts in program.derive(item, asks):
            amount = next(each for name, _, each in amounts if name == key)
            if amount > milli(most):
                yield Diagnostic(
                    "quota-exceeded",
                    f"a pod requests {resource.show(amount)}; the limit for pods of team {quota.team} is {most}",
                    item.span(*path, key),
                    hint=f"write `{key}: {most}` or less; or raise `{limit_key}` in "
                    f"{_place(quota.span('spec', limit_key))}",
                )
