"""Mask credentials in all output."""

from __future__ import annotations

import re
from dataclasses import replace

from avactl.base.terminal import shorten_middle
from avactl.diagnostics.model import Diagnostic
from avactl.diagnostics.secrets import NAME, NAMES_OF_SECRETS, credential_shapes, is_random, looks_secret

MASK = "***"

_REFUSAL = (
    r"(?:Required|Invalid|Unsupported|Duplicate) value|Not found|Forbidden|Too (?:long|many|few)|Internal error"
    r"|duplicate entries for key|field not declared in schema|expected [a-z]+, got"
)
"""Reasons with which the API server refuses a field: after its path, they are no value of it."""
_REFUSED_VALUE = re.compile(
    r"""(?<!\w)([A-Za-z_][\w.-]{0,255}+)(: (?:Invalid|Unsupported|Duplicate) value: )"""
    r"""("(?:[^"\\]|\\.)*+"|'[^']*'|[^\s,;{}\[\]"']+)"""
)

# The name is bounded and anchored at a word's start, so that matching stays linear in long text.
_ASSIGNED_VALUE = re.compile(
    r"""(?<!\w)([A-Za-z_][\w.-]{0,255}+)(["']?\s*[:=](?:[^\S\n]*|\s*+(?!\S*:(?:\s|\Z))))"""
    rf"""(?!(?<=:\x20)(?:{_REFUSAL})(?![^\s:,;]))("[^"]*"|'[^']*'|[^\s,;{{}}\[\]"']+)"""
)
"""A name and its value, which may be on the next line, unless that begins with another name."""

_IN_BRACKETS = re.compile(
    r"""(?<!\w)([A-Za-z_][\w.-]{0,255}+)(["']?\s{0,9}[:=]\s{0,9})([\[{][^][{}\n]*+)(?=[]}\n]|\Z)"""
)
"""A list or a mapping as a value."""
_NAMED_ENTRY = re.compile(
    r"""(?<!\w)(name["']?\s{0,9}:\s{0,9}["']?)([A-Za-z_][\w.-]{0,255}+)(["']?\s{0,9},\s{0,9}["']?value["']?\s{0,9}:\s{0,9})"""
    r"""("[^"]*"|'[^']*'|[^\s,;{}\[\]"']+)"""
)
"""An environment variable in Kubernetes' form: `{name: TOKEN, value: …}`."""
_OPTION_VALUE = re.compile(r"""(?<!\S)--([A-Za-z][\w.-]{0,255}+)( {1,9})([^\s,;{}\[\]"'=-][^\s,;{}\[\]"']*)""")
_WORD = re.compile(r"[^\s,;:={}\[\]\"'()`]+")
_LONG_WORD = re.compile(r"(?<![0-9A-Za-z+/=_-])[0-9A-Za-z+/=_-]{32,}")


def redact_text(text: str) -> str:
    """Mask each credential in a text; every other character stays in its column."""

    def cover(match: re.Match[str]) -> str:
        return "*" * len(match[0])

    def cover_random(match: re.Match[str]) -> str:
        return cover(match) if is_random(match[0]) else match[0]

    def cover_words(match: re.Match[str]) -> str:
        name = match[1]
        if name.rpartition(".")[2] in NAMES_OF_SECRETS:
            return match[0]
        words = _WORD.sub(lambda word: cover(word) if looks_secret(word[0], name) else word[0], match[3])
        return f"{name}{match[2]}{words}"

    def cover_entry(match: re.Match[str]) -> str:
        value = match[4].strip("\"'")
        return f"{match[1]}{match[2]}{match[3]}{'*' * len(match[4])}" if looks_secret(value, match[2]) else match[0]

    def cover_option(match: re.Match[str]) -> str:
        return f"--{match[1]}{match[2]}{'*' * len(match[3])}" if looks_secret(match[3], match[1]) else match[0]

    def cover_assigned(match: re.Match[str]) -> str:
        value = match[3].strip("\"'")
        if match[1].rpartition(".")[2] in NAMES_OF_SECRETS and NAME(value) and not is_random(value):
            return match[0]
        if looks_secret(value, match[1]):
            return f"{match[1]}{match[2]}{'*' * len(match[3])}"
        if match[3][0] in "\"'":  # which holds no such quote, so that this goes no deeper than there are quotes
            return (
                f"{match[1]}{match[2]}{match[3][0]}{_ASSIGNED_VALUE.sub(cover_assigned, match[3][1:-1])}{match[3][0]}"
            )
        return match[0]

    text = _LONG_WORD.sub(cover_random, credential_shapes().sub(cover, text))
    text = _NAMED_ENTRY.sub(cover_entry, _IN_BRACKETS.sub(cover_words, text))
    text = _REFUSED_VALUE.sub(cover_assigned, text)
    return _ASSIGNED_VALUE.sub(cover_assigned, _OPTION_VALUE.sub(cover_option, text))


_MAX_TEXT_LENGTH = 2000
"""Longest text of a diagnostic, in characters."""


def redact_diagnostic(diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic with credentials masked and texts truncated."""
    d = diagnostic
    if max(len(d.message), len(d.label), len(d.hint)) > _MAX_TEXT_LENGTH:
        message, label, hint = (shorten_middle(text, _MAX_TEXT_LENGTH) for text in (d.message, d.label, d.hint))
        d = replace(d, message=message, label=label, hint=hint)
    texts = (d.message, d.label, d.hint, *(note.text for note in d.notes))
    if not any(credential_shapes().search(text) for text in texts):
        return d
    notes = tuple(note._replace(text=credential_shapes().sub(MASK, note.text)) for note in d.notes)
    message, label, hint = (credential_shapes().sub(MASK, text) for text in (d.message, d.label, d.hint))
    return replace(d, message=message, label=label, hint=hint, notes=notes)
