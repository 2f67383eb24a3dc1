"""A diff as a pull request comment: GitHub Markdown within the size limit, safe for any spec content.

Text from specs appears only in code spans and fenced blocks, where it cannot become a mention, link, HTML, emoji or
markup. Fences are longer than any run of backticks inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from avactl.base.terminal import visible_text
from avactl.base.yaml_output import dump
from avactl.change.diff import phrases
from avactl.change.diff.groups import Group, ObjectGroup, group_intents
from avactl.change.diff.model import Consequence, Diff, Disruption, IntentChange, ObjectOp
from avactl.change.diff.record import value_lines
from avactl.change.diff.rights.model import RANK
from avactl.change.diff.rights.specs import is_harmless, is_variable, says_what_runs
from avactl.change.diff.secrets import mask_credentials
from avactl.change.diff.text import FITS, NO_BASE, empty_base, object_title, reason_of
from avactl.program import registry

LIMIT = 65_000
"""Largest comment in bytes. GitHub's limit is 65,536 characters, which are at least a byte each."""
MARKER = "<!-- avactl diff -->"
"""First line of every comment, by which a bot finds its own comment to update."""

_OBJECTS: tuple[ObjectOp, ...] = ("created", "changed", "deleted", "renamed", "kept")
_MAX_SECTIONS = 20
"""Changes that are shown unfolded."""
_MAX_NAMES = 20
_MAX_LOSSES = 20
_MAX_RIGHTS = 20
"""Rights of one group that are shown unfolded."""
_MAX_LINES = 10
"""Changed lines of one value that are shown among the objects."""
_LONGEST_MESSAGE = 2000
"""Longest problem or warning, in characters."""

_IS_PLAIN_PROSE = re.compile(r"[A-Za-z0-9 ,;()→·%/-]*(?:[.:](?![/\w])[A-Za-z0-9 ,;()→·%/-]*)*").fullmatch
_IS_MARKUP = re.compile(r"\s*(?:[-+]|\d+[.)])(?:\s|$)|.*\bGH-\d", re.IGNORECASE).match
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


def code_span(text: str) -> str:
    """Return untrusted text as a code span."""
    text = visible_text(text.replace("\n", " "))
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{_fence_for(text, 1)}{pad}{text}{pad}{_fence_for(text, 1)}"


def _fence_for(text: str, least: int) -> str:
    """Return more backticks than any run of them in a text."""
    return "`" * max(least, *(len(run) + 1 for run in re.findall("`+", text)), 0)


def escape_prose(text: str) -> str:
    """Return a sentence of ours as it is, or as a code span if it contains possible markup."""
    return text if _IS_PLAIN_PROSE(text) and not _IS_MARKUP(text) else code_span(text)


def fenced_block(lines: Iterable[str], language: str = "diff") -> str:
    """Return untrusted lines as a fenced block."""
    body = "\n".join(map(visible_text, lines))
    fence = _fence_for(body, 3)
    return f"{fence}{language}\n{body}\n{fence}"


def render_markdown(diff: Diff, *, objects: bool = True, limit: int = LIMIT) -> str:
    """Return the diff as Markdown, at most `limit` bytes."""
    title = f"{MARKER}\n### {headline(diff)}\n\n"
    body = render_body(diff, objects=objects, limit=limit - _byte_size(title))
    return f"{title}{body}" if body else title.rstrip("\n") + "\n"


def headline(diff: Diff) -> str:
    """Return the title with counts: `2 intents changed · 5 objects: 4 changed, 1 deleted`."""
    if diff.empty:
        return "No changes"
    of = diff.object_counts
    parts = [f"{of[op]} {'new' if op == 'created' else op}" for op in _OBJECTS if of[op]]
    total = f"{of.total()} object{'' if of.total() == 1 else 's'}"
    objects = f"{total} {parts[0].partition(' ')[2]}" if len(parts) == 1 else f"{total}: {', '.join(parts)}"
    return f"{phrases.count_intents(diff)} · {objects if parts else 'no object changes'}"


def render_body(diff: Diff, *, objects: bool = True, limit: int = LIMIT, rest: str = REST) -> str:
    """Return the diff without its title, at most `limit` bytes; `rest` says where to find the omitted part.

    Summaries of the first changes come first, then all rights, the gravest first, then the other summaries, then
    details. What does not fit is counted, and omitted rights are a warning at the top.
    """
    head, foot = _format_head(diff), _format_foot(diff)
    sections = [_make_section(group, phrases.spans_clusters(diff), objects) for group in group_intents(diff)]
    room = (
        limit - _byte_size(head) - _byte_size(foot) - 3 * _byte_size(rest) - 600
    )  # 600: notes on omitted parts, and folds
    briefs, titles, chosen, room = _choose(sections, room)
    told = [
        {*chosen[index], *(each for each in section.rights if each.in_summary and index in briefs)}
        for index, section in enumerate(sections)
    ]
    missing = [len({*section.rights} - told[index]) for index, section in enumerate(sections)]
    shown = [index for index in range(len(sections)) if index in titles]
    hidden = sum(_count(sections[index]) for index in range(len(sections)) if index not in titles)
    details, hidden_details, specs = _format_details([sections[index] for index in shown], room, rest)
    texts = [
        sections[index].title
        + (sections[index].summary if index in briefs else "")
        + _format_rights([each for each in chosen[index] if not (each.in_summary and index in briefs)])
        + detail
        for index, detail in zip(shown, details, strict=True)
    ]
    if len(texts) > _MAX_SECTIONS + 1:
        more = f"<details><summary>{len(texts) - _MAX_SECTIONS} more changes</summary>\n"
        texts = [*texts[:_MAX_SECTIONS], more, *texts[_MAX_SECTIONS:], "</details>\n"]
    parts = [head] if head else []
    if any(missing):
        what = (
            f"{phrases.plural_kind('right', sum(missing))} of {phrases.plural_kind('change', sum(map(bool, missing)))}"
        )
        parts.append(f"> [!WARNING]\n> **{what} do not fit into this comment.** {rest}\n")
    parts += texts
    omitted = [
        (len(sections) - len(shown), "more change"),
        (hidden + hidden_details, "object" if len(shown) < len(sections) else "more object"),
        (specs, "new spec"),
        (len(shown) - len(briefs), "summary"),
    ]
    if notes := [phrases.plural_kind(noun, count) for count, noun in omitted if count]:
        parts.append(f"… {', '.join(notes)}; {rest}\n")
    return "\n".join([*parts, *([foot] if foot else [])])


def _choose(sections: Sequence[_Section], room: int) -> tuple[set[int], set[int], list[list[_Right]], int]:
    """Choose what fits: sections with their summary, with their title, the rights of each, and the rest of the room."""
    briefs: set[int] = set()
    titles: set[int] = set()
    chosen: list[list[_Right]] = [[] for _ in sections]
    first = room // 8
    for index, section in enumerate(sections[:_MAX_SECTIONS]):
        first -= _byte_size(section.title + section.summary)
        if first < 0:
            break
        briefs.add(index)
    titles |= briefs
    room -= sum(_byte_size(sections[index].title + sections[index].summary) for index in briefs)
    places = ((index, each) for index, section in enumerate(sections) for each in range(len(section.rights)))
    for index, each in sorted(places, key=lambda place: sections[place[0]].rights[place[1]].rank):
        right = sections[index].rights[each]
        if right.in_summary and index in briefs:
            continue
        cost = (
            _byte_size(right.line)
            + _byte_size(right.fold)
            + (0 if index in titles else _byte_size(sections[index].title))
        )
        if cost <= room:
            room -= cost
            titles.add(index)
            chosen[index].append(right)
    for index, section in enumerate(sections):
        if index not in briefs:
            room -= _byte_size(section.summary) + (0 if index in titles else _byte_size(section.title))
            if room < 0:
                break
            briefs.add(index)
            titles.add(index)
    return briefs, titles, chosen, max(room, 0)


def _count(section: _Section) -> int:
    return sum(count for count, _ in section.objects)


def _format_rights(rights: Sequence[_Right]) -> str:
    lines = [right.line for right in rights]
    text = "\n".join(lines[:_MAX_RIGHTS]) + "\n" if lines else ""
    if len(lines) > _MAX_RIGHTS:
        more = "\n".join(lines[_MAX_RIGHTS:])
        text += f"\n<details><summary>{len(lines) - _MAX_RIGHTS} more rights</summary>\n\n{more}\n\n</details>\n"
    return text + "".join(right.fold for right in rights)


def _format_details(sections: Sequence[_Section], room: int, rest: str) -> tuple[list[str], int, int]:
    """Return the details of each section, and the numbers of objects and new specs in none; the room is shared."""
    found = [""] * len(sections)
    hidden = specs = 0
    full = {
        index: _fold_objects(section.objects, room, rest) for index, section in enumerate(sections) if section.objects
    }
    for number, index in enumerate(sorted(full, key=lambda index: _byte_size(full[index]))):
        share = room // (len(full) - number)
        text = full[index] if _byte_size(full[index]) <= share else _fold_objects(sections[index].objects, share, rest)
        hidden += 0 if text else _count(sections[index])
        found[index] = text
        room -= _byte_size(text)
    for index, section in enumerate(sections):
        if section.spec and _byte_size(section.spec) <= room:
            found[index] += section.spec
            room -= _byte_size(section.spec)
        elif section.spec:
            specs += 1
    return found, hidden, specs


def _fold_objects(objects: Sequence[tuple[int, list[str]]], room: int, rest: str) -> str:
    """Return as many objects as fit, folded; "" if none does."""
    lines: list[str] = []
    total, shown = sum(count for count, _ in objects), 0
    room -= 3 * _byte_size(rest) + 100
    for count, told in objects:
        room -= sum(map(_byte_size, map(visible_text, told)))
        if room < 0:
            break
        lines += told
        shown += count
    if not lines:
        return ""
    if shown < total:
        lines.append(f"… {total - shown} more objects; {rest}")
    return (
        f"\n<details><summary>{phrases.plural_kind('object', total)}</summary>\n\n{fenced_block(lines)}\n\n</details>\n"
    )


def render_problems(text: str, limit: int = LIMIT) -> str:
    """Return the head's problems as text, in place of a diff."""
    body = fit_lines(text.splitlines(), limit - 500, "`avactl validate` shows all")
    return f"{MARKER}\n### It does not compile\n\n{fenced_block(body, 'text')}\n"


def fit_lines(lines: Sequence[str], room: int, rest: str) -> list[str]:
    """Return the lines that fit into `room` bytes, and how many do not, with `rest`."""
    for number, line in enumerate(lines):
        room -= _byte_size(line)
        if room < 0:
            return [*lines[:number], f"… {phrases.plural_kind('more line', len(lines) - number)}; {rest}"]
    return list(lines)


def rights_size(diff: Diff) -> int:
    """Return the size of all rights with the titles of their changes, in bytes."""
    sections = [_make_section(group, several=False, objects=False) for group in group_intents(diff)]
    return sum(
        _byte_size(section.title) + sum(_byte_size(right.line) + _byte_size(right.fold) for right in section.rights)
        for section in sections
    )


def _byte_size(text: str) -> int:
    return len(text.encode()) + 1


def _bound_text(text: str) -> str:
    return phrases.shorten_middle(text, _LONGEST_MESSAGE)


def _format_head(diff: Diff) -> str:
    lines: list[str] = []
    losses = [
        f"> - **{intent.key.kind} {code_span(intent.key.label)}** {escape_prose(consequence.text)}"
        for intent in diff.intents
        for consequence in intent.consequences
        if consequence.level == "danger"
    ]
    if losses:
        lines += ["> [!CAUTION]", "> **Data loss**", *losses[:_MAX_LOSSES]]
        if len(losses) > _MAX_LOSSES:
            lines.append(f"> - … and {len(losses) - _MAX_LOSSES} more")
        lines.append("")
    if empty_base(diff.base_problems):
        lines += [f"{NO_BASE.capitalize()}.", ""]
    elif diff.base_problems:
        first = diff.base_problems[0]
        count = f"{len(diff.base_problems)} error{'' if len(diff.base_problems) == 1 else 's'}"
        what = f"The base does not compile ({count}): specs that could be compiled are compared, the rest count as new."
        lines += ["> [!WARNING]", f"> {what}", f"> {code_span(_bound_text(f'{first.span}: {first.message}'))}", ""]
    return "\n".join(lines)


def _format_foot(diff: Diff) -> str:
    lines = [
        f"- warning {code_span(_bound_text(f'{w.id}: {w.message} ({w.span})'))}" for w in diff.warnings[:_MAX_LOSSES]
    ]
    if len(diff.warnings) > _MAX_LOSSES:
        lines.append(f"- … and {len(diff.warnings) - _MAX_LOSSES} more warnings")
    if lines:
        lines.append("")
    if diff.fits:
        lines += [f"*{FITS}*", ""]
    return "\n".join(lines)


def _make_section(group: Group, several: bool, objects: bool) -> _Section:
    first = group.first
    count = len(group.intents)
    name = (
        f"{first.key.kind} {code_span(first.key.label)}" if count == 1 else phrases.plural_kind(first.key.kind, count)
    )
    consequences = group.consequences
    main, more, shown = phrases.intent_headline(first, count), *_spec_fields(first)
    if not main:
        main, more = more[:3], more[3:]
    run = [_format_consequence(c) for c in consequences if c.topic == "run" and c.text != str(first.disruption)]
    parts = [escape_prose(part) for part in main] + run
    lines = [f"- {phrases.join_parts(parts)}"] if parts else []
    if count > 1:
        lines.append(f"- {phrases.join_names((code_span(phrases.intent_label(i)) for i in group.intents), _MAX_NAMES)}")
    if more:
        lines.append(
            f"- also {phrases.join_parts([escape_prose(part) for part in more[:12]])}"
            + (f" and {len(more) - 12} more" if len(more) > 12 else "")
        )
    if not first.objects_known and first.op != "repaired":
        lines.append("- its previous objects are unknown")
    others = [c for c in consequences if c.topic in ("capacity", "quota", "cause") or c.level == "warning"]
    others = [c for c in others if c.topic not in ("run", "security")]
    lines += [f"- {_format_consequence(c)}" for c in others[:_MAX_NAMES]]
    if len(others) > _MAX_NAMES:
        lines.append(f"- … and {len(others) - _MAX_NAMES} more")
    rights = [_make_right(c.rank, c.text, c.lines) for c in consequences if c.topic == "security"]
    told = (
        [(count, lines) for each in group.objects for count, lines in _format_object(each, several)] if objects else []
    )
    return _Section(
        f"**{name}**{_format_disruption(first.disruption, first.op)}\n",
        "".join(f"{line}\n" for line in lines),
        sorted([*rights, *shown], key=lambda right: right.rank),
        told,
        _fold_spec(first) if objects else "",
    )


def _spec_fields(intent: IntentChange) -> tuple[list[str], list[_Right]]:
    """Return the changed fields of a spec that no fact covers: those that give no right, and all others."""
    harmless, rights = [], []
    variables: list[str] = []
    uncovered = phrases.uncovered_changes(intent)
    for change in uncovered:
        if is_harmless(change):
            harmless.append(phrases.show_field(change))
        elif is_variable(change) and not change.lines:
            variables.append(phrases.show_field(change).removeprefix("env."))
        else:
            text = phrases.show_field(change)
            # A command is never cut.
            whole = says_what_runs(change) and not change.lines and phrases.is_long(change)
            rights.append(_make_right(RANK["runs"], text, [*value_lines(change)] if whole else change.lines))
    if variables:
        rights.append(_make_right(RANK["env"], f"env {', '.join(variables)}", ()))
    shown = [id(change) for change in uncovered]
    for change in intent.spec:
        if says_what_runs(change) and id(change) not in shown:
            rights.append(_make_right(RANK["runs"], phrases.show_field(change), ())._replace(in_summary=True))
    return harmless, rights


def _make_right(rank: int, text: str, lines: Sequence[str]) -> _Right:
    """`lines`: the whole text, or its changed lines, which are folded below all rights."""
    count = phrases.plural_kind("line", len(lines))
    fold = f"\n<details><summary>{count}</summary>\n\n{fenced_block([f'  {text}', *lines])}\n\n</details>\n"
    return _Right(rank, f"- {escape_prose(text)}", fold if lines else "")


def _fold_spec(intent: IntentChange) -> str:
    """Return a new spec, folded; the manifests of KubernetesObjects are among the objects."""
    if intent.op not in ("added", "repaired") or registry.get_kind(intent.key.kind).has_written:
        return ""
    lines = dump(mask_credentials(intent.item.doc.value)).splitlines()
    return f"\n<details><summary>spec</summary>\n\n{fenced_block(lines, 'yaml')}\n\n</details>\n"


def _format_disruption(disruption: Disruption, op: str) -> str:
    if disruption == Disruption.DATA_LOSS:
        return " · **data loss**"
    # A removed spec stops everything anyway.
    return "" if disruption == Disruption.NONE or op == "removed" else f" · {disruption}"


def _format_consequence(consequence: Consequence) -> str:
    text = escape_prose(consequence.text)
    return f"**{text}**" if consequence.level == "warning" and consequence.topic != "run" else text


def _format_object(group: ObjectGroup, several: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of equal objects: a new one that avactl does not compile is whole."""
    change = group.change
    reason = reason_of(group)
    lines = [f"{phrases.MARKS[change.op]} {object_title(group, several)}" + (f"   ({reason})" if reason else "")]
    if change.as_written and change.manifest is not None:
        lines += [f"+     {line}" for line in dump(mask_credentials(change.manifest.body)).splitlines()]
    for told, changed in phrases.shown_fields(change):
        lines.append(f"    {told}")
        lines += [f"      {line}" for line in changed[:_MAX_LINES]]
        if len(changed) > _MAX_LINES:
            lines.append(f"      … {phrases.plural_kind('more line', len(changed) - _MAX_LINES)}")
    yield len(group.ids), lines
