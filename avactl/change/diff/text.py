"""A diff for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from avactl.base.terminal import inert_text, visible_text
from avactl.change.diff import phrases
from avactl.change.diff.groups import Group, ObjectGroup, group_intents
from avactl.change.diff.model import Consequence, Diff, Disruption
from avactl.change.diff.rules import DEFERRED
from avactl.diagnostics import Diagnostic

_SEVERITY_COLOURS = {
    "danger": "\x1b[1;31m",
    "warning": "\x1b[33m",
    "info": "",
    "bold": "\x1b[1m",
    "dim": "\x1b[2m",
    "created": "\x1b[32m",
    "deleted": "\x1b[31m",
    "changed": "\x1b[33m",
    "renamed": "\x1b[36m",
    "kept": "\x1b[36m",
}
_MAX_LINE_WIDTH = 120
"""Column at which lines are wrapped if possible."""
_MAX_LINES = 20
"""Maximum number of changed lines of one text that are shown."""

FITS = "fits: computed from declared capacity and specs; a check, not a reservation"
NO_BASE = "the base has no specs in this directory: all of them are new"


class _DiffStyle:
    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, name: str, text: str) -> str:
        code = _SEVERITY_COLOURS[name]
        return f"{code}{text}\x1b[0m" if self.colour and code and text else text


def render_text(diff: Diff, *, colour: bool = False, objects: bool = True) -> str:
    """Return the diff as text, with a trailing newline."""
    style = _DiffStyle(colour)
    out = [*_base_problems(diff.base_problems, style)]
    shown = group_intents(diff)
    labels = [_group_label(group) for group in shown]
    column = min(max((len(label) for label in labels), default=0), 44) + 3
    several = phrases.spans_clusters(diff)
    for group, label in zip(shown, labels, strict=True):
        out += _format_group(group, label, column, style)
        if objects:
            out += _format_objects(group.objects, several, style)
    for warning in diff.warnings:
        out.append(
            f"{style('warning', f'warning[{warning.id}]')}: {visible_text(f'{warning.message} ({warning.span})')}"
        )
    if diff.fits:
        out.append(style("dim", FITS))
    out.append(style("bold", phrases.diff_summary(diff)))
    return inert_text("\n".join(out) + "\n")


def empty_base(problems: Sequence[Diagnostic]) -> bool:
    """Return whether the base's only problem is that it has no specs: a first commit, or a renamed directory."""
    return [problem.code for problem in problems if problem.severity == "error"] == ["no-specs"]


def _base_problems(problems: Sequence[Diagnostic], style: _DiffStyle) -> list[str]:
    if not problems:
        return []
    if empty_base(problems):
        return [style("dim", NO_BASE)]
    first = problems[0]
    count = f"{len(problems)} error{'' if len(problems) == 1 else 's'}"
    head = f"the base does not compile ({count}): specs that could be compiled are compared, the rest count as new"
    return [style("warning", head), style("dim", visible_text(f"  {first.span}: {first.message}"))]


def _group_label(group: Group) -> str:
    if len(group.intents) == 1:
        return str(group.first.key)
    return phrases.plural_kind(group.first.key.kind, len(group.intents))


def _format_group(group: Group, label: str, column: int, style: _DiffStyle) -> list[str]:
    first = group.first
    lines: list[tuple[str, str]] = []
    consequences = group.consequences
    lines += [("danger", f"DATA LOSS: {c.text}") for c in consequences if c.level == "danger"]
    run = _consequence_texts(consequences, "run")
    main = phrases.intent_headline(first, len(group.intents))
    more = phrases.further_changes(first)
    if not main:
        main, more = more[:3], more[3:]
    lines += [("info", line) for line in _wrap_parts([*main, *run], column)]
    if len(group.intents) > 1:
        lines += [("dim", line) for line in _wrap_parts([phrases.intent_label(i) for i in group.intents], column, ", ")]
    if more:
        lines += [("info", line) for line in _wrap_parts([f"also {more[0]}", *more[1:]], column)]
    lines += [("info", line) for line in _wrap_parts(_consequence_texts(consequences, "security"), column)]
    lines += [("dim", line) for c in consequences if c.lines for line in _cut_lines(c.lines)]
    lines += [("info", line) for line in _wrap_parts(_consequence_texts(consequences, "capacity", "quota"), column)]
    lines += [(c.level, c.text) for c in consequences if c.topic == "data" and c.level != "danger"]
    lines += [("dim", text) for text in _consequence_texts(consequences, "cause")]
    if not first.objects_known and first.op != "repaired":
        lines.append(("warning", "its previous objects are unknown"))
    lines = lines or [("info", "")]
    head = style("danger" if first.disruption == Disruption.DATA_LOSS else "bold", label)
    pad = " " * max(column - len(label), 1)
    indent = " " * column
    out = [f"{head}{pad}{style(lines[0][0], visible_text(lines[0][1]))}".rstrip()]
    return out + [f"{indent}{style(name, visible_text(line))}" for name, line in lines[1:]]


def _consequence_texts(consequences: Iterable[Consequence], *topics: str) -> list[str]:
    return [c.text for c in consequences if c.topic in topics]


def _wrap_parts(parts: Sequence[str], column: int, separator: str = " · ") -> list[str]:
    """Join parts and wrap the lines."""
    lines: list[str] = []
    for part in parts:
        if lines and column + len(lines[-1]) + len(separator) + len(part) <= _MAX_LINE_WIDTH:
            lines[-1] += separator + part
        else:
            if lines and separator == ", ":
                lines[-1] += ","
            lines.append(part)
    return lines


def object_title(group: ObjectGroup, several: bool) -> str:
    """Return `Job vision/resnet50-worker`, or `40 Jobs *-worker`."""
    ids = group.ids
    where = sorted({id.cluster for id in ids})
    on = f" on {phrases.join_names(where, 3)}" if several else ""
    if len(ids) == 1:
        old = group.change.old_id
        if old is None or old == ids[0]:
            return f"{ids[0]}{on}"
        return f"{ids[0]}{on}, was {old.name if old.namespace == ids[0].namespace else f'{old.namespace}/{old.name}'}"
    spaces = sorted({id.namespace for id in ids if id.namespace})
    inside = f" in {phrases.join_names(spaces, 3)}" if spaces else ""
    return f"{phrases.plural_kind(ids[0].kind, len(ids))} {group.pattern}{inside}{on}"


def _format_objects(found: Sequence[ObjectGroup], several: bool, style: _DiffStyle) -> list[str]:
    titles = [object_title(group, several) for group in found]
    column = min(max((len(text) for text in titles), default=0), 52)
    out = []
    for group, text in zip(found, titles, strict=True):
        change = group.change
        reason, loss = visible_text(reason_of(group)), change.disruption == Disruption.DATA_LOSS
        note = f"   {style('danger' if loss else 'dim', f'({reason})')}" if reason else ""
        mark = style("danger" if loss else change.op, phrases.MARKS[change.op])
        fields = phrases.shown_fields(change)
        line = visible_text(", ".join(text for text, _ in fields))
        if len(line) + max(column, len(text)) + 1 + len(reason) <= _MAX_LINE_WIDTH and not any(
            lines for _, lines in fields
        ):
            out.append(f"  {mark} {f'{visible_text(text):<{column}} {line}'.rstrip()}{note}")
            continue
        out.append(f"  {mark} {visible_text(text)}{note}")
        for shown, lines in fields:
            out.append(f"      {visible_text(shown)}")
            out += [f"        {visible_text(changed)}" for changed in _cut_lines(lines)]
    return out


def _cut_lines(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MAX_LINES
    return [*lines] if more <= 0 else [*lines[:_MAX_LINES], f"… {phrases.plural_kind('more line', more)}"]


def reason_of(group: ObjectGroup) -> str:
    """Return a short reason for an object's disruption class; data loss is reported before the objects."""
    change = group.change
    if change.disruption == Disruption.DATA_LOSS:
        return "data loss"
    told = change.disruption >= Disruption.POD_RESTART or change.op in ("kept", "deleted") or change.reason in DEFERRED
    return change.reason if told else ""
