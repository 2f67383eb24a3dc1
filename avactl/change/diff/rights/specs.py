"""Fields of specs that give no right, whatever their values are."""

from __future__ import annotations

import re

from avactl.change.diff.model import FieldChange

_HARMLESS_FIELDS = frozenset(
    (
        "borrow",
        "budget",
        "cost",
        "count",
        "cpu",
        "description",
        "every",
        "gpu",
        "gpus",
        "guaranteed",
        "keep",
        "labels",
        "link",
        "linkPolicy",
        "machines",
        "max",
        "memory",
        "min",
        "nodes",
        "percent",
        "priority",
        "quota",
        "replicas",
        "retries",
        "sharedMemory",
        "size",
        "storage",
        "suspended",
        "timeout",
        "version",
        "versions",
    )
)
_COMMAND_FIELDS = frozenset(("args", "command", "code", "entrypoint", "image", "patches", "script"))


def is_harmless(change: FieldChange) -> bool:
    """Return whether a changed field of a spec only says how much, how often or how many."""
    steps = re.sub(r"\[[^\]]*\]$", "", change.path).split(".")
    return steps[-1] in _HARMLESS_FIELDS and "env" not in steps and not isinstance(change.new, dict)


def says_what_runs(change: FieldChange) -> bool:
    """Return whether a changed field of a spec can change what its pods run."""
    return not _COMMAND_FIELDS.isdisjoint(re.split(r"[.\[\]]", change.path))


def is_variable(change: FieldChange) -> bool:
    """Return whether a changed field of a spec is an environment variable."""
    return "env" in re.split(r"[.\[\]]", change.path)
