"""A diff as a pull request comment: GitHub Markdown within the size limit, safe for any spec content.

Text from specs appears only in code spans and fenced blocks, where it cannot become a mention, link, HTML, emoji or
markup. Fences are longer than any run of backticks inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from avactl.diff import phrases
from avactl.diff.groups import Group, ObjectGroup, groups
from avactl.diff.model import Consequence, Diff, Disruption, ObjectOp
from avactl.diff.text import FITS, NO_BASE, empty_base, reason_of, title
from avactl.terminal import visible

LIMIT = 65_000
"""Largest comment in bytes. GitHub's limit is 65,536 characters, which are at least a byte each."""
MARKER = "<!-- avactl diff -->"
"""First line of every comment, by which a bot finds its own comment to update."""

_OBJECTS: tuple[ObjectOp, ...] = ("created", "changed", "deleted", "renamed", "kept")
_MOST_SECTIONS = 20
"""Changes that are shown unfolded."""
_MOST_NAMES = 20
_MOST_LOSSES = 20
_MOST_LINES = 60
"""Maximum number of lines in one block of objects."""
_LONGEST_LINE = 300

_PLAIN = re.compile(r"[A-Za-z0-9 ,;()→·%/-]*(?:[.:](?![/\w])[A-Za-z0-9 ,;()→·%/-]*)*").fullmatch
_MEANT = re.compile(r"\s*(?:[-+]|\d+[.)])(?:\s|$)|.*\bGH-\d", re.IGNORECASE).match
"""Starts of list entries, and GitHub's short form of issue references."""
REST = "`avactl diff` shows all"
"""Refers to the omitted part."""


class _Section(NamedTuple):
    """One group: the part that is always shown, and details that are shown if they fit."""

    brief: str
    details: str
    objects: int
    """Number of objects in the details."""


def code(text: str) -> str:
    """Return untrusted text as a code span."""
    text = visible(text.replace("\n", " "))[:_LONGEST_LINE]
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{_fence(text, 1)}{pad}{text}{pad}{_fence(text, 1)}"


def _fence(text: str, least: int) -> str:
    """Return more backticks than any run of them in a text."""
    return "`" * max(least, *(len(run) + 1 for run in re.findall("`+", text)), 0)


def prose(text: str) -> str:
    """Return a sentence of ours as it is, or as a code span if it contains possible markup."""
    return text if _PLAIN(text) and not _MEANT(text) else code(text)


def block(lines: Iterable[str], language: str = "diff") -> str:
    """Return untrusted lines as a fenced block."""
    body = "\n".join(visible(line)[:_LONGEST_LINE] for line in lines)
    fence = _fence(body, 3)
    return f"{fence}{language}\n{body}\n{fence}"


def render_markdown(diff: Diff, *, objects: bool = True, limit: int = LIMIT) -> str:
    """Return the diff as Markdown, at most `limit` bytes."""
    title = f"{MARKER}\n### {headline(diff)}\n\n"
    body = render_body(diff, objects=objects, limit=limit - _size(title))
    return f"{title}{body}" if body else title.rstrip("\n") + "\n"


def headline(diff: Diff) -> str:
    """Return the title with counts: `2 intents changed · 5 objects: 4 changed, 1 deleted`."""
    if diff.empty:
        return "No changes"
    of = diff.object_counts
    parts = [f"{of[op]} {'new' if op == 'created' else op}" for op in _OBJECTS if of[op]]
    total = f"{of.total()} object{'' if of.total() == 1 else 's'}"
    objects = f"{total} {parts[0].partition(' ')[2]}" if len(parts) == 1 else f"{total}: {', '.join(parts)}"
    return f"{phrases.intents(diff)} · {objects if parts else 'no object changes'}"


def render_body(diff: Diff, *, objects: bool = True, limit: int = LIMIT, rest: str = REST) -> str:
    """Return the diff without its title, at most `limit` bytes; `rest` says where to find the omitted part."""
    head = _head(diff)
    sections = [_section(group, phrases.clusters(diff), objects, rest) for group in groups(diff)]
    foot = _foot(diff)
    room = limit - _size(head) - _size(foot) - _size(rest) - 200  # 200: the note on omitted parts, and the fold
    shown: list[str] = []
    for section in sections:
        room -= _size(section.brief)
        if room < 0:
            break
        shown.append(section.brief)
    hidden = sum(section.objects for section in sections[len(shown) :])
    for index, section in enumerate(sections[: len(shown)]):
        if _size(section.details) > room:
            hidden += section.objects
        else:
            room -= _size(section.details)
            shown[index] += section.details
    left_out = len(sections) - len(shown)
    if len(shown) > _MOST_SECTIONS + 1:
        more = f"<details><summary>{len(shown) - _MOST_SECTIONS} more changes</summary>\n"
        shown = [*shown[:_MOST_SECTIONS], more, *shown[_MOST_SECTIONS:], "</details>\n"]
    parts = [*([head] if head else []), *shown]
    if left_out:
        parts.append(f"… {left_out} more changes, {hidden} objects; {rest}\n")
    elif hidden:
        parts.append(f"… {hidden} more objects; {rest}\n")
    return "\n".join([*parts, *([foot] if foot else [])])


def render_problems(text: str, limit: int = LIMIT) -> str:
    """Return the head's problems as text, in place of a diff."""
    body = within(text.splitlines(), limit - 500, "… more: `avactl validate` shows all")
    return f"{MARKER}\n### It does not compile\n\n{block(body, 'text')}\n"


def within(lines: Iterable[str], room: int, rest: str) -> list[str]:
    """Return the lines that fit into `room` bytes, and `rest` if not all do."""
    kept: list[str] = []
    for line in lines:
        room -= _size(line)
        if room < 0:
            return [*kept, rest]
        kept.append(line)
    return kept


def _size(text: str) -> int:
    return len(text.encode()) + 1


def _head(diff: Diff) -> str:
    lines: list[str] = []
    losses = [
        f"> - **{intent.key.kind} {code(intent.key.label)}** {prose(consequence.text)}"
        for intent in diff.intents
        for consequence in intent.consequences
        if consequence.level == "danger"
    ]
    if losses:
        lines += ["> [!CAUTION]", "> **Data loss**", *losses[:_MOST_LOSSES]]
        if len(losses) > _MOST_LOSSES:
            lines.append(f"> - … and {len(losses) - _MOST_LOSSES} more")
        lines.append("")
    if empty_base(diff.base_problems):
        lines += [f"{NO_BASE.capitalize()}.", ""]
    elif diff.base_problems:
        first = diff.base_problems[0]
        count = f"{len(diff.base_problems)} error{'' if len(diff.base_problems) == 1 else 's'}"
        what = f"The base does not compile ({count}): specs that could be compiled are compared, the rest count as new."
        lines += ["> [!WARNING]", f"> {what}", f"> {code(f'{first.span}: {first.message}')}", ""]
    return "\n".join(lines)


def _foot(diff: Diff) -> str:
    lines = [f"- warning {code(f'{w.id}: {w.message} ({w.span})')}" for w in diff.warnings[:_MOST_LOSSES]]
    if len(diff.warnings) > _MOST_LOSSES:
        lines.append(f"- … and {len(diff.warnings) - _MOST_LOSSES} more warnings")
    if lines:
        lines.append("")
    if diff.fits:
        lines += [f"*{FITS}*", ""]
    return "\n".join(lines)


def _section(group: Group, several: bool, objects: bool, rest: str) -> _Section:
    first = group.first
    count = len(group.intents)
    name = f"{first.key.kind} {code(first.key.label)}" if count == 1 else phrases.plural(first.key.kind, count)
    lines = [f"**{name}**{_class(first.disruption, first.op)}"]
    consequences = group.consequences
    main, more = phrases.headline(first, count), phrases.further(first)
    if not main:
        main, more = more[:3], more[3:]
    run = [_said(c) for c in consequences if c.topic == "run" and c.text != str(first.disruption)]
    parts = [prose(part) for part in main] + run
    if parts:
        lines.append(f"- {phrases.joined(parts)}")
    if count > 1:
        lines.append(f"- {', '.join(code(phrases.name(i)) for i in group.intents[:_MOST_NAMES])}"
                     + (f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""))  # fmt: skip
    if more:
        lines.append(f"- also {phrases.joined([prose(part) for part in more[:12]])}"
                     + (f" and {len(more) - 12} more" if len(more) > 12 else ""))  # fmt: skip
    others = [c for c in consequences if c.topic in ("security", "capacity", "quota", "cause") or c.level == "warning"]
    lines += [f"- {_said(c)}" for c in others[:_MOST_NAMES] if c.topic != "run"]
    if not first.objects_known and first.op != "repaired":
        lines.append("- its previous objects are unknown")
    total = sum(len(found.ids) for found in group.objects)
    details = _details(group.objects, total, several, rest) if objects and total else ""
    return _Section("\n".join(lines) + "\n", details, total)


def _class(disruption: Disruption, op: str) -> str:
    if disruption == Disruption.DATA_LOSS:
        return " · **data loss**"
    # A removed spec stops everything anyway.
    return "" if disruption == Disruption.NONE or op == "removed" else f" · {disruption}"


def _said(consequence: Consequence) -> str:
    text = prose(consequence.text)
    return f"**{text}**" if consequence.level == "warning" and consequence.topic != "run" else text


def _details(found: Sequence[ObjectGroup], total: int, several: bool, rest: str) -> str:
    lines: list[str] = []
    shown = 0
    for group in found:
        if len(lines) >= _MOST_LINES:
            break
        shown += len(group.ids)
        change = group.change
        reason = reason_of(group)
        lines.append(f"{phrases.MARKS[change.op]} {title(group, several)}" + (f"   ({reason})" if reason else ""))
        for told_field, changed in phrases.fields(change):
            lines.append(f"    {told_field}")
            lines += [f"      {line}" for line in changed[:10]]
    if shown < total:
        lines.append(f"… {total - shown} more objects; {rest}")
    count = f"{total} object{'' if total == 1 else 's'}"
    return f"\n<details><summary>{count}</summary>\n\n{block(lines)}\n\n</details>\n"
