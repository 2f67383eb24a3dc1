"""Limits of a quota as numbers."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from avactl.diagnostics import Span
from avactl.program.program import Item, Program
from avactl.spec.platform.quota import QuotaSpec

S = TypeVar("S")


MIN_QUOTA_BYTES = 2**20
"""Smallest limit of memory or storage; smaller ones lack their unit."""


class DeclaredLimit(NamedTuple):
    """GPUs of one model that a team may use."""

    guaranteed: int
    """Reserved GPUs, reclaimed on demand; whole machines included."""
    borrow: int
    """GPUs beyond the guarantee that the team may borrow while they are idle."""

    @property
    def total(self) -> int:
        return self.guaranteed + self.borrow

    def __str__(self) -> str:
        if self.borrow:
            return f"{self.total} ({self.guaranteed} guaranteed + {self.borrow} borrowed)"
        return str(self.total or "none")


def gpu_limits(spec: QuotaSpec) -> dict[str, DeclaredLimit]:
    """Return the limits by GPU model, in spec order. Models without an entry must not be used."""
    result: dict[str, DeclaredLimit] = {}
    for entry in spec.gpus:
        result[entry.gpu] = DeclaredLimit(entry.guaranteed, entry.borrow)
    for shape in spec.shapes:
        before = result.get(shape.gpu, DeclaredLimit(0, 0))
        result[shape.gpu] = DeclaredLimit(before.guaranteed + shape.machines * shape.gpus, before.borrow)
    return result


def in_file_order(items: list[Item[S]]) -> list[Item[S]]:
    """Specs in reading order."""
    return sorted(items, key=lambda item: item.origin)


def quota_of(program: Program, team: str | None, cluster: str) -> Item[QuotaSpec] | None:
    """Return a team's quota on a cluster, the first if there are two; None if there are no limits."""

    def find() -> dict[tuple[str | None, str], Item[QuotaSpec]]:
        found: dict[tuple[str | None, str], Item[QuotaSpec]] = {}
        for item in in_file_order(program.quotas()):
            found.setdefault((item.team, item.cluster), item)
        return found

    by_team = program.memo("quotas", find)
    return by_team.get((team, cluster))


def entry_span(quota: Item[QuotaSpec], model: str, *keys: str) -> Span:
    """Location of a GPU model in a quota: the first of `keys` in its entry, else the entry or the list."""
    for index, entry in enumerate(quota.spec.gpus):
        if entry.gpu == model:
            path = ("spec", "gpus", index)
            present = next((key for key in keys if quota.doc.get(*path, key) is not None), None)
            return quota.span(*path, present) if present else quota.span(*path)
    for index, shape in enumerate(quota.spec.shapes):
        if shape.gpu == model:
            return quota.span("spec", "shapes", index)
    return quota.span("spec", "gpus", key=True)
