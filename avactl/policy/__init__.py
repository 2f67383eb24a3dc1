"""Rules of a team's own over specs and Kubernetes objects: what Python files in `policies/` import.

from avactl.policy import policy, problem

@policy("jobs-have-owners", kinds=["TrainingJob"], help="write `labels: {owner: NAME}` into its metadata")
def owners(spec):
    if "owner" not in spec["metadata"].get("labels", {}):
        yield problem("nobody owns it", "metadata", "labels")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

Severity = Literal["error", "warning"]
Over = Literal["specs", "manifests"]

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""What the name of a policy looks like."""

MOST_PROBLEMS = 200
"""Problems of one policy that are told one by one."""


class Problem(NamedTuple):
    """What a policy found."""

    message: str
    path: tuple[str | int, ...] = ()
    """Keys and indexes that lead to the value; () is the whole spec or object."""
    help: str = ""
    """The remedy; "" takes the policy's."""


def problem(message: str, *path: str | int, help: str = "") -> Problem:
    """What is wrong, and the keys and indexes that lead to the value: `problem("…", "spec", "workers", "gpus")`."""
    return Problem(message, path, help)


class Policy(NamedTuple):
    """A rule, and the function that looks at one spec or object."""

    name: str
    over: Over
    kinds: tuple[str, ...]
    """Kinds that it looks at; () is all."""
    severity: Severity
    help: str
    check: Callable[[dict[str, Any]], Any]


DECLARED: list[Policy] = []
"""Those of the file that is evaluated."""

_Check = TypeVar("_Check", bound=Callable[..., Any])


def policy(
    name: str,
    *,
    over: Over = "specs",
    kinds: Sequence[str] = (),
    severity: Severity = "error",
    help: str = "",
) -> Callable[[_Check], _Check]:
    """Declare a policy. Its function gets one spec, with defaults filled in, or with `over="manifests"` one Kubernetes
    object, and returns or yields what is wrong: text, or `problem(…)`; nothing where nothing is.

    Raises ValueError and TypeError where the declaration is wrong.
    """
    if callable(name):
        raise TypeError('a policy has a name: write @policy("jobs-have-owners")')
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError(f'the name of a policy is of a-z, 0-9 and -, got {name!r}: write @policy("jobs-have-owners")')
    if over not in ("specs", "manifests"):
        raise ValueError(f"over={over!r}: a policy is over `specs` or `manifests`")
    if severity not in ("error", "warning"):
        raise ValueError(f"severity={severity!r}: a policy's is `error` or `warning`")
    if isinstance(kinds, str):
        raise TypeError(f"kinds={kinds!r}: kinds are a list, [{kinds!r}]")

    def declare(check: _Check) -> _Check:
        DECLARED.append(Policy(name, over, tuple(kinds), severity, help, check))
        return check

    return declare
