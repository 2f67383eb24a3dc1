"""A diff as a pull request comment: GitHub Markdown within the size limit, safe for any spec content.

Text from specs appears only in code spans and fenced blocks, where it cannot become a mention, link, HTML, emoji or
markup. Fences are longer than any run of backticks inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from avactl.base.terminal import visible
from avactl.base.yaml_output import dump
from avactl.change.diff import phrases
from avactl.change.diff.groups import Group, ObjectGroup, groups
from avactl.change.diff.model import Consequence, Diff, Disruption, IntentChange, ObjectOp
from avactl.change.diff.record import value_lines
from avactl.change.diff.rights.model import RANK
from avactl.change.diff.rights.specs import is_harmless, is_variable, says_what_runs
from avactl.change.diff.secrets import cover
from avactl.change.diff.text import FITS, NO_BASE, empty_base, reason_of, title
from avactl.program import registry

LIMIT = 65_000
"""Largest comment in bytes. GitHub's limit is 65,536 characters, which are at least a byte each."""
MARKER = "<!-- avactl diff -->"
"""First line of every comment, by which a bot finds its own comment to update."""

_OBJECTS: tuple[ObjectOp, ...] = ("created", "changed", "deleted", "renamed", "kept")
_MOST_SECTIONS = 20
"""Changes that are shown unfolded."""
_MOST_NAMES = 20
_MOST_LOSSES = 20
_MOST_RIGHTS = 20
"""Rights of one group that are shown unfolded."""
_MOST_LINES = 10
"""Changed lines of one value that are shown among the objects."""
_LONGEST_MESSAGE = 2000
"""Longest problem or warning, in characters."""

_PLAIN = re.compile(r"[A-Za-z0-9 ,;()→·%/-]*(?:[.:](?![/\w])[A-Za-z0-9 ,;()→·%/-]*)*").fullmatch
_MEANT = re.compile(r"\s*(?:[-+]|\d+[.)])(?:\s|$)|.*\bGH-\d", re.IGNORECASE).match
"""Starts of list entries, and GitHub's short form of issue references."""
REST = "`avactl diff --full` shows all"
"""Refers to the omitted part."""


class _Right(NamedTuple):
    """A right, and a whole text below it."""

    rank: int
    line: str
    fold: str = ""
    in_summary: bool = False
    """True if the summary says it, too: it is listed only where the summary has no room."""


class _Section(NamedTuple):
    """One group: its title and summary, its rights, and details that are shown as far as they fit."""

    title: str
    summary: str
    rights: list[_Right]
    objects: list[tuple[int, list[str]]]
    """Numbers of equal objects, and their lines."""
    spec: str
    """A new spec, whole."""


def code(text: str) -> str:
    """Return untrusted text as a code span."""
    text = visible(text.replace("\n", " "))
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
    body = "\n".join(map(visible, lines))
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
    """Return the diff without its title, at most `limit` bytes; `rest` says where to find the omitted part.

    Summaries of the first changes come first, then all rights, the gravest first, then the other summaries, then
    details. What does not fit is counted, and omitted rights are a warning at the top.
    """
    head, foot = _head(diff), _foot(diff)
    sections = [_section(group, phrases.clusters(diff), objects) for group in groups(diff)]
    room = limit - _size(head) - _size(foot) - 3 * _size(rest) - 600  # 600: notes on omitted parts, and folds
    briefs, titles, chosen, room = _choose(sections, room)
    told = [
        {*chosen[index], *(each for each in section.rights if each.in_summary and index in briefs)}
        for index, section in enumerate(sections)
    ]
    missing = [len({*section.rights} - told[index]) for index, section in enumerate(sections)]
    shown = [index for index in range(len(sections)) if index in titles]
    hidden = sum(_count(sections[index]) for index in range(len(sections)) if index not in titles)
    details, hidden_details, specs = _details([sections[index] for index in shown], room, rest)
    texts = [
        sections[index].title
        + (sections[index].summary if index in briefs else "")
        + _rights([each for each in chosen[index] if not (each.in_summary and index in briefs)])
        + detail
        for index, detail in zip(shown, details, strict=True)
    ]
    if len(texts) > _MOST_SECTIONS + 1:
        more = f"<details><summary>{len(texts) - _MOST_SECTIONS} more changes</summary>\n"
        texts = [*texts[:_MOST_SECTIONS], more, *texts[_MOST_SECTIONS:], "</details>\n"]
    parts = [head] if head else []
    if any(missing):
        what = f"{phrases.plural('right', sum(missing))} of {phrases.plural('change', sum(map(bool, missing)))}"
        parts.append(f"> [!WARNING]\n> **{what} do not fit into this comment.** {rest}\n")
    parts += texts
    omitted = [
        (len(sections) - len(shown), "more change"),
        (hidden + hidden_details, "object" if len(shown) < len(sections) else "more object"),
        (specs, "new spec"),
        (len(shown) - len(briefs), "summary"),
    ]
    if notes := [phrases.plural(noun, count) for count, noun in omitted if count]:
        parts.append(f"… {', '.join(notes)}; {rest}\n")
    return "\n".join([*parts, *([foot] if foot else [])])


def _choose(sections: Sequence[_Section], room: int) -> tuple[set[int], set[int], list[list[_Right]], int]:
    """Choose what fits: sections with their summary, with their title, the rights of each, and the rest of the room."""
    briefs: set[int] = set()
    titles: set[int] = set()
    chosen: list[list[_Right]] = [[] for _ in sections]
    first = room // 8
    for index, section in enumerate(sections[:_MOST_SECTIONS]):
        first -= _size(section.title + section.summary)
        if first < 0:
            break
        briefs.add(index)
    titles |= briefs
    room -= sum(_size(sections[index].title + sections[index].summary) for index in briefs)
    places = ((index, each) for index, section in enumerate(sections) for each in range(len(section.rights)))
    for index, each in sorted(places, key=lambda place: sections[place[0]].rights[place[1]].rank):
        right = sections[index].rights[each]
        if right.in_summary and index in briefs:
            continue
        cost = _size(right.line) + _size(right.fold) + (0 if index in titles else _size(sections[index].title))
        if cost <= room:
            room -= cost
            titles.add(index)
            chosen[index].append(right)
    for index, section in enumerate(sections):
        if index not in briefs:
            room -= _size(section.summary) + (0 if index in titles else _size(section.title))
            if room < 0:
                break
            briefs.add(index)
            titles.add(index)
    return briefs, titles, chosen, max(room, 0)


def _count(section: _Section) -> int:
    return sum(count for count, _ in section.objects)


def _rights(rights: Sequence[_Right]) -> str:
    lines = [right.line for right in rights]
    text = "\n".join(lines[:_MOST_RIGHTS]) + "\n" if lines else ""
    if len(lines) > _MOST_RIGHTS:
        more = "\n".join(lines[_MOST_RIGHTS:])
        text += f"\n<details><summary>{len(lines) - _MOST_RIGHTS} more rights</summary>\n\n{more}\n\n</details>\n"
    return text + "".join(right.fold for right in rights)


def _details(sections: Sequence[_Section], room: int, rest: str) -> tuple[list[str], int, int]:
    """Return the details of each section, and the numbers of objects and new specs in none; the room is shared."""
    found = [""] * len(sections)
    hidden = specs = 0
    full = {index: _fold(section.objects, room, rest) for index, section in enumerate(sections) if section.objects}
    for number, index in enumerate(sorted(full, key=lambda index: _size(full[index]))):
        share = room // (len(full) - number)
        text = full[index] if _size(full[index]) <= share else _fold(sections[index].objects, share, rest)
        hidden += 0 if text else _count(sections[index])
        found[index] = text
        room -= _size(text)
    for index, section in enumerate(sections):
        if section.spec and _size(section.spec) <= room:
            found[index] += section.spec
            room -= _size(section.spec)
        elif section.spec:
            specs += 1
    return found, hidden, specs


def _fold(objects: Sequence[tuple[int, list[str]]], room: int, rest: str) -> str:
    """Return as many objects as fit, folded; "" if none does."""
    lines: list[str] = []
    total, shown = sum(count for count, _ in objects), 0
    room -= 3 * _size(rest) + 100
    for count, told in objects:
        room -= sum(map(_size, map(visible, told)))
        if room < 0:
            break
        lines += told
        shown += count
    if not lines:
        return ""
    if shown < total:
        lines.append(f"… {total - shown} more objects; {rest}")
    return f"\n<details><summary>{phrases.plural('object', total)}</summary>\n\n{block(lines)}\n\n</details>\n"


def render_problems(text: str, limit: int = LIMIT) -> str:
    """Return the head's problems as text, in place of a diff."""
    body = within(text.splitlines(), limit - 500, "`avactl validate` shows all")
    return f"{MARKER}\n### It does not compile\n\n{block(body, 'text')}\n"


def within(lines: Sequence[str], room: int, rest: str) -> list[str]:
    """Return the lines that fit into `room` bytes, and how many do not, with `rest`."""
    for number, line in enumerate(lines):
        room -= _size(line)
        if room < 0:
            return [*lines[:number], f"… {phrases.plural('more line', len(lines) - number)}; {rest}"]
    return list(lines)


def rights_size(diff: Diff) -> int:
    """Return the size of all rights with the titles of their changes, in bytes."""
    sections = [_section(group, several=False, objects=False) for group in groups(diff)]
    return sum(
        _size(section.title) + sum(_size(right.line) + _size(right.fold) for right in section.rights)
        for section in sections
    )


def _size(text: str) -> int:
    return len(text.encode()) + 1


def _bounded(text: str) -> str:
    return phrases.cut(text, _LONGEST_MESSAGE)


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
        lines += ["> [!WARNING]", f"> {what}", f"> {code(_bounded(f'{first.span}: {first.message}'))}", ""]
    return "\n".join(lines)


def _foot(diff: Diff) -> str:
    lines = [f"- warning {code(_bounded(f'{w.id}: {w.message} ({w.span})'))}" for w in diff.warnings[:_MOST_LOSSES]]
    if len(diff.warnings) > _MOST_LOSSES:
        lines.append(f"- … and {len(diff.warnings) - _MOST_LOSSES} more warnings")
    if lines:
        lines.append("")
    if diff.fits:
        lines += [f"*{FITS}*", ""]
    return "\n".join(lines)


def _section(group: Group, several: bool, objects: bool) -> _Section:
    first = group.first
    count = len(group.intents)
    name = f"{first.key.kind} {code(first.key.label)}" if count == 1 else phrases.plural(first.key.kind, count)
    consequences = group.consequences
    main, more, shown = phrases.headline(first, count), *_spec_fields(first)
    if not main:
        main, more = more[:3], more[3:]
    run = [_said(c) for c in consequences if c.topic == "run" and c.text != str(first.disruption)]
    parts = [prose(part) for part in main] + run
    lines = [f"- {phrases.joined(parts)}"] if parts else []
    if count > 1:
        lines.append(f"- {phrases.names((code(phrases.name(i)) for i in group.intents), _MOST_NAMES)}")
    if more:
        lines.append(
            f"- also {phrases.joined([prose(part) for part in more[:12]])}"
            + (f" and {len(more) - 12} more" if len(more) > 12 else "")
        )
    if not first.objects_known and first.op != "repaired":
        lines.append("- its previous objects are unknown")
    others = [c for c in consequences if c.topic in ("capacity", "quota", "cause") or c.level == "warning"]
    others = [c for c in others if c.topic not in ("run", "security")]
    lines += [f"- {_said(c)}" for c in others[:_MOST_NAMES]]
    if len(others) > _MOST_NAMES:
        lines.append(f"- … and {len(others) - _MOST_NAMES} more")
    rights = [_right(c.rank, c.text, c.lines) for c in consequences if c.topic == "security"]
    told = [(count, lines) for each in group.objects for count, lines in _object(each, several)] if objects else []
    return _Section(
        f"**{name}**{_class(first.disruption, first.op)}\n",
        "".join(f"{line}\n" for line in lines),
        sorted([*rights, *shown], key=lambda right: right.rank),
        told,
        _spec(first) if objects else "",
    )


def _spec_fields(intent: IntentChange) -> tuple[list[str], list[_Right]]:
    """Return the changed fields of a spec that no fact covers: those that give no right, and all others."""
    harmless, rights = [], []
    variables: list[str] = []
    uncovered = phrases.uncovered(intent)
    for change in uncovered:
        if is_harmless(change):
            harmless.append(phrases.field(change))
        elif is_variable(change) and not change.lines:
            variables.append(phrases.field(change).removeprefix("env."))
        else:
            text = phrases.field(change)
            # A command is never cut.
            whole = says_what_runs(change) and not change.lines and phrases.is_long(change)
            rights.append(_right(RANK["runs"], text, [*value_lines(change)] if whole else change.lines))
    if variables:
        rights.append(_right(RANK["env"], f"env {', '.join(variables)}", ()))
    shown = [id(change) for change in uncovered]
    for change in intent.spec:
        if says_what_runs(change) and id(change) not in shown:
            rights.append(_right(RANK["runs"], phrases.field(change), ())._replace(in_summary=True))
    return harmless, rights


def _right(rank: int, text: str, lines: Sequence[str]) -> _Right:
    """`lines`: the whole text, or its changed lines, which are folded below all rights."""
    count = phrases.plural("line", len(lines))
    fold = f"\n<details><summary>{count}</summary>\n\n{block([f'  {text}', *lines])}\n\n</details>\n"
    return _Right(rank, f"- {prose(text)}", fold if lines else "")


def _spec(intent: IntentChange) -> str:
    """Return a new spec, folded; the manifests of KubernetesObjects are among the objects."""
    if intent.op not in ("added", "repaired") or registry.kind(intent.key.kind).has_written:
        return ""
    lines = dump(cover(intent.item.doc.value)).splitlines()
    return f"\n<details><summary>spec</summary>\n\n{block(lines, 'yaml')}\n\n</details>\n"


def _class(disruption: Disruption, op: str) -> str:
    if disruption == Disruption.DATA_LOSS:
        return " · **data loss**"
    # A removed spec stops everything anyway.
    return "" if disruption == Disruption.NONE or op == "removed" else f" · {disruption}"


def _said(consequence: Consequence) -> str:
    text = prose(consequence.text)
    return f"**{text}**" if consequence.level == "warning" and consequence.topic != "run" else text


def _object(group: ObjectGroup, several: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of equal objects: a new one that avactl does not compile is whole."""
    change = group.change
    reason = reason_of(group)
    lines = [f"{phrases.MARKS[change.op]} {title(group, several)}" + (f"   ({reason})" if reason else "")]
    if change.as_written and change.manifest is not None:
        lines += [f"+     {line}" for line in dump(cover(change.manifest.body)).splitlines()]
    for told, changed in phrases.fields(change):
        lines.append(f"    {told}")
        lines += [f"      {line}" for line in changed[:_MOST_LINES]]
        if len(changed) > _MOST_LINES:
            lines.append(f"      … {phrases.plural('more line', len(changed) - _MOST_LINES)}")
    yield len(group.ids), lines
