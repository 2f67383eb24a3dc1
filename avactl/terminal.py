"""Text of others for terminals and CI logs: what it says is shown, what it would make them do is not done.

Sources: GitHub's actions/runner (`ActionCommand`: `::` begins a line behind blanks, `##[` stands anywhere), Azure
Pipelines' agent (`##vso[` anywhere), GitLab's job logs (`section_start:` and `section_end:`).
"""

from __future__ import annotations

import os
import re
import sys

_COMMAND = re.compile(r"(#(?=#(?:vso)?\[)|^[^\S\n]*:(?=:)|section(?=_(?:start|end):))[#:_]", re.MULTILINE)


def visible(text: str) -> str:
    """Text on one line without control characters, each still one column wide; a tab is a blank."""
    if text.isascii() and text.isprintable():
        return text
    if not text.isascii():
        # A file's name that is not UTF-8 here, by the locale or on disk, and half of a surrogate pair in an answer.
        text = text.encode("utf-8", "surrogateescape" if _escaped(text) else "replace").decode("utf-8", "replace")
    return "".join(ch if ch.isprintable() else " " if ch == "\t" else "�" for ch in text)


def _escaped(text: str) -> bool:
    """Return True if all surrogates in a text stand for bytes that are not UTF-8."""
    return all(not "\ud800" <= ch <= "\udfff" or "\udc80" <= ch <= "\udcff" for ch in text)


def inert(text: str) -> str:
    """Lines of output without commands to the program that runs a pipeline; every character stays in its column."""
    if "##" not in text and "::" not in text and "section_" not in text:
        return text
    return _COMMAND.sub(r"\1 ", text)


def shortened(text: str, most: int = 400) -> str:
    """Text of at most so many characters: of a longer one the beginning and the end, which say what it is about."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


def colour(stream: object = None) -> bool:
    """Return True if output to a stream, by default standard output, is to have colours.

    Only terminals have them, and none where NO_COLOR is set (no-color.org).
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream or sys.stdout, "isatty", lambda: False)())
