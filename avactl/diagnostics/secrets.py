"""Text that looks like a credential: to refuse it in specs, and to keep it out of everything that is printed."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from avactl.diagnostics.model import Diagnostic

MASK = "***"

_SHAPES = re.compile(
    "|".join(
        (
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS access key id
            r"\bLTAI[0-9A-Za-z]{12,26}\b",  # Alibaba Cloud
            r"\bAIza[0-9A-Za-z_-]{35}",  # Google API key
            r"\bya29\.[0-9A-Za-z_-]{20,}",  # Google OAuth
            r"\bgh[pousr]_[0-9A-Za-z]{20,}",  # GitHub
            r"\bgithub_pat_[0-9A-Za-z_]{22,}",
            r"\bglpat-[0-9A-Za-z_-]{20,}",  # GitLab
            r"\bhf_[0-9A-Za-z]{20,}",  # Hugging Face
            r"\bsk-(?:proj-|ant-|svcacct-|or-)[0-9A-Za-z_-]{20,}|\bsk-[0-9A-Za-z]{20,}",  # model providers
            r"\bnvapi-[0-9A-Za-z_-]{20,}",  # NVIDIA NGC
            r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}",  # Slack
            r"\b(?:npm_[0-9A-Za-z]{36}|pypi-[0-9A-Za-z_-]{50,}|dckr_pat_[0-9A-Za-z_-]{20,})",
            r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]*",  # JSON Web Token
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"']*",
            r"(?<=://)[^\s/:@\"'*]*:[^\s/@\"'$]+(?=@)",  # user:password@ in a URL
        )
    )
)

_MARKS = ("IA", "AI", "ya29.", "pat-", "sk-", "pi-", "xox", "eyJ", "PRIVATE KEY-----")
_MARKS_BEFORE_LINE = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "hf_", "npm_")
"""Each shape but the last has one of these in it. As few as can be, and those with `_` only where there is one."""
_IN_URL = re.compile(r"://[^\s/:@\"'*]*:[^\s/@\"'$]+@").search

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+").findall
_SURE = re.compile("password|passwd|passphrase|secrets?|credentials?|pwd|apikey").fullmatch
_KEY_OF = re.compile("api|access|secret|private|encryption|signing|auth|master|account|storage|ssh|deploy").fullmatch
_VOCABULARY = re.compile("pad|eos|bos|unk|mask|sep|cls|stop|start|end|special|image|video|audio|text").fullmatch
_PLAIN = re.compile(r"(?i)true|false|yes|no|on|off|none|null|auto|default|[0-9]{1,3}|[<\[{|].*[>\]}|]|\*+").fullmatch
_LONG = re.compile(r"[0-9A-Za-z+/=_-]{32,}").fullmatch
_ALNUM = re.compile(r"[0-9A-Za-z]+").findall


def _entropy(text: str) -> float:
    """Shannon entropy, bits a character."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)


def _class(character: str) -> int:
    return 1 if character.isdigit() else 2 if character.islower() else 3 if character.isupper() else 0


def _random(value: str) -> bool:
    """Long text without words in it: keys in base64. Hex alone is not: commits and digests look the same."""
    if not _LONG(value) or value.startswith("/"):
        return False
    classes = [_class(character) for character in value]
    changes = sum(a != b for a, b in pairwise(classes))
    longest = max(map(len, _ALNUM(value)), default=0)
    return {1, 2, 3} <= set(classes) and longest >= 12 and changes >= 0.35 * len(value) and _entropy(value) >= 4.2


def _named(name: str, value: str) -> bool:
    """Whether a name says that its value is a credential, and the value is one that could be."""
    words = [word.lower() for word in _WORDS(name) if not word.isdigit()]
    if not words or _PLAIN(value) or name in ("PWD", "OLDPWD"):
        return False
    if words[-1] == "id" and words[-3:-1] == ["access", "key"]:
        return True
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if _SURE(last):
        # A Secret's or a file's name is no secret: `/etc/x`, `./x`.
        return not value.startswith(("/", "./", "~/"))
    if value.startswith(("/", "./", "~/")):
        return False
    if last == "token":
        return not _VOCABULARY(before) and len(value) >= 6
    if last in ("key", "pat", "auth"):
        if last == "key" and _KEY_OF(before):
            return len(value) >= 6
        return len(value) >= 16 and _entropy(value) >= 3 and any(c.isdigit() for c in value) and "." not in value
    return False


def looks_secret(value: str, name: str = "") -> bool:
    """Whether a literal looks like a credential, by its shape or by the name of the variable that holds it.

    `$(VARIABLE)` is a reference, not a literal. Names end with what they hold: `TOKEN`, `PASSWORD`, `API_KEY`, not
    `MAX_TOKENS`, `KEY_PATH`.
    """
    text = re.sub(r"\$\([A-Za-z_][A-Za-z0-9_]*\)", "", value).strip()
    if not text or text in (":", "@"):
        return False
    if _SHAPES.search(value):
        return True
    return text == value.strip() and (_random(text) or (bool(name) and _named(name, text)))


def has_shape(text: str) -> bool:
    """Whether something in a text has the shape of a credential. Fast where nothing has: ten thousand files ask."""
    for mark in _MARKS:
        if mark in text:
            return _SHAPES.search(text) is not None
    if "_" in text:
        for mark in _MARKS_BEFORE_LINE:
            if mark in text:
                return _SHAPES.search(text) is not None
    return _IN_URL(text) is not None and _SHAPES.search(text) is not None


_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?").fullmatch
# The name is bounded and begins a word: in long text, each character would else begin one that goes to the end.
_ASSIGNED = re.compile(r"""(?<!\w)([A-Za-z_][\w.-]{0,255}+)(["']?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s,;{}\[\]"']+)""")


def redact(text: str) -> str:
    """Text with each credential in it covered; every other character stays in its column."""

    def cover(match: re.Match[str]) -> str:
        return "*" * len(match[0])

    def cover_assigned(match: re.Match[str]) -> str:
        value = match[3].strip("\"'")
        if match[1] == "secret" and _NAME(value) and not _random(value):
            return match[0]  # the kinds' own key, which names a Secret
        return f"{match[1]}{match[2]}{'*' * len(match[3])}" if looks_secret(value, match[1]) else match[0]

    return _ASSIGNED.sub(cover_assigned, _SHAPES.sub(cover, text))


def redacted(diagnostic: Diagnostic) -> Diagnostic:
    """The diagnostic, with no credential in its texts."""
    d = diagnostic
    texts = (d.message, d.label, d.hint, *(note.text for note in d.notes))
    if not any(_SHAPES.search(text) for text in texts):
        return d
    notes = tuple(note._replace(text=_SHAPES.sub(MASK, note.text)) for note in d.notes)
    message, label, hint = (_SHAPES.sub(MASK, text) for text in (d.message, d.label, d.hint))
    return replace(d, message=message, label=label, hint=hint, notes=notes)
