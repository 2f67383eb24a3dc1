"""A plan as a section of a pull request comment. Text from specs and clusters appears only in code spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.change.diff.markdown import code_span, escape_prose
from avactl.change.plan.model import NOTE, Plan, PlanVerdict
from avactl.change.plan.output import groups, phrases

TITLE = "### Will it run?"
LIMIT = 20_000
"""Largest section in bytes, which leaves space for the diff in the comment."""
_VERDICT_MARKS = {
    PlanVerdict.NEVER: "❌",
    PlanVerdict.QUOTA: "⏳",
    PlanVerdict.ROOM: "⏳",
    PlanVerdict.WAITS: "⏳",
    PlanVerdict.LATER: "🕒",
    PlanVerdict.STARTS: "✅",
    PlanVerdict.GOES_ON: "✅",
    PlanVerdict.STOPPED: "⏹️",
    PlanVerdict.REMOVED: "🗑️",
}
_MAX_UNFOLDED_ROWS = 12
"""Rows beyond which the table is folded; pending specs come first."""


def render_markdown(plans: Sequence[Plan], *, limit: int = LIMIT) -> str:
    """Return the plans of all clusters with a title, at most `limit` bytes."""
    return f"{TITLE}\n\n{render_body(plans, limit=limit - len(TITLE) - 2)}"


def render_body(plans: Sequence[Plan], *, limit: int = LIMIT) -> str:
    """Return the plans without the title, at most `limit` bytes."""
    note = f"*{NOTE.capitalize()}.*\n"
    room = limit - len(note.encode()) - 200  # 200: the note on omitted specs
    parts: list[str] = []
    left_out = 0
    for plan in plans:
        head = f"**Cluster {code_span(plan.cluster)}** · {phrases.plan_summary(plan)}\n\n"
        found = groups.group_rows(plan)
        rows, foot = (
            [_format_row(row, plan) for row in found],
            "".join(f"- {line}\n" for line in _format_lines(plan)) + "\n",
        )
        room -= len((head + foot).encode())
        kept = []
        for row in rows:
            room -= len(row.encode()) + 1
            if room < 0:
                break
            kept.append(row)
        left_out += sum(len(row.entries) for row in found[len(kept) :])
        parts.append(head + _format_table(kept, plan) + foot)
    if left_out:
        parts.append(f"… and {left_out} more specs; `avactl plan` shows all\n")
    return "\n".join([*parts, note])


def _format_table(rows: Sequence[str], plan: Plan) -> str:
    if not rows:
        return ""
    columns = ["", "spec", "verdict", "pods", "where, or why not", "GPUs", *(["cost"] if plan.currency else [])]
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    if len(rows) <= _MAX_UNFOLDED_ROWS:
        return "\n".join([*head, *rows]) + "\n\n"
    bad = sum(1 for row in groups.group_rows(plan) if not row.first.verdict.fine)
    shown, rest = rows[: max(3, min(bad, _MAX_UNFOLDED_ROWS))], rows[max(3, min(bad, _MAX_UNFOLDED_ROWS)) :]
    fold = f"<details><summary>{len(rest)} more</summary>\n"
    return "\n".join([*head, *shown, "", fold, *head, *rest, "", "</details>"]) + "\n\n"


def _format_row(row: groups.GroupRow, plan: Plan) -> str:
    said = [*([code_span(row.names)] if row.names else []), *map(escape_prose, row.details)]
    cells = [
        _VERDICT_MARKS[row.first.verdict],
        code_span(row.title),
        row.first.verdict.value,
        row.pods,
        "<br>".join(said),
        escape_prose(row.gpus) if row.gpus else "",
        *([row.price] if plan.currency else []),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _format_lines(plan: Plan) -> Iterator[str]:
    for row in groups.group_effects(plan):
        text = escape_prose(row.text)
        yield f"{code_span(row.title)} {text if row.effects[0].what == 'starts' else f'**{text}**'}"
    for quota in plan.quotas:
        yield escape_prose(phrases.format_quota(quota))
    for pool in plan.pools:
        if pool.before != pool.after:
            yield escape_prose(phrases.format_pool(pool))
    yield from (escape_prose(line) for line in phrases.plan_totals(plan))
    if plan.uncounted:
        yield escape_prose(plan.uncounted)
    yield escape_prose(f"based on {plan.source}")
    yield from map(escape_prose, plan.assumed)
