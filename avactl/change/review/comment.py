"""Compose the comment: problems, changed intents with their consequences, further sections; objects are folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from avactl.change.diff import Diff, phrases
from avactl.change.diff.consequences import WORKLOADS
from avactl.change.diff.groups import group_intents
from avactl.change.diff.markdown import (
    REST,
    code_span,
    escape_prose,
    fenced_block,
    fit_lines,
    headline,
    render_body,
    rights_size,
)
from avactl.change.diff.model import Disruption, IntentChange
from avactl.change.diff.record import render_record
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.text import SourceText, render_text

_MAX_ENVIRONMENTS, _MAX_NAMES, _LONGEST = 5, 20, 120
_SMALLEST = 2_000
"""Bytes guaranteed to every part, however long the others are."""


class CommentSection(NamedTuple):
    """A further part of the comment, such as the plan."""

    title: str
    body: str
    """Markdown; text from specs only in code spans and blocks."""


@dataclass(frozen=True, slots=True)
class Review:
    """The contents of the comment."""

    base: str
    """Revision, formatted for people."""
    head: str
    problems: Sequence[Diagnostic] = ()
    """Errors and warnings of the head."""
    diff: Diff | None = None
    """None if the head does not compile."""
    sections: Sequence[CommentSection] = ()
    elsewhere: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Changed files of environments that are not compared, by environment."""

    @property
    def ok(self) -> bool:
        """Return whether the head has no errors."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def quiet(self) -> bool:
        """Return whether there is nothing to report, so that no new comment is needed."""
        return self.unchanged and not self.elsewhere

    @property
    def unchanged(self) -> bool:
        """Return whether the compared objects are the same, without errors and warnings."""
        return self.ok and self.diff is not None and self.diff.empty and not self.diff.warnings


class Artifact(NamedTuple):
    """Link to the full diff."""

    name: str
    url: str = ""

    def __str__(self) -> str:
        return f"[{code_span(self.name)}]({quote(self.url, safe=':/?&=#%~')})" if self.url else code_span(self.name)


def marker(identity: str) -> str:
    """Return the hidden first line of the comment; `identity` tells spec directories of one git repository apart."""
    safe = quote(identity, safe="/._ ").replace("--", "-%2D")  # `--` ends an HTML comment
    return f"<!-- avactl comment: {safe} -->"


def compose(review: Review, identity: str, source: SourceText, *, limit: int, artifact: Artifact | None = None) -> str:
    """Return the comment, at most `limit` bytes. `source` returns the text of a file, for excerpts around problems."""
    rest = f"full diff: {artifact}" if artifact else REST
    where = f" in {code_span(identity)}" if identity != "." else ""
    begin, end = [marker(identity)], _foot(review, artifact)
    room = limit - sum(_size(part) for part in (*begin, end)) - 500
    # Rights are the last that a comment omits.
    free = room if review.diff is None else max(room - rights_size(review.diff) - _SMALLEST, 2 * _SMALLEST)
    parts: list[str] = []
    if not review.ok:
        parts += _problems(review, where, source, room if review.diff is None else min(room, free) // 2)
    parts += _elsewhere(review)
    if review.unchanged:
        parts.append(f"avactl: no changes{where}\n")
    elif review.diff is not None:
        title = f"### {headline(review.diff)}{where}\n"
        glance = _glance(review.diff)
        parts += [title, *([f"{glance}\n"] if glance else [])]
        each = max(min(room // 4, free // 2), _SMALLEST)
        sections = [_section(section, each) for section in review.sections if section.body.strip()]
        left = room - sum(map(_size, parts)) - sum(map(_size, sections))
        parts += [render_body(review.diff, limit=max(left, _SMALLEST), rest=rest), *sections]
    return "\n".join([*begin, *(part for part in parts if part), end])


def _elsewhere(review: Review) -> list[str]:
    found = []
    for name, files in list(review.elsewhere.items())[:_MAX_ENVIRONMENTS]:
        shown = phrases.join_names((code_span(phrases.shorten_middle(each, _LONGEST)) for each in files), 3)
        told = f"⚠️ Files of environment {code_span(name)} change, too: {shown}."
        found.append(f"{told} Their effect is not in this comment: {code_span(f'avactl diff --environment {name}')}\n")
    if len(review.elsewhere) > _MAX_ENVIRONMENTS:
        others = phrases.join_names(map(code_span, list(review.elsewhere)[_MAX_ENVIRONMENTS:]), _MAX_NAMES)
        found.append(f"⚠️ Files of further environments change, too: {others}.\n")
    return found


def whole(review: Review, source: SourceText) -> str:
    """Return all problems and the full diff as text, for the artifact."""
    problems = render_text(review.problems, source, False) if not review.ok else ""
    return problems + (render_record(review.diff) if review.diff is not None else "")


def _size(text: str) -> int:
    return len(text.encode()) + 1


def _problems(review: Review, where: str, source: SourceText, room: int) -> list[str]:
    errors = sum(problem.severity == "error" for problem in review.problems)
    count = f"{errors} error{'' if errors == 1 else 's'}"
    broken = review.diff is None
    title = f"### ❌ {'It does not compile' if broken else 'Policies'}{where}: {count}\n"
    told = [d for d in review.problems if broken or d.severity == "error"]
    text = render_text(told, source, False).rstrip("\n")
    lines = fit_lines(text.splitlines(), room, "`avactl validate` shows all")
    return [title, f"{fenced_block(lines, 'text')}\n"]


def _section(section: CommentSection, room: int) -> str:
    lines = fit_lines(section.body.strip("\n").splitlines(), room, "`avactl plan` shows all")
    lines += ["\n</details>"] * sum(told.count("<details>") - told.count("</details>") for told in lines)
    return "\n".join([f"### {section.title}\n", *lines, ""])


def _foot(review: Review, artifact: Artifact | None) -> str:
    parts = [f"compared {escape_prose(review.base)} with {escape_prose(review.head)}"]
    if artifact and not review.quiet:
        parts.append(f"full diff: {artifact}")
    return f"<sub>{' · '.join(parts)}</sub>\n"


def _glance(diff: Diff) -> str:
    """Summarise many changes in one line: data loss, stopped and restarted workloads, waiting work."""
    if len(group_intents(diff)) < 3:
        return ""
    lost = _kinds(i for i in diff.intents if i.disruption == Disruption.DATA_LOSS)
    stopped = _kinds(i for i in diff.intents if i.op == "removed" and _disturbs(i))
    restarted = _kinds(i for i in diff.intents if i.op != "removed" and _disturbs(i))
    warned = (c for i in diff.intents for c in i.consequences if c.level == "warning")
    waits = {c.text for c in warned if c.topic in ("capacity", "quota")}
    parts = []
    if lost:
        parts.append(f"**Data loss: {lost}**")
    if stopped:
        parts.append(f"Stopped: {stopped}")
    if restarted or not stopped:
        parts.append(f"Restarted: {restarted}" if restarted else "Nothing restarts")
    if waits:
        parts.append(f"**Too small: {len(waits)} {'quota or pool' if len(waits) == 1 else 'quotas and pools'}**")
    return phrases.join_parts(parts)


def _disturbs(intent: IntentChange) -> bool:
    """Return whether the change stops pods of a spec."""
    return any(
        change.id.kind in WORKLOADS and change.op != "created" and change.disruption >= Disruption.POD_RESTART
        for change in intent.objects
    )


def _kinds(intents: Iterable[IntentChange]) -> str:
    counts = Counter(intent.key.kind for intent in intents)
    return ", ".join(phrases.plural_kind(kind, count) for kind, count in counts.items())
