"""A diff as data. Printers only format it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple

from avactl.base.object_identity import ObjectId
from avactl.diagnostics import Diagnostic
from avactl.program import registry
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.program.registry import Fact


class Disruption(IntEnum):
    """Disruption class of a change, from none to the worst."""

    NONE = 0
    """Nothing in the cluster changes."""
    METADATA = 1
    """Only labels and annotations that no running component reads."""
    IN_PLACE = 2
    """The object is updated; pods keep running."""
    POD_RESTART = 3
    """Pods are restarted with the new settings."""
    REPLACE = 4
    """Objects are deleted, and recreated if still declared: their pods stop."""
    DATA_LOSS = 5
    """Data that exists nowhere else is deleted or becomes unreachable."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class _Absent:
    """Marks a missing value; None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()

FieldOp = Literal["added", "changed", "removed", "reordered"]
ObjectOp = Literal["created", "changed", "deleted", "renamed", "kept"]
"""`renamed`: deleted and created under another name. `kept`: no longer declared, and never deleted."""
IntentOp = Literal["added", "changed", "removed", "renamed", "affected", "repaired"]
"""`affected`: the spec is unchanged, its objects are not. `repaired`: the base has the spec, but with errors."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One changed value, with credentials masked."""

    path: str
    """`spec.template.spec.containers[train].image`; inside JSON text, `data[train.json]: workers`."""
    op: FieldOp
    old: Any = ABSENT
    new: Any = ABSENT
    lines: tuple[str, ...] = ()
    """Changed lines of a multi-line text, each with `-` or `+` in front."""
    disruption: Disruption = Disruption.NONE
    reason: str = ""
    patch: str = ""
    """`FILE:LINE` of the user's patch that sets the value, or set it before."""
    notation: bool = False
    """True for a text whose data is unchanged: only comments, whitespace, order or notation differ."""
    digest: bool = False
    """True for the digest of a configuration that avactl writes into an annotation, so that pods restart."""
    general: bool = False
    """True if `*` stands for the spec's name in the path or the values, which are those of several specs."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A Kubernetes object that is created, changed, deleted, renamed or kept."""

    id: ObjectId
    """ID in the base for a deleted or kept object, else in the head."""
    op: ObjectOp
    disruption: Disruption
    reason: str = ""
    fields: tuple[FieldChange, ...] = ()
    old_id: ObjectId | None = None
    """Previous name of a renamed object."""
    manifest: Manifest | None = field(default=None, compare=False, repr=False)
    """The object: of the head, or of the base if it was deleted or kept."""
    refused: bool = False
    """True if the engine refuses the change, so that the object stays as it is."""

    @property
    def as_written(self) -> bool:
        """Return whether it is new, and not compiled by avactl: it is shown whole."""
        made = self.manifest if self.op == "created" else None
        return made is not None and registry.get_kind(made.item.kind).has_written


class IntentKey(NamedTuple):
    """Identity of a spec: kind, team ("" for the platform), name."""

    kind: str
    team: str
    name: str

    @property
    def label(self) -> str:
        """Return `vision/resnet50`, or `resnet50` for the platform."""
        return f"{self.team}/{self.name}" if self.team else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.label}"


class FactChange(NamedTuple):
    """A changed headline value of a kind; ABSENT on a side that lacks it."""

    name: str
    old: Fact | _Absent
    new: Fact | _Absent


Topic = Literal["data", "run", "security", "capacity", "quota", "cause"]


class Consequence(NamedTuple):
    """A consequence of a change, as text."""

    topic: Topic
    text: str
    level: Literal["info", "warning", "danger"] = "info"
    lines: tuple[str, ...] = ()
    """Whole value, or its changed lines with `-` or `+` in front, where the text shows only a part."""
    rank: int = 0
    """Position of a right: the gravest come first."""


@dataclass(frozen=True, slots=True)
class IntentChange:
    """A spec that changed, or whose objects did."""

    key: IntentKey
    op: IntentOp
    disruption: Disruption
    clusters: tuple[str, ...]
    item: Item = field(compare=False, repr=False)
    """The spec: of the head, or of the base if it was removed."""
    facts: tuple[FactChange, ...] = ()
    spec: tuple[FieldChange, ...] = ()
    """Changes of the spec itself, with defaults."""
    consequences: tuple[Consequence, ...] = ()
    objects: tuple[ObjectChange, ...] = ()
    old_key: IntentKey | None = None
    """Previous identity of a renamed spec."""
    objects_known: bool = True
    """False if the base could not be compiled far enough to know its objects."""

    @property
    def file(self) -> str:
        """Return the file of the spec: in the head, or in the base if it was removed."""
        return self.item.doc.file

    @property
    def line(self) -> int:
        """Return the first line of the spec. Computed on demand, because it reads the file again."""
        return self.item.span("kind", key=True).line


@dataclass(frozen=True, slots=True)
class Diff:
    """All changes between two compilations, the most disruptive first."""

    intents: tuple[IntentChange, ...]
    warnings: tuple[Diagnostic, ...] = ()
    """Warnings of the head that the base does not have."""
    base_problems: tuple[Diagnostic, ...] = ()
    """Errors of the base; its objects are then incomplete."""

    @property
    def intent_counts(self) -> Counter[IntentOp]:
        """Count the intents by operation."""
        return Counter(intent.op for intent in self.intents)

    @property
    def object_counts(self) -> Counter[ObjectOp]:
        """Count the objects by operation."""
        return Counter(change.op for intent in self.intents for change in intent.objects)

    @property
    def fits(self) -> bool:
        """Return whether a consequence says that work fits: a check, not a reservation."""
        return any(consequence.topic == "capacity" for intent in self.intents for consequence in intent.consequences)

    @property
    def empty(self) -> bool:
        """Return whether nothing changed."""
        return not self.intents

    @property
    def disruption(self) -> Disruption:
        """Return the most disruptive class of all changes."""
        return worst_disruption(intent.disruption for intent in self.intents)


def worst_disruption(disruptions: Iterable[Disruption]) -> Disruption:
    """Return the most disruptive class; NONE if empty."""
    return max(disruptions, default=Disruption.NONE)
