"""A right: one thing that an object lets its pods, its users or the cluster do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from avactl.change.diff.fields import Steps, format_path
from avactl.change.diff.secrets import mask_credentials
from avactl.program.manifest import Manifest

ORDER = (
    "privileged",
    "host path",
    "host network",
    "host PIDs",
    "host IPC",
    "host port",
    "may",
    "Secret",
    "token",
    "grants",
    "allows",
    "calls",
    "serves",
    "pod security",
    "deletes",
    "data of",
    "open to team",
    "reachable at",
    "service account",
    "volume",
    "claim",
    "reads",
    "sets",
    "patches",
    "runs",
    "env",
)
"""All words that a right begins with, the gravest first; names of variables are last."""
RANK = {what: number for number, what in enumerate(ORDER)}


@dataclass(frozen=True, slots=True)
class Right:
    """One right. Two rights are the same if all but their places are equal."""

    what: str
    value: Any
    """Value without credentials: a name, or what is set."""
    subject: str = ""
    """Variable, container or field that has one value at a time."""
    of: str = ""
    """The object, in words, where the spec has several of them."""
    path: Steps = field(default=(), compare=False)
    """Place in the object."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The object whose rights are listed, and a place in it."""

    manifest: Manifest
    compiled: bool
    """True for objects that avactl compiles from a spec; False for objects that are written as they are."""
    platform: frozenset[str] = frozenset()
    """Images whose containers run avactl's commands."""
    given: frozenset[str] = frozenset()
    """Texts of the spec."""
    path: Steps = ()
    number: int = 0
    """Position in the list around the place."""

    def at(self, step: object, number: int = 0) -> Scope:
        """Return the scope of a place one step further inside."""
        return Scope(self.manifest, self.compiled, self.platform, self.given, (*self.path, str(step)), number)

    def entry(self, value: Any, number: int) -> Scope:
        """Return the scope of an entry of a list."""
        return self.at(value.get("name", number) if isinstance(value, dict) else number, number)

    def right(self, what: str, value: Any, subject: str = "", name: str = "") -> Right:
        """Return a right at this place; `name` is that of the value, by which credentials are recognised."""
        of = "" if self.compiled else str(self.manifest.id)
        return Right(what, mask_credentials(value, name), subject, of, self.path)

    def sets(self, value: Any) -> Iterator[Right]:
        """Yield the right for a value that is not known to be harmless."""
        if value is not None:
            yield self.right("sets", value, format_path(self.path), self.path[-1] if self.path else "")


class _Harmless:
    """Marks a field that gives no right, whatever its value is."""


HARMLESS = _Harmless()
Phrase = Callable[[Scope, Any], Iterator[Right]]
Table = Mapping[str, Any]
"""Field → HARMLESS, a phrase that yields its rights, or the table of the fields inside."""


def walk(scope: Scope, value: Any, node: Any) -> Iterator[Right]:
    """Yield the rights in a value: a field that its table does not have is shown."""
    if node is HARMLESS:
        return
    if callable(node):
        yield from node(scope, value)
    elif isinstance(node, Mapping) and isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(scope.at(key), inner, node.get(key))
    elif isinstance(node, Mapping) and isinstance(value, list) and all(isinstance(each, dict) for each in value):
        for number, each in enumerate(value):
            yield from walk(scope.entry(each, number), each, node)
    else:
        yield from scope.sets(value)


def harmless_values(*values: Any) -> Phrase:
    """Return a phrase for a field that is harmless with these values."""

    def check(scope: Scope, value: Any) -> Iterator[Right]:
        if not any(value == each and type(value) is type(each) for each in values):
            yield from scope.sets(value)

    return check


def in_mapping(phrase: Phrase) -> Phrase:
    """Return a phrase for mappings; a value of another type is shown."""

    def check(scope: Scope, value: Any) -> Iterator[Right]:
        yield from phrase(scope, value) if isinstance(value, dict) else scope.sets(value)

    return check


def in_list(phrase: Phrase) -> Phrase:
    """Return a phrase for each mapping of a list; a value of another type is shown."""

    def check(scope: Scope, value: Any) -> Iterator[Right]:
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            inside = scope.entry(each, number)
            yield from phrase(inside, each) if isinstance(each, dict) else inside.sets(each)

    return check


def list_entries(value: Any) -> list[Any]:
    """Return the entries of a list; a value that is no list is one, unless it is empty."""
    return value if isinstance(value, list) else [value] if value else []


def as_mapping(value: Any) -> dict[str, Any]:
    """Return a mapping; {} for what a manifest of somebody else has instead."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: Any) -> list[dict[str, Any]]:
    """Return the mappings of a list; none for what a manifest of somebody else has instead."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
