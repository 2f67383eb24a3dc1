"""A plan as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from avactl.base.terminal import inert_text, visible_text
from avactl.change.plan.model import NOTE, Plan, PlanVerdict
from avactl.change.plan.output import phrases
from avactl.change.plan.output.groups import group_effects, group_rows

_VERDICT_STYLES = {
    PlanVerdict.NEVER: "bold red",
    PlanVerdict.QUOTA: "yellow",
    PlanVerdict.ROOM: "yellow",
    PlanVerdict.WAITS: "yellow",
    PlanVerdict.LATER: "green",
    PlanVerdict.STARTS: "green",
    PlanVerdict.GOES_ON: "green",
    PlanVerdict.STOPPED: "dim",
    PlanVerdict.REMOVED: "dim",
}
_NARROW_WIDTH = 100
"""Width below which the names of specs are wrapped."""


def render_text(plans: Sequence[Plan], *, colour: bool = False, width: int = 160) -> str:
    """Return the plans of all clusters as text."""
    out = StringIO()
    console = Console(
        file=out, force_terminal=colour, no_color=not colour, width=width, highlight=False, markup=False, emoji=False
    )
    for number, plan in enumerate(plans):
        if number:
            console.print()
        _plan(console, plan)
    return inert_text("\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n")


def _plan(console: Console, plan: Plan) -> None:
    console.print(
        Text.assemble(("cluster ", ""), (visible_text(plan.cluster), "bold"), f" · {phrases.plan_summary(plan)}")
    )
    if plan.entries:
        console.print()
        console.print(_make_table(plan, console.width))
    if plan.effects:
        console.print("\nothers")
        grid = Table.grid(padding=(0, 3, 0, 0))
        for row in group_effects(plan):
            grid.add_row(_plain_text(f"  {row.title}"), _plain_text(row.text))
        console.print(grid)
    foot = [
        *(phrases.format_quota(each) for each in plan.quotas),
        *(phrases.format_pool(each) for each in plan.pools if each.before != each.after),
        *phrases.plan_totals(plan),
        *([plan.uncounted] if plan.uncounted else ()),
    ]
    if foot:
        console.print()
        for line in foot:
            console.print(_plain_text(line))
    if not (plan.entries or plan.effects or foot):
        return  # an empty plan needs no caveats
    console.print()
    console.print(_plain_text(f"based on {plan.source}", style="dim"))
    console.print(Text(NOTE, style="dim"))
    for line in plan.assumed:
        console.print(_plain_text(line, style="dim"))


def _plain_text(text: str, style: str = "") -> Text:
    """Return text from specs or clusters without terminal control characters."""
    return Text(visible_text(text), style=style)


def _make_table(plan: Plan, width: int) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    found = group_rows(plan)
    priced = any(row.price for row in found)
    gpus = any(row.gpus for row in found)
    table.add_column("spec", no_wrap=width >= _NARROW_WIDTH, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("pods", justify="right", no_wrap=True)
    table.add_column("where, or why not", overflow="fold", ratio=1)
    if gpus:
        table.add_column("GPUs", no_wrap=True)
    if priced:
        table.add_column("cost", justify="right", no_wrap=True)
    for each in found:
        row: list[Text | str] = [
            _plain_text(each.title),
            Text(each.first.verdict.value, style=_VERDICT_STYLES[each.first.verdict]),
            each.pods,
            Text("\n".join(map(visible_text, [*([each.names] if each.names else []), *each.details]))),
        ]
        if gpus:
            row.append(_plain_text(each.gpus))
        if priced:
            row.append(_plain_text(each.price))
        table.add_row(*row)
    return table
