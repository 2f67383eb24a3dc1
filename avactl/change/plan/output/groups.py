"""Specs with the same prediction, which are printed as one, as the diff does."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from avactl.base.terminal import count_text
from avactl.change.diff.objects import replace_spec_name
from avactl.change.plan.model import Effect, Plan, PlanEntry, PlannedOwner
from avactl.change.plan.output import phrases

_MAX_NAMES = 6
"""Maximum number of specs of a group that are named."""


class GroupRow(NamedTuple):
    """One line of the table: the texts of its first spec, which hold of all."""

    entries: tuple[PlanEntry, ...]
    pods: str
    details: tuple[str, ...]
    gpus: str
    price: str

    @property
    def first(self) -> PlanEntry:
        return self.entries[0]

    @property
    def title(self) -> str:
        """The spec, or e.g. `20 TrainingJobs`."""
        count = len(self.entries)
        return str(self.first.owner) if count == 1 else count_text(count, self.first.owner.kind)

    @property
    def names(self) -> str:
        """The specs of a group, as `vision/a, vision/b, … 4 more`; "" for a single one."""
        if len(self.entries) == 1:
            return ""
        return _shorten_names([entry.owner for entry in self.entries])


class EffectRow(NamedTuple):
    """Specs outside of the change that are affected alike."""

    effects: tuple[Effect, ...]
    text: str

    @property
    def title(self) -> str:
        """The spec, or e.g. `31 TrainingJobs (vision/a, vision/b, … 29 more)`."""
        owners = [effect.owner for effect in self.effects]
        if len(owners) == 1:
            return str(owners[0])
        return f"{count_text(len(owners), owners[0].kind)} ({_shorten_names(owners)})"


def group_effects(plan: Plan) -> list[EffectRow]:
    """Group the effects on other specs, in the order of the first of each."""
    found: dict[tuple[str, str], list[Effect]] = {}
    for effect in plan.effects:
        found.setdefault((effect.owner.kind, phrases.format_effect(effect)), []).append(effect)
    return [EffectRow(tuple(alike), text + (" each" if alike[1:] else "")) for (_, text), alike in found.items()]


def _shorten_names(owners: Sequence[PlannedOwner]) -> str:
    shown = [f"{owner.team}/{owner.name}" if owner.team else owner.name for owner in owners[:_MAX_NAMES]]
    return ", ".join([*shown, *([f"… {len(owners) - _MAX_NAMES} more"] if len(owners) > _MAX_NAMES else [])])


def group_rows(plan: Plan) -> list[GroupRow]:
    """Group the shown entries of a plan, in the order of the first of each."""
    found: dict[Hashable, list[tuple[PlanEntry, tuple[str, ...]]]] = {}
    for entry in plan.shown:
        hours = phrases.format_hours(entry)
        details = (*phrases.entry_details(entry), *([hours] if hours else []))
        neutral = tuple(replace_spec_name(line, entry.owner.name) for line in details)
        texts = (phrases.format_pods(entry), phrases.gpu_change(entry), phrases.format_price(entry, plan.currency))
        key = (entry.owner.kind, entry.change, entry.verdict, entry.pods, neutral, texts)
        found.setdefault(key, []).append((entry, details))
    return [_make_row(plan, alike) for alike in found.values()]


def _make_row(plan: Plan, alike: list[tuple[PlanEntry, tuple[str, ...]]]) -> GroupRow:
    first, details = alike[0]
    texts = [phrases.format_pods(first), phrases.gpu_change(first), phrases.format_price(first, plan.currency)]
    if len(alike) > 1:
        texts = [f"{text} each" if text else "" for text in texts]
        details = tuple(replace_spec_name(line, first.owner.name) for line in details)
    return GroupRow(tuple(entry for entry, _ in alike), texts[0], details, texts[1], texts[2])
