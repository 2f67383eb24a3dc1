"""Explain why a file is not YAML: where the slip is, which often is above the place where the parser stops."""

from __future__ import annotations

import re
from typing import Any

import yaml

from avactl.diagnostics import Diagnostic, Note, Span
from avactl.diagnostics.lookalikes import find_odd_space

_SYNTAX_HINTS = (
    ("could not find expected ':'", "a key needs a colon followed by a space"),
    ("mapping values are not allowed", "quote text that contains `: `, or check the indentation"),
    ("did not find expected key", "check the indentation of this line and the previous one"),
    ("did not find expected ',' or", "a flow list or mapping needs `,` between its values and a closing bracket"),
    ("found undefined alias", "define it with `&name` before it is used"),
    ("found unexpected end of stream", "a quote or bracket is not closed"),
    ("control characters are not allowed", "remove the control character"),
    ("found character that cannot start any token", "quote text that starts with a special character"),
    ("unknown escape character", "in double quotes, `\\` begins an escape: use single quotes, or write it twice"),
    ("found unexpected ':'", 'give the key a value: `…: ""`, or put a space after the colon'),
    ("expected <document start>", "write `---` on a line above it: the document has ended"),
    ("did not find expected '-'", "indent the keys of an entry alike, or begin the next entry with `- `"),
)


def _character_at(lines: list[str], mark: Any) -> str:
    """Return the character at a mark; "" if libyaml points past the end of the text."""
    return lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""


def _find_conflict(lines: list[str]) -> int | None:
    """Return the index of the first line of an unresolved merge conflict."""
    begin = next((index for index, line in enumerate(lines) if line.startswith("<<<<<<< ")), None)
    return begin if begin is not None and "=======" in lines[begin:] else None


_is_block_key = re.compile(r"\s*[A-Za-z][\w-]*:(\s|$)").match
_no_space = re.compile(r"\s*(?:- )?([A-Za-z][\w-]{0,60}):[^\s/:]").match
_two_keys = re.compile(r"\s*(?:- )?([A-Za-z][\w-]{0,60}): +([A-Za-z][\w-]{0,60}): ").match
_valued_key = re.compile(r"\s*(?:- )?([A-Za-z][\w-]{0,60}): +[^\s&|>#]").match
_without_colon = re.compile(r"(\s*)(?:- )?([A-Za-z][A-Za-z0-9]{0,60})( +[^\s#:](?:(?!: ).)*|\s*)").fullmatch


_MAX_LINES_ABOVE = 3
"""Lines above the place where the parser stops in which the slip is looked for."""

_separator = re.compile(r"(\s*)(--|----+|==+|[\u2010-\u2015]+|\s---)\s*").fullmatch
_fence = re.compile(r"\s*(`{3,}|~{3,})").match
_marker = re.compile(r"(<{7}|={7}|>{7}|\|{7})(\s|$)").match
_added = re.compile(r"[-+]\s+[A-Za-z][\w-]{0,60}:").match
_no_dash_space = re.compile(r"(\s*)-([A-Za-z.][^:]*)").fullmatch
_other_colon = re.compile(r"\s*(?:- )?([A-Za-z]\w{0,60})\s*[;\uff1a\u2236=]+\s*(\S.*)").fullmatch
_slashes = re.compile(r"(?:^|[\s,{\[])(//|/\*)").search
_bare_flow = re.compile(r"\s*(?:- )?([A-Za-z]\w{0,60}) +[{\[]").match

_ends_with_block_header = re.compile(r".*[:\s-][|>][-+0-9]{0,2}\s*(#.*)?").fullmatch
_MAX_BLOCK_LINES = 500
"""Lines above in which the beginning of a block scalar is looked for."""

_Slip = tuple[int, str]
"""Column of a slip, from 0, and the remedy."""


def _line_slip(line: str, above: str, below: str) -> _Slip | None:
    """Explain a line that is no YAML by itself, between its neighbours."""
    indent = len(line) - len(line.lstrip(" "))
    if _marker(line):
        return 0, "remove the line: it is left of a merge conflict"
    if _fence(line):
        return indent, "remove the line: it is Markdown"
    if _separator(line):
        return indent, "write `---` at the beginning of the line: it separates two specs"
    if _added(line) and "+" in (line[0], above[:1], below[:1]):
        return 0, "the lines come from a diff: remove those with `-`, and the `+` of the others"
    if (odd := find_odd_space(line)) and (not (before := line[: odd.start()].strip(" -")) or before.endswith(":")):
        return odd.start(), f"replace the character U+{ord(odd[0]):04X} by a space: it only looks like one"
    if glued := _no_dash_space(line):
        return len(glued[1]), f"put a space after the dash: `- {glued[2][:60]}`"
    if other := _other_colon(line):
        return other.start(1), f"write a colon and a space after the key: `{other[1]}: {other[2][:60]}`"
    if bare := _bare_flow(line):
        return bare.start(1), f"put a colon after the key: `{bare[1]}: …`"
    if comment := _slashes(line):
        return comment.start(1), "begin comments with `#`, after a space"
    if above.lstrip().startswith("- ") and len(above) - len(above.lstrip()) == indent and ":" not in line + above:
        return indent, f"begin each entry of a list with `- `: `- {line.strip()[:60]}`"
    return None


def _is_block_text(lines: list[str], number: int) -> bool:
    """Return True for a line of a block scalar, such as a script, which may look like anything."""
    indent = len(lines[number - 1]) - len(lines[number - 1].lstrip(" "))
    above = (line for line in lines[max(0, number - 1 - _MAX_BLOCK_LINES) : number - 1][::-1] if line.strip())
    header = next((line for line in above if len(line) - len(line.lstrip(" ")) < indent), "")
    return _ends_with_block_header(header) is not None


def _find_slip(lines: list[str], span: Span) -> tuple[Span, str] | None:
    """Find the line that the parser stumbled over: its own or one of those above it, the first of several alike."""
    numbers = [number for number in range(span.line, 0, -1) if lines[number - 1].strip()][: _MAX_LINES_ABOVE + 1]
    found: tuple[Span, str] | None = None
    for above, number in zip([*numbers[1:], 0], numbers, strict=True):
        below = lines[number] if number < len(lines) else ""
        slip = _line_slip(lines[number - 1], lines[above - 1] if above else "", below)
        if slip is not None and not _is_block_text(lines, number):
            found = Span(span.file, number, slip[0] + 1), slip[1]
        elif found is not None:
            break
    return found


def _has_anchor(lines: list[str], span: Span) -> bool:
    """Return True if the alias at a place has an anchor above it, in another document."""
    alias = re.match(r"\*([\w-]{1,100})", lines[span.line - 1][span.column - 1 :])
    return alias is not None and re.search(rf"&{alias[1]}(?![\w-])", "\n".join(lines[: span.line])) is not None


def _second_colon(lines: list[str], span: Span) -> tuple[Span, str] | None:
    """Explain a colon where no key can be: `metadata: name: x`, or a line above such as `image:x`, which is text."""
    if two := _two_keys(lines[span.line - 1]):
        return span, f"quote text that contains `: `; for a key, write `{two[1]}: {{{two[2]}: …}}`"
    above = next((number for number in range(span.line - 1, 0, -1) if lines[number - 1].strip()), 0)
    if not above:
        return None
    if glued := _no_space(lines[above - 1]):
        return Span(span.file, above, glued.start(1) + 1), f"put a space after the colon: `{glued[1]}: …`"
    if deeper := _valued_key(lines[above - 1]):
        indent = len(lines[span.line - 1]) - len(lines[span.line - 1].lstrip())
        if indent > deeper.start(1):
            return Span(span.file, span.line, indent + 1), f"indent it as `{deeper[1]}`, which has a value of its own"
    if bare := _without_colon(lines[above - 1]):
        hint = f"put a colon after the key: `{bare[2]}: …`; or quote text that contains `: `"
        return Span(span.file, above, bare.start(2) + 1), hint
    return None


def syntax_problem(file: str, text: str, error: yaml.YAMLError) -> Diagnostic:
    """Return the diagnostic of a text that libyaml refuses, at the slip itself where it is known."""
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        position = getattr(error, "position", None)
        before = text[:position] if isinstance(position, int) and position >= 0 else ""
        span = Span(file, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
    else:
        span = Span(file, mark.line + 1, mark.column + 1)
    lines = text.split("\n")
    if (conflict := _find_conflict(lines)) is not None:
        span = Span(file, conflict + 1, 1, 8)
        hint = "resolve the conflict and remove its three marker lines"
        return Diagnostic("yaml-syntax", "unresolved git merge conflict", span, hint=hint)
    if span.line > len(lines) or (span.line == len(lines) and not lines[-1] and span.line > 1):
        # libyaml reports the end of the stream on a line that does not exist.
        last = max(i for i, line in enumerate(lines) if line.strip())
        span = Span(file, last + 1, len(lines[last]) + 1)
    line = lines[span.line - 1]
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent and "cannot start any token" in problem:
        column = indent.index("\t") + 1
        span = Span(file, span.line, column)
        return Diagnostic("yaml-tab", "tabs cannot indent YAML", span, hint="indent with spaces")
    hint = next((hint for start, hint in _SYNTAX_HINTS if start in problem), "compare with a spec of `avactl init DIR`")
    if "mapping values are not allowed" in problem or "could not find expected ':'" in problem:
        span, hint = _second_colon(lines, span) or (span, hint)
    elif "undefined alias" in problem and _has_anchor(lines, span):
        hint = "an anchor ends with its document: share values by `template: true` and `extends`"
    if odd := find_odd_space(line):
        span = Span(file, span.line, odd.start() + 1)
        hint = f"replace the character U+{ord(odd[0]):04X} by a space: it only looks like one"
    if "{{" in line or "{%" in line:
        hint = "avactl does not render templates (`{{ … }}`); list template files under `exclude`"
    notes: tuple[Note, ...] = ()
    context, start = str(getattr(error, "context", None) or ""), getattr(error, "context_mark", None)
    if "{{" not in line and "{%" not in line and ("quoted scalar" not in context or "block" in context):
        span, hint = _find_slip(lines, span) or (span, hint)
    if start is not None and "quoted scalar" in context and "unexpected" in problem:
        # The position of the end is not helpful: the closing quote is missing somewhere before.
        span, problem = Span(file, start.line + 1, start.column + 1), "unclosed quote"
        hint = "add the closing quote"
    elif start is not None and ("alias" in context or "anchor" in context):
        span, hint = Span(file, start.line + 1, start.column + 1), "quote text that begins with `*` or `&`"
    elif start is not None and "flow" in context and span.line > start.line + 1 and _is_block_key(line):
        span = Span(file, start.line + 1, start.column + 1)
        problem, hint = "unclosed bracket", "close the bracket"
    elif "flow" in context and line[span.column - 2 : span.column - 1] == "'" and span.column > 1:
        hint = "in single quotes, write an apostrophe twice: `''`; or use double quotes"
    elif start is not None and "flow" in context and _character_at(lines, start) in ("[", "{"):
        notes = (Note(Span(file, start.line + 1, start.column + 1), "opening bracket"),)
    return Diagnostic("yaml-syntax", f"not YAML: {problem}", span, hint=hint, notes=notes)
