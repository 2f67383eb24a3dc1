"""Text for people: untrusted text escaped, so that it is shown but not interpreted, and counts and durations.

Sources: GitHub's actions/runner (`ActionCommand`: `::` at the start of a line after blanks, `##[` anywhere), Azure
Pipelines' agent (`##vso[` anywhere), GitLab's job logs (`section_start:` and `section_end:`).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

_CI_COMMAND = re.compile(r"(#(?=#(?:vso)?\[)|^[^\S\n]*:(?=:)|section(?=_(?:start|end):))[#:_]", re.MULTILINE)


def visible_text(text: str) -> str:
    """Return text on one line, with control characters replaced by one column each and tabs by blanks."""
    if text.isascii() and text.isprintable():
        return text
    if not text.isascii():
        # A file's name that is not UTF-8 here, by the locale or on disk, and half of a surrogate pair in an answer.
        text = text.encode("utf-8", "surrogateescape" if _has_escaped_bytes(text) else "replace").decode(
            "utf-8", "replace"
        )
    return "".join(ch if ch.isprintable() else " " if ch == "\t" else "�" for ch in text)


def _has_escaped_bytes(text: str) -> bool:
    """Return True if all surrogates in a text stand for bytes that are not UTF-8."""
    return all(not "\ud800" <= ch <= "\udfff" or "\udc80" <= ch <= "\udcff" for ch in text)


def inert_text(text: str) -> str:
    """Return lines of output without commands for CI systems; every character stays in its column."""
    if "##" not in text and "::" not in text and "section_" not in text:
        return text
    return _CI_COMMAND.sub(r"\1 ", text)


def json_output(data: Any) -> str:
    """Return data as indented JSON with a newline at its end, without commands for CI systems and lone surrogates.

    Commands are taken apart by escapes within texts, so that a parser reads the same data.
    """
    import orjson  # most commands do not need it

    try:
        text = orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()
    except orjson.JSONEncodeError:  # the name of a file that is not UTF-8
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        text = text.encode("utf-8", "surrogateescape" if _has_escaped_bytes(text) else "replace").decode(
            "utf-8", "replace"
        )
    return _inert_json(text)


def json_line(data: Any) -> bytes:
    """Return data as one line of JSON, without commands for CI systems. Raises orjson.JSONEncodeError."""
    import orjson

    line = orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE)
    if b"##" not in line and b"section_" not in line:
        return line
    return _inert_json(line.decode()).encode()


def _inert_json(text: str) -> str:
    if inert_text(text) == text:
        return text
    return _CI_COMMAND.sub(lambda found: f"{found[1]}\\u{ord(found[0][-1]):04x}", text)


def count_text(count: int, one: str, many: str = "") -> str:
    """Format a count: `1 pod`, `1,281,167 objects`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def join_words(words: Sequence[str], word: str = "and") -> str:
    """Return `A, B and C`; "" if there are none."""
    return f"{', '.join(words[:-1])} {word} {words[-1]}" if words[1:] else "".join(words)


def amount_text(value: float) -> str:
    """Format a number with three digits: `1.23 k`, `45.6`."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def duration_text(seconds: float) -> str:
    """Format a duration in its largest unit: `12 min`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def shorten_middle(text: str, most: int = 400) -> str:
    """Truncate a text in the middle, keeping its beginning and end."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


def use_colour(stream: object = None) -> bool:
    """Return True if output to a stream, by default standard output, should be coloured.

    That is the case for terminals, unless NO_COLOR is set (no-color.org).
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream or sys.stdout, "isatty", lambda: False)())
