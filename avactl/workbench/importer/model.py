"""Values of an import: source objects, what was read of them, the specs that they became, and losses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.base.object_identity import ObjectKey
from avactl.diagnostics import Span
from avactl.spec.documents.document import Document, Path

LIVE = "<live>"
"""File of the objects of a cluster. No file that is read has such a name (`odd_name`)."""

Body = dict[str, Any]
_MAX_LOSSES = 100
"""Losses listed per object."""


class ImportProblem(HintedError):  # noqa: N818 - an error of the user's input
    """The input cannot be imported."""

    exit_code = USAGE


class GivenValue:
    """One object of the source, with the document that it stands in."""

    __slots__ = ("doc", "path", "value")

    def __init__(self, value: Body, doc: Document, path: Path = ()) -> None:
        self.value, self.doc, self.path = value, doc, path

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return str(self.value["apiVersion"]).rpartition("/")[0]

    @property
    def kind(self) -> str:
        return str(self.value["kind"])

    @property
    def name(self) -> str:
        return str(self.value["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace; empty if the object names none."""
        return str(self.value["metadata"].get("namespace") or "")

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.group, self.kind, self.namespace, self.name)

    def span(self, *path: str | int, key: bool = False) -> Span:
        """Return the location of a value of the object."""
        return self.doc.span(*self.path, *path, key=key)

    def get(self, *path: str | int) -> Any:
        """Return the value at a path, or None."""
        value: Any = self.value
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def __str__(self) -> str:
        return str(self.key)


class Loss(NamedTuple):
    """A value of a source object that its spec does not have, or has in another form."""

    span: Span
    source: str
    path: str
    why: str
    remedy: str = ""
    carried: bool = False
    """True for a remark about a value that is carried over; otherwise what is below the path is not."""


def key_path(path: Path) -> str:
    """Format a path for people: `spec.containers[0].image`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) or "." in step or "/" in step else f".{step}" if text else step
    return text


class ImportReader:
    """Reads a source object, and knows which of its values nobody has asked for."""

    def __init__(self, given: GivenValue) -> None:
        self.given = given
        self.losses: list[Loss] = []
        self.aliases: dict[Path, Path] = {}
        """Paths of values that were put together for reading → their paths in the source."""
        self._taken: set[Path] = set()

    def take(self, *path: str | int) -> Any:
        """Return the value at a path, or None; with all below, it counts as carried over."""
        self._taken.add(path)
        return self.given.get(*path)

    def lose(self, path: Path, why: str, remedy: str = "") -> None:
        """Record that the value at a path is not carried over, or changes."""
        self._taken.add(path)
        self._record(path, why, remedy, carried=False)

    def note(self, path: Path, why: str, remedy: str = "") -> None:
        """Record that something about the value at a path changes, although it is carried over."""
        self._record(path, why, remedy, carried=True)

    def _record(self, path: Path, why: str, remedy: str, *, carried: bool) -> None:
        for made, real in self.aliases.items():
            if path[: len(made)] == made:
                path = (*real, *path[len(made) :])
                break
        span = self.given.span(*path, key=bool(path) and isinstance(path[-1], str))
        self.losses.append(Loss(span, str(self.given), key_path(path), why, remedy, carried))

    def lose_rest(self, why: str, remedy: str = "", path: Path = ()) -> None:
        """Record the loss of every value below a path that was not taken."""
        for count, each in enumerate(list(self._rest(self.given.get(*path), path))):
            if count == _MAX_LOSSES:
                self.lose(path, f"more than {_MAX_LOSSES} values have no key in the spec", remedy)
                break
            self.lose(each, why, remedy)

    def _rest(self, value: Any, path: Path) -> Iterator[Path]:
        if path in self._taken or value in (None, {}, [], ""):
            return
        if path and not any(each[: len(path)] == path for each in self._taken):
            yield path
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from self._rest(inner, (*path, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from self._rest(inner, (*path, index))


class ImportResult(str, Enum):  # noqa: UP042 - its values stand in JSON
    """How an object was carried over."""

    carried = "carried over"
    approximated = "approximated"
    raw = "as it is"
    left_out = "left out"
    part = "part of it"


class Mend(NamedTuple):
    """A value of an object that stays a manifest beside a spec, which it refers to."""

    given: GivenValue
    path: Path
    value: Any
    """The value that it gets; None: it stays, and is listed."""
    why: str
    remedy: str = ""


@dataclass(eq=False)
class ImportedSpec:
    """A spec made of one or more source objects."""

    kind: str
    name: str
    team: str | None
    spec: Body
    given: list[GivenValue] = field(default_factory=list)
    namespace: str | None = None
    """Namespace of the objects, if it is not the team's first."""
    patches: list[Body] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    origins: dict[Path, tuple[GivenValue, Path]] = field(default_factory=dict)
    """Paths in the spec → source object and path that the value comes from."""
    comments: list[str] = field(default_factory=list)
    mends: list[Mend] = field(default_factory=list)
    """Values of other objects that refer to those of the spec."""
    acts_as: list[GivenValue] = field(default_factory=list)
    """Objects that an operator makes of the source, the one with the pods first: the compiled ones are compared."""
    file: str = ""

    def body(self) -> Body:
        """Return the spec as a document."""
        metadata: Body = {"name": self.name}
        if self.team:
            metadata["team"] = self.team
        if self.namespace:
            metadata["namespace"] = self.namespace
        made: Body = {"apiVersion": "avactl.dev/v1", "kind": self.kind, "metadata": metadata}
        if self.spec or self.kind not in ("Cluster", "Team"):
            made["spec"] = self.spec
        if self.patches:
            made["patches"] = self.patches
        return made

    def remove(self, path: Path) -> None:
        """Remove the value at a path of the document, and mappings and lists that it leaves empty."""
        body: Any = {"spec": self.spec, "patches": self.patches}
        parents: list[tuple[Any, str | int]] = []
        for step in path[:-1]:
            parents.append((body, step))
            body = body[step]
        if isinstance(body, list):
            del body[int(path[-1])]
            self._shift_origins(path)
        else:
            body.pop(path[-1], None)
        for parent, step in reversed(parents):
            if parent[step] in ({}, []) and step not in ("spec", "patches"):
                del parent[step]
            else:
                break

    def _shift_origins(self, path: Path) -> None:
        """Move the origins of the entries behind a removed one."""
        before, index = path[:-1], int(path[-1])
        moved = {}
        for own, found in self.origins.items():
            if own[: len(before)] == before and len(own) > len(before) and isinstance(own[len(before)], int):
                at = int(own[len(before)])
                if at == index:
                    continue
                if at > index:
                    own = (*before, at - 1, *own[len(before) + 1 :])
            moved[own] = found
        self.origins = moved

    @property
    def raw(self) -> bool:
        return self.kind == "KubernetesObjects"

    def origin(self, path: Path) -> tuple[GivenValue, Path] | None:
        """Return the source of a value of the spec: that of its longest known prefix."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                given, place = self.origins[path[:length]]
                return given, (*place, *path[length:])
        return (self.given[0], ()) if self.given else None

    def __str__(self) -> str:
        return f"{self.kind} {self.team}/{self.name}" if self.team else f"{self.kind} {self.name}"


@dataclass(eq=False)
class ImportOutcome:
    """The fate of one source object."""

    given: GivenValue
    result: ImportResult
    spec: ImportedSpec | None = None
    note: str = ""


def spec_name(name: str, longest: int = 50) -> str:
    """Return a name as a spec can have it: lowercase letters, digits and `-`, beginning with a letter."""
    made = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:longest].strip("-")
    return made if made[:1].isalpha() else f"x-{made}".strip("-")
