"""Custom policies over specs and Kubernetes objects: the API that Python files in `policies/` import.

from avactl.policy import policy, problem

@policy("jobs-have-owners", kinds=["TrainingJob"], help="write `labels: {owner: NAME}` into its metadata")
def owners(spec):
    if "owner" not in spec["metadata"].get("labels", {}):
        yield problem("no owner", "metadata", "labels")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

Severity = Literal["error", "warning"]
Over = Literal["specs", "manifests"]

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""Pattern of a policy name."""

MAX_PROBLEMS = 200
"""Maximum number of problems reported individually per policy."""


class Problem(NamedTuple):
    """A policy's finding."""

    message: str
    path: tuple[str | int, ...] = ()
    """Keys and indexes that lead to the value; () is the whole spec or object."""
    help: str = ""
    """The remedy; "" uses the policy's."""


def problem(message: str, *path: str | int, help: str = "") -> Problem:
    """Build a problem from a message and the path to the value: `problem("…", "spec", "workers", "gpus")`."""
    return Problem(message, path, help)


class Policy(NamedTuple):
    """A rule, and the function that checks one spec or object."""

    name: str
    over: Over
    kinds: tuple[str, ...]
    """Kinds that it checks; () means all."""
    severity: Severity
    help: str
    check: Callable[[dict[str, Any]], Any]


DECLARED: list[Policy] = []
"""Policies declared by the file being evaluated."""

_Check = TypeVar("_Check", bound=Callable[..., Any])


def policy(
    name: str,
    *,
    over: Over = "specs",
    kinds: Sequence[str] = (),
    severity: Severity = "error",
    help: str = "",
) -> Callable[[_Check], _Check]:
    """Declare a policy. Its function gets one spec with defaults filled in, or with `over="manifests"` one Kubernetes
    object, and returns or yields problems: strings or `problem(…)`; nothing if there are none.

    Raises ValueError and TypeError for an invalid declaration.
    """
    if callable(name):
        raise TypeError('a policy needs a name: write @policy("jobs-have-owners")')
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError(f'a policy name consists of a-z, 0-9 and -, got {name!r}: write @policy("jobs-have-owners")')
    if over not in ("specs", "manifests"):
        raise ValueError(f"over={over!r}: expected `specs` or `manifests`")
    if severity not in ("error", "warning"):
        raise ValueError(f"severity={severity!r}: expected `error` or `warning`")
    if isinstance(kinds, str):
        raise TypeError(f"kinds={kinds!r}: expected a list, [{kinds!r}]")

    def declare(check: _Check) -> _Check:
        DECLARED.append(Policy(name, over, tuple(kinds), severity, help, check))
        return check

    return declare
