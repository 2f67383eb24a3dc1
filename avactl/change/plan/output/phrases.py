"""Text for plans, shared by the text and Markdown printers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from avactl.base.terminal import count_text
from avactl.change.plan.cost import MONTH
from avactl.change.plan.model import Cost, Effect, Plan, PlanEntry, PlannedPlace, PlannedPool, PlannedQuota, PlanVerdict


def format_number(amount: float) -> str:
    """Format a number of GPUs or hours, without decimals if it is whole."""
    return f"{amount:,.0f}" if amount >= 1000 or amount == int(amount) else f"{amount:.2f}".rstrip("0").rstrip(".")


def format_money(amount: float, currency: str) -> str:
    """Format an amount of money, with cents below a thousand."""
    return f"{amount:,.0f} {currency}" if abs(amount) >= 1000 else f"{amount:,.2f} {currency}"


def format_gpus(cost: Cost) -> str:
    """Return e.g. `32 V100`."""
    return ", ".join(f"{format_number(count)} {model}" for model, count in sorted(cost.gpus.items()))


def gpu_change(entry: PlanEntry) -> str:
    """Return e.g. `16 → 32 V100`, if they change."""
    was, now = format_gpus(entry.before), format_gpus(entry.cost)
    if entry.change == "added" or was == now:
        return now
    if entry.change == "removed":
        return f"{was} → 0" if was else ""
    if entry.before.gpus.keys() == entry.cost.gpus.keys() and len(entry.cost.gpus) == 1:
        model, count = next(iter(entry.cost.gpus.items()))
        return f"{format_number(entry.before.gpus[model])} → {format_number(count)} {model}"
    return f"{was or 'none'} → {now or 'none'}"


def format_price(entry: PlanEntry, currency: str) -> str:
    """Return the cost: for the declared hours, per month, or per hour if the run time is unlimited."""
    cost = entry.before if entry.change == "removed" else entry.cost
    sign = "-" if entry.change == "removed" else ""
    if not currency or not cost.per_hour or entry.verdict == PlanVerdict.STOPPED:
        return ""
    times, unit = (MONTH, "per month") if cost.always else (1.0, "per hour")
    if not cost.always and cost.hours is not None:
        times, unit = cost.hours, "at most"
    spot = f" ({format_money(cost.on_spot * times, currency)} on spot)" if cost.on_spot is not None else ""
    return f"{sign}{format_money(cost.per_hour * times, currency)} {unit}{spot}"


def format_hours(entry: PlanEntry) -> str:
    """Return e.g. `768 GPU-hours at most (24 h)`."""
    total = entry.cost.gpu_hours
    if not total or entry.cost.hours is None or entry.verdict == PlanVerdict.STOPPED:
        return ""
    return f"{format_number(total)} GPU-hours at most ({format_number(entry.cost.hours)} h)"


def format_place(found: PlannedPlace) -> str:
    """Return e.g. `pool v100, 4 machines (rack r1)`."""
    domains = f" ({', '.join(found.domains)})" if found.domains else ""
    return f"{_pool_place(found.pool)}, {count_text(found.machines, 'machine')}{domains}"


def format_pods(entry: PlanEntry) -> str:
    """Return e.g. `4`, or `2 of 4`."""
    if entry.verdict == PlanVerdict.REMOVED:
        return ""
    return f"{entry.placed:,}" if entry.placed == entry.pods else f"{entry.placed:,} of {entry.pods:,}"


def entry_details(entry: PlanEntry) -> Iterator[str]:
    """Yield details of an entry, most important first: reasons for waiting, machines, stopped pods."""
    for wait in entry.waits:
        count = f"{count_text(wait.pods, 'pod')}: " if wait.pods != entry.pods else ""
        yield count + (wait.words or "not scheduled yet")
        if wait.room:
            yield wait.room
    if entry.places:
        yield "; ".join(format_place(each) for each in entry.places)
    if entry.reclaimable:
        yield f"{count_text(entry.reclaimable, 'pod')} on spot machines, which the provider may take back"
    left = entry.pods - entry.placed - sum(wait.pods for wait in entry.waits)
    if left > 0 and entry.placed:
        yield f"starts with {entry.placed} of {entry.pods} pods, the others when capacity is free"
    if entry.later:
        yield "the current run finishes first (`onChange: finish`)"
    if entry.surge is not None:
        yield _describe_surge(entry)
    elif entry.restarts:
        verb = "restarts" if entry.restarts == 1 else "restart"
        yield f"{count_text(entry.restarts, 'running pod')} {verb}"
    if entry.ends:
        verb = "stops" if entry.ends == 1 else "stop"
        yield f"{count_text(entry.ends, 'running pod')} {verb}" + (" for good" if entry.pods else "")
    if entry.estimated:
        yield "placed by kube-scheduler: an estimate"


def _describe_surge(entry: PlanEntry) -> str:
    surge = entry.surge
    if surge is None:
        return ""
    if not surge.wanted:
        return "rollout: one pod stops before the next starts"
    if surge.placed >= surge.wanted:
        return f"rollout: capacity for {count_text(surge.wanted, 'surge pod')}"
    why = f": {surge.words}" if surge.words else ""
    if not surge.placed:
        return (
            f"rollout stalls, the old pods keep running: no capacity for {count_text(surge.wanted, 'surge pod')}{why}"
        )
    return f"rollout: capacity for {surge.placed} of {surge.wanted} surge pods{why}"


def format_effect(found: Effect) -> str:
    """Return the effect on another spec, without its name."""
    count = f"{found.pods} of {count_text(found.of, 'pod')}"
    why = {
        "quota-reclaim": "returns borrowed quota",
        "priority": "has lower priority",
        "elastic": "keeps running with fewer pods",
    }.get(found.reason, found.reason)
    by = f" for {found.by}" if found.by is not None else ""
    if found.what == "starts":
        return f"starts: {count} that were pending"
    if found.what == "restarts":
        return f"restarts elsewhere{by}: {count}"
    if found.what == "stops":
        return f"stops: {count} lose their machines"
    return f"{found.what}{by}: {count}" + (f", {why}" if why else "")


def format_pool(found: PlannedPool) -> str:
    """Return e.g. `pool v100: 64 → 96 of 96 V100 in use`."""
    was, now = format_number(found.before), format_number(found.after)
    used = f"{was} → {now}" if was != now else now
    return f"{_pool_place(found.name)}: {used} of {found.total} {found.model} in use"


def _pool_place(pool: str) -> str:
    return f"pool {pool}" if pool else "machines outside of pools"


def format_quota(found: PlannedQuota) -> str:
    """Return e.g. `team vision: 16 → 32 of 24 V100, 8 of them borrowed`."""
    most = "" if found.most is None else f" of {found.most}"
    borrowed = max(0.0, found.after - found.guaranteed)
    more = f", {format_number(borrowed)} of them borrowed" if borrowed else ""
    return f"team {found.team}: {format_number(found.before)} → {format_number(found.after)}{most} {found.model}{more}"


def plan_totals(plan: Plan) -> Iterator[str]:
    """Yield totals of the change: GPU-hours, and cost if prices are declared."""
    entries = [entry for entry in plan.entries if entry.change != "unchanged"]
    ending = [entry.cost for entry in entries if entry.cost.gpu_hours]
    if ending:
        hours = format_number(sum(cost.gpu_hours or 0 for cost in ending))
        yield f"{hours} GPU-hours of jobs at most, by their timeouts"
    if not plan.currency:
        return
    monthly = sum(
        sign * (cost.per_hour or 0) * MONTH
        for entry in entries
        for sign, cost in ((1, entry.cost), (-1, entry.before))
        if cost.always
    )
    if monthly:
        yield f"{'+' if monthly > 0 else ''}{format_money(monthly, plan.currency)} per month for continuous workloads"
    jobs = sum(entry.cost.at_most or 0 for entry in entries)
    if jobs:
        yield f"{format_money(jobs, plan.currency)} at most for jobs with a timeout"
    open_ = sum(
        (cost.per_hour or 0)
        for entry in entries
        if entry.change != "removed" and not (cost := entry.cost).always and cost.hours is None
    )
    if open_:
        yield f"{format_money(open_, plan.currency)} per hour for jobs without a timeout"
    unpriced = sorted(
        {model for e in entries if e.cost.per_hour is None for model in e.cost.gpus if e.cost.gpus[model]}
    )
    if unpriced:
        yield f"not counted: workloads on {', '.join(unpriced)} (no price)"


def plan_summary(plan: Plan) -> str:
    """Return e.g. `3 start, 1 waits for quota; 2 others are stopped`."""
    parts = []
    waiting = (PlanVerdict.NEVER, PlanVerdict.QUOTA, PlanVerdict.ROOM, PlanVerdict.WAITS, PlanVerdict.LATER)
    for verdict in (*waiting, PlanVerdict.STARTS, PlanVerdict.GOES_ON, PlanVerdict.STOPPED, PlanVerdict.REMOVED):
        count = plan.counts[verdict]
        if count:
            text = verdict.value
            if count > 1:
                head, _, tail = text.partition(" ")
                text = f"{head.removesuffix('s')} {tail}".strip() if head.endswith("s") else text
                text = {"goe on": "go on", "never fits": "never fit"}.get(text, text)
            parts.append(f"{count} {text}")
    words = {"preempted": "stopped", "stops": "stopped", "shrinks": "shrunk"}
    affected = Counter(words[effect.what] for effect in plan.effects if effect.what in words)
    others = [f"{count_text(affected[word], 'other')} {word}" for word in ("stopped", "shrunk") if affected[word]]
    return "; ".join([", ".join(parts) or "no workload changes", *others])
