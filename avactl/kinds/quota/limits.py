"""What a quota allows, in numbers."""

from __future__ import annotations

from typing import NamedTuple

from avactl.diagnostics import Span
from avactl.kinds.program import Item, Program
from avactl.kinds.quota.spec import QuotaSpec


class Limit(NamedTuple):
    """GPUs of one model that a team may have."""

    guaranteed: int
    """Those that it gets back when it wants them; whole machines included."""
    borrow: int
    """Those that it may take beside them while others leave them idle."""

    @property
    def total(self) -> int:
        return self.guaranteed + self.borrow

    def __str__(self) -> str:
        if self.borrow:
            return f"{self.total} ({self.guaranteed} guaranteed + {self.borrow} borrowed)"
        return str(self.total or "none")


def gpu_limits(spec: QuotaSpec) -> dict[str, Limit]:
    """What a quota gives of each GPU model, in the order of the spec. A model that is not there may not be used."""
    result: dict[str, Limit] = {}
    for entry in spec.gpus:
        result[entry.gpu] = Limit(entry.guaranteed, entry.borrow)
    for shape in spec.shapes:
        before = result.get(shape.gpu, Limit(0, 0))
        result[shape.gpu] = Limit(before.guaranteed + shape.machines * shape.gpus, before.borrow)
    return result


def in_file_order(items: list[Item]) -> list[Item]:
    """Specs as a reader meets them."""
    return sorted(items, key=lambda item: item.origin)


def quota_of(program: Program, team: str | None, cluster: str) -> Item | None:
    """The quota of a team on a cluster: the first where there are two. None: the team has no limits there."""

    def find() -> dict[tuple[str | None, str], Item]:
        found: dict[tuple[str | None, str], Item] = {}
        for item in in_file_order(program.of("Quota")):
            found.setdefault((item.team, item.cluster), item)
        return found

    by_team: dict[tuple[str | None, str], Item] = program.memo("quotas", find)
    return by_team.get((team, cluster))


def entry_span(quota: Item, model: str, *keys: str) -> Span:
    """Where a quota speaks of a GPU model: the first of `keys` that its entry has, else the entry or the list."""
    for index, entry in enumerate(quota.spec.gpus):
        if entry.gpu == model:
            path = ("spec", "gpus", index)
            present = next((key for key in keys if quota.doc.get(*path, key) is not None), None)
            return quota.span(*path, present) if present else quota.span(*path)
    for index, shape in enumerate(quota.spec.shapes):
        if shape.gpu == model:
            return quota.span("spec", "shapes", index)
    return quota.span("spec", "gpus", key=True)
