"""Demand of a team's specs, compared with its quota.

A training job or workspace that exceeds the quota now can wait. An error is only a spec that can never run: one that,
together with the team's services, which run permanently, requests more than the quota allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

from avactl.base.quantity import format_quantity
from avactl.diagnostics import Diagnostic, Note, Span
from avactl.kinds.quota.amounts import Ask, Milli, parse_milli
from avactl.kinds.quota.compiled import with_patches, written_asks
from avactl.kinds.quota.limits import MIN_QUOTA_BYTES, DeclaredLimit, entry_span, gpu_limits, in_file_order, quota_of
from avactl.program import registry
from avactl.program.capacity import fit
from avactl.program.capacity.capacity import gpu_model, running_roles
from avactl.program.program import Item, Program
from avactl.program.workload import Lifecycle, WorkloadRole
from avactl.spec.platform.quota import QuotaSpec

_DEVICES_KEY = "devices"
"""No key of requests: the location is that of the requests."""


class RoleDemand(NamedTuple):
    """Demand of one role of a spec for one resource."""

    path: tuple[str | int, ...]
    pods: int
    each: Milli
    written: int = -1
    """Index of the manifest that has the pods; -1 for a role."""

    @property
    def total(self) -> Milli:
        return self.pods * self.each


class Use(NamedTuple):
    """Demand of one spec for one resource, at its minimum size."""

    item: Item
    parts: tuple[RoleDemand, ...]
    total: Milli
    lifecycle: Lifecycle | None

    @property
    def main(self) -> RoleDemand:
        """The role with the largest demand."""
        return max(self.parts, key=lambda part: part.total)

    def span(self, program: Program, key: str) -> Span:
        """Location of the request for the resource."""
        part = self.main
        if part.written < 0:
            return self.item.span(*part.path, key)
        each = list(registry.get_kind(self.item.kind).written(self.item, program))[part.written]
        return each.doc.span(*each.path, *part.path, _DEVICES_KEY if key == "gpus" else key)


class DemandedResource(NamedTuple):
    """A resource that a quota limits: GPUs of a model, CPU cores, or memory."""

    key: str
    """Key of a role's compute: `gpus`, `cpu`, `memory`."""
    model: str = ""
    member: str = ""
    """Member of the team whose own limit it is about."""

    def number(self, amount: Milli) -> str:
        """Format an amount without the resource name."""
        return format_quantity(Fraction(amount, 1000)) if self.key == "memory" else f"{amount / 1000:g}"

    def asking(self, quota: Item[QuotaSpec]) -> str:
        """Return the beginning of a message about demand."""
        return f"{self.member} of team {quota.team} requests" if self.member else f"team {quota.team} requests"

    def show(self, amount: Milli) -> str:
        """Format an amount with the resource name."""
        return f"{self.number(amount)} {self.model or ('memory' if self.key == 'memory' else 'CPU cores')}"


def usage_problems(program: Program, quota: Item[QuotaSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of the specs under one quota. They depend on that team's specs and quota only."""

    def by_team() -> dict[tuple[str | None, str], list[Item]]:
        found: dict[tuple[str | None, str], list[Item]] = {}
        for kind in registry.workload_kinds():
            for item in program.of(kind):
                found.setdefault((item.team, item.cluster), []).append(item)
        for kind in registry.written_kinds():
            for item in program.of(kind):
                for cluster in item.clusters if item.team else ():
                    found.setdefault((item.team, cluster), []).append(item)
        return found

    if quota_of(program, quota.team, quota.cluster) is quota:
        running = program.memo("running specs", by_team)
        yield from _check_team(program, quota, in_file_order(running.get((quota.team, quota.cluster), [])))


_LEAST: dict[str, Milli] = {"memory": 1000 * MIN_QUOTA_BYTES}
"""Limits below are invalid, and reported."""


def _check_team(program: Program, quota: Item[QuotaSpec], items: list[Item]) -> Iterator[Diagnostic]:
    uses: dict[DemandedResource, list[Use]] = {}
    for item in items:
        refused = list(_check_containers(item, program, quota))
        yield from refused
        yield from _check_growth(item, program, quota)
        for resource, use in _resource_uses(item, program, quota.cluster):
            if not refused or resource.model:  # smaller pods may fit together
                uses.setdefault(resource, []).append(_with_pods(use))
    limits = gpu_limits(quota.spec)
    # A model that the cluster does not have may be the misspelt one of a request.
    is_misspelt = any(not fit.total_gpus(program, quota.cluster, model) for model in limits)
    told: set[Item] = set()
    """Specs that are already reported: one diagnostic per spec, GPUs first."""
    for resource in sorted(uses, key=lambda resource: (not resource.model, resource.key)):
        if resource.model:
            if is_misspelt and resource.model not in limits:
                continue
            has = fit.total_gpus(program, quota.cluster, resource.model)
            # Requests beyond the cluster's capacity are reported by the spec's own check.
            told.update(use.item for use in uses[resource] if use.total > 1000 * has)
            limit = limits.get(resource.model, DeclaredLimit(0, 0))
            yield from _check_members(program, quota, resource, uses[resource], told)
            yield from _resource(program, quota, resource, 1000 * limit.total, str(limit), uses[resource], told)
            yield from _check_borrowed(program, quota, resource, limit, uses[resource], told)
        elif (most := parse_milli(getattr(quota.spec, resource.key) or 0)) >= _LEAST.get(resource.key, 1):
            yield from _resource(program, quota, resource, most, resource.show(most), uses[resource], told)


def _check_members(
    program: Program, quota: Item[QuotaSpec], resource: DemandedResource, uses: list[Use], told: set[Item]
) -> Iterator[Diagnostic]:
    """Yield specs beyond the limit of their member, and warn of jobs and workspaces that count for no member."""
    most = next((entry.per_member for entry in quota.spec.gpus if entry.gpu == resource.model), None)
    if most is None:
        return
    of_members: dict[str, list[Use]] = {}
    for use in uses:
        if use.item.resource.member:
            of_members.setdefault(use.item.resource.member, []).append(use)
        elif use.lifecycle is not Lifecycle.SERVICE and use.item not in told:
            yield Diagnostic(
                "without-member",
                f"`perMember` of team {quota.team} does not limit {use.item}, which has no member",
                use.span(program, resource.key),
                severity="warning",
                hint=f"write `{'.'.join(use.item.resource.MEMBER_PATH)}: USER`, unless it runs for the whole team",
                notes=(Note(entry_span(quota, resource.model, "perMember"), "the limit"),),
            )
    for member, mine in of_members.items():
        allowed = f"{most} to each member"
        yield from _resource(program, quota, resource._replace(member=member), 1000 * most, allowed, mine, told)


def _check_borrowed(
    program: Program,
    quota: Item[QuotaSpec],
    resource: DemandedResource,
    limit: DeclaredLimit,
    uses: list[Use],
    told: set[Item],
) -> Iterator[Diagnostic]:
    """Yield jobs that are not preemptible and would have to borrow: what is borrowed is given back by preemption."""
    for use in uses:
        fixed = not program.derive(use.item, _is_preemptible)
        if fixed and use.item not in told and use.total > 1000 * limit.guaranteed:
            told.add(use.item)
            yield Diagnostic(
                "quota-exceeded",
                f"{use.item} requests {resource.show(use.total)} and is not preemptible; team {quota.team} is "
                f"guaranteed {limit.guaranteed}, and what is not preemptible cannot borrow",
                use.span(program, resource.key),
                hint="write `preemptible: true` with a checkpoint, or raise `guaranteed` in "
                f"{_format_place(entry_span(quota, resource.model, 'guaranteed', 'borrow'))}",
                notes=(Note(use.item.span("spec", "preemptible"), "not preemptible"),),
            )


def _is_preemptible(item: Item, program: Program) -> bool:
    hooks = registry.get_kind(item.kind).workload
    return hooks is None or hooks.preemptible is None or hooks.preemptible(item)


def _check_growth(item: Item, program: Program, quota: Item[QuotaSpec]) -> Iterator[Diagnostic]:
    """Yield maxima of elastic jobs and services that the quota's GPUs can never reach."""
    limits = gpu_limits(quota.spec)
    for path, model, least, most, gpus in program.derive(item, _growing_roles):
        limit = limits.get(model, DeclaredLimit(0, 0)).total
        if max(1, least) * gpus <= limit < most * gpus:
            yield Diagnostic(
                "quota-exceeded",
                f"{item} may grow to {most} pods with {most * gpus:g} GPUs; the quota of team {quota.team} allows "
                f"{limit}",
                item.span(*path),
                severity="warning",
                hint=f"write `max: {int(limit // gpus)}`, or raise `borrow` in "
                f"{_format_place(quota.span('spec', 'gpus'))}",
                notes=(Note(quota.span("spec", "gpus", key=True), "the quota"),),
            )


def _growing_roles(item: Item, program: Program) -> list[tuple[tuple[str | int, ...], str, int, int, float]]:
    """Return the roles with GPUs whose number of pods has bounds: path of the maximum, model, bounds, GPUs of a pod."""
    found = []
    for role in running_roles(item) if item.kind not in registry.written_kinds() else ():
        if role.compute.gpus and role.least < role.most:
            path: tuple[str | int, ...] = (*(role.replicas_path[:-1] or role.path), "max")
            if item.doc.get(*path) is None:
                path = role.replicas_path or role.path
            model = gpu_model(program, item.cluster, role.compute) or ""
            found.append((path, model, role.least, role.most, role.compute.gpus))
    return found


def _resource_uses(item: Item, program: Program, cluster: str) -> Iterator[tuple[DemandedResource, Use]]:
    if item.kind in registry.written_kinds():
        for on, index, path, lifecycle, pods, amounts, _ in program.derive(item, written_asks):
            for key, model, each in amounts if on == cluster else ():
                part = RoleDemand(path, pods, each, index)
                yield DemandedResource(key, model), Use(item, (part,), part.total, Lifecycle(lifecycle))
        return
    parts: dict[DemandedResource, list[RoleDemand]] = {}
    for path, pods, amounts in program.derive(item, spec_asks):
        for key, model, each in amounts:
            parts.setdefault(DemandedResource(key, model), []).append(RoleDemand(path, pods, each))
    runs = registry.get_lifecycle(item.kind)
    for resource, found in parts.items():
        yield resource, Use(item, tuple(found), sum(part.pods * part.each for part in found), runs)


def spec_asks(item: Item, program: Program) -> list[Ask]:
    """Return the demand of a spec's roles, after its patches."""
    found: list[Ask] = []
    most: list[int] = []
    for role in running_roles(item):
        amounts = [(key, "", _role_amount(item, program, role, key)) for key in ("cpu", "memory")]
        model = gpu_model(program, item.cluster, role.compute)
        if model is not None and model in program.gpu_models(item.cluster):
            amounts.insert(0, ("gpus", model, parse_milli(role.compute.gpus)))
        found.append((role.path, role.least, tuple(amounts)))
        most.append(role.most)
    return with_patches(item, program, found, most) if item.resource.patches and found else found


def _role_amount(item: Item, program: Program, role: WorkloadRole, key: str) -> Milli:
    value = getattr(role.compute, key)
    if value is None:
        workload = registry.get_kind(item.kind).workload
        if workload is not None and workload.default_requests is not None:
            value = getattr(workload.default_requests(item, program), key)
    return parse_milli(value or 0)


def _resource(
    program: Program,
    quota: Item[QuotaSpec],
    resource: DemandedResource,
    limit: Milli,
    allowed: str,
    uses: list[Use],
    told: set[Item],
) -> Iterator[Diagnostic]:
    """Compare the demand for one resource with its limit, in file order."""
    uses = [use for use in uses if use.item not in told]
    services = [use for use in uses if use.lifecycle is Lifecycle.SERVICE]
    always = _sum_uses(services)
    if always > limit:
        before: list[Use] = []
        for use in services:
            if _sum_uses(before) + use.total > limit:
                told.update(each.item for each in uses)
                yield _exceeded_problem(program, quota, resource, limit, allowed, use, before)
                return
            before.append(use)
    never = [use for use in uses if use.lifecycle is not Lifecycle.SERVICE and use.total + always > limit]
    for use in never:
        told.add(use.item)
        yield _exceeded_problem(program, quota, resource, limit, allowed, use, services if use.total <= limit else [])
    sessions = [use for use in uses if use.lifecycle is Lifecycle.SESSION]
    if sessions and not never and _sum_uses(sessions) + always > limit:
        yield _waiting_problem(program, quota, resource, allowed, sessions, services)


def _with_pods(use: Use) -> Use:
    """Return the demand of a spec; for a service without pods, that of its first one, which can wait like a job."""
    if use.total or use.lifecycle is not Lifecycle.SERVICE or use.main.written >= 0:
        return use
    parts = tuple(part._replace(pods=1) for part in use.parts)
    return use._replace(parts=parts, total=sum(part.total for part in parts), lifecycle=None)


def _sum_uses(uses: Iterable[Use]) -> Milli:
    return sum(use.total for use in uses)


def _format_place(span: Span) -> str:
    return f"{span.file}:{span.line}"


def _raise_hint(quota: Item[QuotaSpec], resource: DemandedResource) -> str:
    """Return the remedy in the quota."""
    if not resource.model:
        return f"raise `{resource.key}` in {_format_place(quota.span('spec', resource.key))}"
    limit = gpu_limits(quota.spec).get(resource.model)
    if limit is None:
        return (
            f"add `{{gpu: {resource.model}, guaranteed: …}}` to `gpus` in {_format_place(quota.span('spec', key=True))}"
        )
    if resource.member:
        return f"raise `perMember` in {_format_place(entry_span(quota, resource.model, 'perMember'))}"
    return f"raise `borrow` in {_format_place(entry_span(quota, resource.model, 'borrow', 'guaranteed'))}"


def _exceeded_problem(
    program: Program,
    quota: Item[QuotaSpec],
    resource: DemandedResource,
    limit: Milli,
    allowed: str,
    use: Use,
    beside: list[Use],
) -> Diagnostic:
    main, number = use.main, resource.number
    label = f"{main.pods} × {number(main.each)} = {number(main.total)}" if main.pods > 1 else ""
    if use.total != main.total:
        label = f"{label or number(main.total)}, {number(use.total)} with its other roles"
    if beside:
        who = f"{beside[0].item.team}/{beside[0].item.name}" if len(beside) == 1 else f"{len(beside)} services"
        label = f"{label or number(main.total)}, with {number(_sum_uses(beside))} for {who}"
    left = limit - _sum_uses(beside) - (use.total - main.total)
    fits = left // main.each
    hint = _raise_hint(quota, resource)
    if main.pods > 1 and fits > 0:
        hint = f"at most {fits} replica{'s fit' if fits > 1 else ' fits'}; or {hint}"
    return Diagnostic(
        "quota-exceeded",
        f"{resource.asking(quota)} {resource.show(use.total + _sum_uses(beside))}; its quota allows {allowed}",
        use.span(program, resource.key),
        label=label,
        hint=hint,
        notes=tuple(
            Note(other.span(program, resource.key), f"{other.item} requests {resource.show(other.total)}")
            for other in beside[:6]
        ),
    )


def _kind_nouns(uses: Iterable[Use]) -> str:
    """Return the plural nouns of the specs' kinds: `services and workspaces`."""
    hooks = [registry.get_kind(use.item.kind).workload for use in uses]
    found = dict.fromkeys("manifests" if each is None else f"{each.noun}s" for each in hooks)
    *most, last = found
    return f"{', '.join(most)} and {last}" if most else last


def _waiting_problem(
    program: Program,
    quota: Item[QuotaSpec],
    resource: DemandedResource,
    allowed: str,
    sessions: list[Use],
    services: list[Use],
) -> Diagnostic:
    last = sessions[-1]
    workload = registry.get_kind(last.item.kind).workload
    stop = "remove unused ones" if workload is None else workload.stop
    what = _kind_nouns([*services, *sessions])
    total = _sum_uses(sessions) + _sum_uses(services)
    return Diagnostic(
        "quota-waits",
        f"the {what} of {resource.member or f'team {quota.team}'} request {resource.show(total)}; its quota allows "
        f"{allowed}, so some wait",
        last.span(program, resource.key),
        severity="warning",
        label=f"{len(sessions)} {_kind_nouns(sessions)}" if len(sessions) > 1 else "",
        hint=f"{stop}; or {_raise_hint(quota, resource)}",
    )


def _check_containers(item: Item, program: Program, quota: Item[QuotaSpec]) -> Iterator[Diagnostic]:
    """Yield containers that the LimitRange would reject."""
    for key, limit_key in (("cpu", "podMaxCpu"), ("memory", "podMaxMemory")):
        most = quota.spec.pod_max_cpu if key == "cpu" else quota.spec.pod_max_memory
        if most is None or not parse_milli(most):
            continue
        resource = DemandedResource(key)
        for use in _largest_pods(item, program, quota.cluster, key):
            if use.total > parse_milli(most):
                yield Diagnostic(
                    "quota-exceeded",
                    f"a pod requests {resource.show(use.total)}; the limit for pods of team {quota.team} is {most}",
                    use.span(program, key),
                    hint=f"write `{key}: {most}` or less; or raise `{limit_key}` in "
                    f"{_format_place(quota.span('spec', limit_key))}",
                )


def _largest_pods(item: Item, program: Program, cluster: str, key: str) -> Iterator[Use]:
    """Yield what one pod of each role, and one container of each manifest, requests of a resource."""
    if item.kind in registry.written_kinds():
        for on, index, path, _, _, _, amounts in program.derive(item, written_asks):
            each = next(amount for name, _, amount in amounts if name == key)
            if on == cluster:
                yield Use(item, (RoleDemand(path, 1, each, index),), each, None)
        return
    for path, _, amounts in program.derive(item, spec_asks):
        for name, _, each in amounts:
            if name == key:
                yield Use(item, (RoleDemand(path, 1, each),), each, None)
