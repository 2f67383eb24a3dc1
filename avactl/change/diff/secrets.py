"""Mask credentials in values. Specs cannot contain any, but an older base or a plug-in's kind may."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from avactl.change.diff.fields import option_of_word
from avactl.change.diff.model import ABSENT
from avactl.diagnostics.redaction import MASK, redact_text
from avactl.diagnostics.secrets import looks_secret

_IS_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?").fullmatch
_NAME_SECRETS = frozenset({"secret", "pullSecrets"})
"""Keys of kinds whose values are names of Secrets."""


def mask_credentials(value: Any, name: str = "") -> Any:
    """Mask credentials in a value at any depth. `name` is the value's name, such as `WANDB_API_KEY`."""
    if isinstance(value, str):
        return cover_text(value, name)
    if isinstance(value, dict):
        # An environment variable has its name next to its value.
        own = value.get("name")
        return {
            key: mask_credentials(inner, own if key == "value" and isinstance(own, str) else str(key))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [mask_credentials(inner, option_of_word(value, index) or name) for index, inner in enumerate(value)]
    return value if value is not ABSENT else ABSENT


@lru_cache(maxsize=4096)  # the values of a fleet repeat
def cover_text(text: str, name: str = "") -> str:
    """Mask credentials in a text, so that not even their length shows."""
    if name in _NAME_SECRETS and _IS_NAME(text):
        name = ""  # the name of a Secret is not a credential; a text with a credential's shape is masked anyway
    if looks_secret(text, name) and "\n" not in text and not text.startswith("-"):
        return MASK
    return re.sub(r"\*{4,}", MASK, redact_text(text))
