"""Detect text that looks like a credential, in specs and in output."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from operator import ne

_IN_QUERY = (
    r"[?&](?i:sig|token|[a-z]+[_-]token|x-(?:amz|goog)-(?:signature|security-token)|(?:[a-z]+[_-])?api[_-]?key|"
    r"password|passwd|pwd|(?:client[_-])?secret)=[^\s&#\"'$<{*][^\s&#\"']{7,}"
)
"""Credentials in the query of a URL, such as the signature of a presigned one."""


@cache
def credential_shapes() -> re.Pattern[str]:
    """Return the pattern of all credentials that are known by their shape. Compiled on demand: that takes long."""
    return re.compile(
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
                # Anchored at a word's start: otherwise each `eyJ` inside a word would be tried as a beginning.
                r"(?<![0-9A-Za-z_-])eyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]*",  # JSON Web Token
                r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"']*",
                _IN_QUERY,
                # HTTP headers, and .netrc
                r"\b(?:[Bb]earer|Basic) +(?=[A-Za-z._~+/=-]*[0-9])[0-9A-Za-z._~+/=-]{12,}",
                r"\blogin[ \t]+\S+[ \t]+password[ \t]+[^\s\"'$]+",
                r"(?<=://)[^\s/:@\"'*]*:[^\s/\"'$]+(?=@)",  # user:password@ in a URL
            )
        )
    )


_SHAPE_MARKS = ("IA", "AI", "ya29.", "pat-", "sk-", "pi-", "xox", "eyJ", "PRIVATE KEY-----", "earer ", "Basic ")
_MARKS_BEFORE_LINE = ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "_pat_", "hf_", "npm_")
"""Each shape outside of URLs and .netrc contains one of these substrings. Kept few, and with `_` only where needed."""
_IN_QUERY_OR_NETRC = re.compile(rf"{_IN_QUERY}|\blogin[ \t]+\S+[ \t]+password[ \t]").search
_IN_URL = re.compile(r"://[^\s/:@\"'*]*:[^\s/\"'$]+@").search

_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+").findall
_CREDENTIAL_WORDS = re.compile("password|passwd|passphrase|secrets?|credentials?|pwd|apikey").fullmatch
_KEY_OF = re.compile("api|access|secret|private|encryption|signing|auth|master|account|storage|ssh|deploy").fullmatch
_VOCABULARY_WORDS = re.compile("pad|eos|bos|unk|mask|sep|cls|stop|start|end|special|image|video|audio|text").fullmatch
_PLAIN_VALUES = re.compile(
    r"(?i)true|false|yes|no|on|off|none|null|auto|default|[0-9]{1,3}|[<\[{|].*[>\]}|]|\*+"
).fullmatch
_IS_LONG_TOKEN = re.compile(r"[0-9A-Za-z+/=_-]{32,}").fullmatch
_ALNUM_RUNS = re.compile(r"[0-9A-Za-z]+").findall


def _shannon_entropy(text: str) -> float:
    """Return the Shannon entropy in bits per character."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)


_CLASSES = bytes(1 if c.isdigit() else 2 if c.islower() else 3 if c.isupper() else 0 for c in map(chr, range(256)))
"""Digit, lower case or upper case, by ASCII character: `_IS_LONG_TOKEN` matches no others."""


def is_random(value: str) -> bool:
    """Return whether a value is long random text, such as a base64 key. Hex is not, because digests look the same."""
    if not _IS_LONG_TOKEN(value) or value.startswith("/"):
        return False
    classes = value.encode().translate(_CLASSES)
    changes = sum(map(ne, classes, classes[1:]))
    longest = max(map(len, _ALNUM_RUNS(value)), default=0)
    return (
        {1, 2, 3} <= set(classes) and longest >= 12 and changes >= 0.35 * len(value) and _shannon_entropy(value) >= 4.2
    )


def _is_named_credential(name: str, value: str) -> bool:
    """Return whether a variable's name indicates a credential and the value could be one."""
    words = [word.lower() for word in _NAME_WORDS(name) if not word.isdigit()]
    if not words or _PLAIN_VALUES(value) or name in ("PWD", "OLDPWD"):
        return False
    if words[-1] == "id" and words[-3:-1] == ["access", "key"]:
        return True
    if "webhook" in words and "://" in value:
        return True  # whoever has the URL may post
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if _CREDENTIAL_WORDS(last):
        # The name of a Secret or file is not a credential: `/etc/x`, `./x`.
        return not value.startswith(("/", "./", "~/"))
    if value.startswith(("/", "./", "~/")):
        return False
    if last == "data" and before == "key":
        return len(value) >= 16  # `client-key-data` of a kubeconfig
    if last == "token":
        return not _VOCABULARY_WORDS(before) and len(value) >= 6
    if last in ("key", "pat", "auth"):
        if last == "key" and _KEY_OF(before):
            return len(value) >= 6
        return (
            len(value) >= 16 and _shannon_entropy(value) >= 3 and any(c.isdigit() for c in value) and "." not in value
        )
    return False


def looks_secret(value: str, name: str = "") -> bool:
    """Return whether a literal looks like a credential, by its shape or by its variable's name.

    `$(VARIABLE)` is a reference, not a literal. Names count by their last word: `TOKEN`, `PASSWORD`, `API_KEY`, but not
    `MAX_TOKENS`, `KEY_PATH`.
    """
    text = re.sub(r"\$\([A-Za-z_][A-Za-z0-9_]*\)", "", value).strip()
    if not text or text in (":", "@"):
        return False
    if has_shape(value):
        return True
    return text == value.strip() and (is_random(text) or (bool(name) and _is_named_credential(name, text)))


def has_shape(text: str) -> bool:
    """Return whether a text contains the shape of a credential. Fast for negatives: ten thousand files are scanned."""
    for mark in _SHAPE_MARKS:
        if mark in text:
            return credential_shapes().search(text) is not None
    if "_" in text:
        for mark in _MARKS_BEFORE_LINE:
            if mark in text:
                return credential_shapes().search(text) is not None
    if ("?" in text or "login" in text) and _IN_QUERY_OR_NETRC(text) is not None:
        return credential_shapes().search(text) is not None
    return _IN_URL(text) is not None and credential_shapes().search(text) is not None


NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?").fullmatch


NAMES_OF_SECRETS = frozenset(("secret", "pullSecrets", "imagePullSecrets"))
"""Keys of avactl's kinds whose values are the names of Secrets."""


def secret_paths(value: object, name: str = "") -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each text within a value of any type that looks like a credential, at any depth."""
    ahead: list[tuple[object, str, tuple[str | int, ...]]] = [(value, name, ())]  # values may be deeply nested
    while ahead:
        value, name, path = ahead.pop()
        if isinstance(value, dict):
            own = value.get("name")
            names = {"value": own if isinstance(own, str) else name}
            ahead += [(inner, names.get(key, str(key)), (*path, key)) for key, inner in value.items()]
        elif isinstance(value, list):
            ahead += [(inner, name, (*path, index)) for index, inner in enumerate(value)]
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            if name in NAMES_OF_SECRETS and isinstance(value, str) and NAME(value) and not is_random(value):
                continue
            if looks_secret(str(value), name):
                yield path


def holds_secret(value: object, name: str = "") -> bool:
    """Return whether a value of any type contains text that looks like a credential, at any depth."""
    return next(secret_paths(value, name), None) is not None
