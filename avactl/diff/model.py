"""A diff as data. Printers read it, nothing computes in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple

from avactl.diagnostics import Diagnostic
from avactl.kinds.manifest import ObjectId
from avactl.kinds.program import Item
from avactl.kinds.registry import Fact


class Disruption(IntEnum):
    """How much a change disturbs what runs, from nothing to the worst."""

    NONE = 0
    """Nothing in a cluster changes."""
    METADATA = 1
    """Labels and annotations that nothing running looks at."""
    IN_PLACE = 2
    """The object is changed; pods go on."""
    POD_RESTART = 3
    """Pods are stopped and started with the new settings."""
    REPLACE = 4
    """Objects are deleted, and made anew if they are still wanted: what they ran stops."""
    DATA_LOSS = 5
    """Data that exists nowhere else is deleted, or cannot be reached any more."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class _Absent:
    """Stands for a value that is not there; None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()

FieldOp = Literal["added", "changed", "removed", "reordered"]
ObjectOp = Literal["created", "changed", "deleted", "renamed", "kept"]
"""`renamed`: deleted and created under another name. `kept`: no spec asks for it any more, and nothing deletes it."""
IntentOp = Literal["added", "changed", "removed", "renamed", "affected", "repaired"]
"""`affected`: the spec is the same, its objects are not. `repaired`: the base has a spec of that name, with errors."""


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One changed value. Credentials in values are covered already."""

    path: str
    """`spec.template.spec.containers[train].image`; of a text that holds JSON, `data[train.json]: workers`."""
    op: FieldOp
    old: Any = ABSENT
    new: Any = ABSENT
    lines: tuple[str, ...] = ()
    """Of a text of several lines: those that changed, each with `-` or `+` before it."""
    disruption: Disruption = Disruption.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One Kubernetes object that is created, changed, deleted, renamed or kept."""

    id: ObjectId
    """Of a deleted or kept object that of the base, else that of the head."""
    op: ObjectOp
    disruption: Disruption
    reason: str = ""
    fields: tuple[FieldChange, ...] = ()
    old_id: ObjectId | None = None
    """Its name before, of a renamed object."""


class IntentKey(NamedTuple):
    """Which spec: kind, team ("" for the platform's), name."""

    kind: str
    team: str
    name: str

    @property
    def label(self) -> str:
        """`vision/resnet50`, or `resnet50` of the platform."""
        return f"{self.team}/{self.name}" if self.team else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.label}"


class FactChange(NamedTuple):
    """A headline number or word of a kind; ABSENT on the side where it is not."""

    name: str
    old: Fact | _Absent
    new: Fact | _Absent


Topic = Literal["data", "run", "capacity", "quota", "cause"]


class Consequence(NamedTuple):
    """What follows from a change, in words."""

    topic: Topic
    text: str
    level: Literal["info", "warning", "danger"] = "info"


@dataclass(frozen=True, slots=True)
class IntentChange:
    """One spec that changed, or whose objects did."""

    key: IntentKey
    op: IntentOp
    disruption: Disruption
    clusters: tuple[str, ...]
    item: Item = field(compare=False, repr=False)
    """The spec itself: of the head, or of the base if it is removed."""
    facts: tuple[FactChange, ...] = ()
    spec: tuple[FieldChange, ...] = ()
    """Changes of the spec itself, defaults filled in."""
    consequences: tuple[Consequence, ...] = ()
    objects: tuple[ObjectChange, ...] = ()
    old_key: IntentKey | None = None
    """Its name before, of a renamed spec."""
    objects_known: bool = True
    """False where the base could not be compiled far enough to know its objects."""

    @property
    def file(self) -> str:
        """The file that it stands in: in the head, or in the base if it is removed."""
        return self.item.doc.file

    @property
    def line(self) -> int:
        """The line where it begins. Found on demand: that reads the file again."""
        return self.item.span("kind", key=True).line


@dataclass(frozen=True, slots=True)
class Diff:
    """All changes between two compilations, the most disruptive first."""

    intents: tuple[IntentChange, ...]
    warnings: tuple[Diagnostic, ...] = ()
    """Warnings of the head that the base does not have."""
    base_problems: tuple[Diagnostic, ...] = ()
    """Errors of the base. What it says of objects is then incomplete."""

    @property
    def intent_counts(self) -> Counter[IntentOp]:
        """How many intents changed, by what became of them."""
        return Counter(intent.op for intent in self.intents)

    @property
    def object_counts(self) -> Counter[ObjectOp]:
        """How many objects changed, by what became of them."""
        return Counter(change.op for intent in self.intents for change in intent.objects)

    @property
    def fits(self) -> bool:
        """Whether a consequence says that something fits or waits: a check, not a reservation."""
        return any(consequence.topic == "capacity" for intent in self.intents for consequence in intent.consequences)

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not self.intents

    @property
    def disruption(self) -> Disruption:
        """The worst of all changes."""
        return worst(intent.disruption for intent in self.intents)


def worst(disruptions: Iterable[Disruption]) -> Disruption:
    """The highest class, NONE of nothing."""
    return max(disruptions, default=Disruption.NONE)
