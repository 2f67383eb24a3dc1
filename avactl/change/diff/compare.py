"""Compare two compilations: intents and their objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from avactl.base import gc_control as collector
from avactl.base.equality import is_same
from avactl.change.diff import capacity, consequences, intents, rights
from avactl.change.diff.model import (
    Diff,
    Disruption,
    FieldChange,
    IntentChange,
    IntentKey,
    IntentOp,
    ObjectChange,
    worst_disruption,
)
from avactl.change.diff.objects import Pair, object_changes
from avactl.change.diff.rename import find_renames
from avactl.change.diff.revisions import changed_settings
from avactl.change.diff.rights.specs import says_what_runs
from avactl.compiler import Compilation
from avactl.compiler.lower import objects_of
from avactl.compiler.normalise import normalise
from avactl.compiler.pass_state import PassState
from avactl.program import registry
from avactl.program.manifest import Manifest
from avactl.program.program import Item, Program

Key = tuple[str, str, str]


class _Side(NamedTuple):
    """One compilation, indexed."""

    program: Program
    ok: bool
    items: dict[Key, Item]
    manifests: tuple[Manifest, ...]
    unknown: frozenset[Key]
    """Specs whose objects are unknown because the compilation failed."""


@collector.pause_gc()
def compare(base: Compilation, head: Compilation) -> Diff:
    """Compare base with head. `head` has compiled; of a base with errors, the specs that can be lowered are compared.

    Equal objects are skipped early, so the work is proportional to the change, not to the repository.
    """
    before, after = _make_side(base), _make_side(head)
    pairs = _pair_objects(before, after)
    shared = before.items.keys() & after.items.keys()
    was = find_renames(
        (before.items[key] for key in before.items.keys() - shared),
        (after.items[key] for key in after.items.keys() - shared),
    )
    found: list[IntentChange] = []
    for key in before.items.keys() - shared - set(was.values()):
        found.append(_make_intent("removed", before, after, (key, None), pairs))
    for key in after.items.keys() - shared:
        old = was.get(key)
        op: IntentOp = "renamed" if old else "repaired" if (key[0], key[2]) in base.program.broken else "added"
        found.append(_make_intent(op, before, after, (old, key), pairs))
    for key in shared:
        one, other = before.items[key], after.items[key]
        if intents.has_other_meaning(one, other) or intents.env_reordered(one, other):
            found.append(_make_intent("changed", before, after, (key, key), pairs))
        elif key in pairs:
            found.append(_make_intent("affected", before, after, (key, key), pairs))
    found = [intent for intent in found if intent.objects or intent.spec or intent.op not in ("changed", "affected")]
    if not before.ok:
        found = [_as_far_as_known(intent, after, base.program.broken) for intent in found]
    changed = {intent.key for intent in found if intent.op != "affected"}
    found = [_with_cause(intent, head.program, changed) if intent.op == "affected" else intent for intent in found]
    known = {(d.code, d.message) for d in base.diagnostics}
    return Diff(
        intents=tuple(sorted(found, key=_severity_key)),
        warnings=(
            *changed_settings(base.tree, head.tree),
            *(d for d in head.diagnostics if (d.code, d.message) not in known),
        ),
        base_problems=tuple(d for d in base.diagnostics if d.severity == "error"),
    )


# -- sides -----------------------------------------------------------------------------------------------------------


def _make_side(compilation: Compilation) -> _Side:
    program, manifests, unknown = compilation.program, compilation.manifests, frozenset[Key]()
    if not compilation.ok:
        manifests, unknown = _lower_without_errors(compilation)
    items = {item.key: item for item in program.items if not item.doc.shipped}
    return _Side(program, compilation.ok, items, manifests, unknown)


def _lower_without_errors(compilation: Compilation) -> tuple[tuple[Manifest, ...], frozenset[Key]]:
    """Lower a program with errors spec by spec; return the objects, and the specs that could not be lowered."""
    program = compilation.program
    manifests: list[Manifest] = []
    unknown: set[Key] = set()
    for item in program.items:
        try:
            manifests += objects_of(item, program)
        except Exception:  # lowering expects checked specs; an unchecked one may fail anywhere
            unknown.add(item.key)
    state = normalise(PassState(compilation.tree, program=program, manifests=tuple(manifests)))
    if state.failed:
        return (), frozenset(item.key for item in program.items)
    return state.manifests, frozenset(unknown)


def _pair_objects(before: _Side, after: _Side) -> dict[Key, list[Pair]]:
    """Return the pairs of unequal objects by spec; an object that moved to another spec belongs to the new one."""
    found: dict[Key, list[Pair]] = {}
    old_objects = {manifest.id: manifest for manifest in before.manifests}
    for new in after.manifests:
        old = old_objects.pop(new.id, None)
        if old is None:
            if new.item.key not in before.unknown:
                found.setdefault(new.item.key, []).append(Pair(None, new))
        elif not is_same(old.body, new.body):
            found.setdefault(new.item.key, []).append(Pair(old, new))
    for old in old_objects.values():
        found.setdefault(old.item.key, []).append(Pair(old, None))
    return found


# -- intents ---------------------------------------------------------------------------------------------------------


def _make_intent(
    op: IntentOp, before: _Side, after: _Side, keys: tuple[Key | None, Key | None], pairs: dict[Key, list[Pair]]
) -> IntentChange:
    old_key, new_key = keys
    old = before.items[old_key] if old_key else None
    new = after.items[new_key] if new_key else None
    mine = [pair for key in dict.fromkeys((new_key, old_key)) if key for pair in pairs.get(key, ())]
    renamed = (old, new) if op == "renamed" and old and new else None
    objects = object_changes(mine, renamed)
    item = new or old
    if item is None:
        raise ValueError("neither base nor head has the intent")
    then = old if before.ok else None
    spec: tuple[FieldChange, ...] = intents.spec_changes(old, new) if old and new else ()
    follows = [
        *consequences.data_consequences(old, new, objects),
        *consequences.policy_consequences(old, new),
        *consequences.run(old, new, objects),
        *rights.security_consequences(old, new, mine, after.program, any(map(says_what_runs, spec))),
        *capacity.capacity_consequences(then, before.program if before.ok else after.program, new, after.program),
    ]
    was = intents.headline_facts(old, before.program) if old else {}
    facts = intents.fact_changes(was, intents.headline_facts(new, after.program) if new else {})
    return IntentChange(
        key=IntentKey(*item.key),
        op=op,
        disruption=worst_disruption(_object_disruptions(objects)),
        clusters=item.clusters,
        item=item,
        facts=facts,
        spec=spec,
        consequences=tuple(follows),
        objects=objects,
        old_key=IntentKey(*old.key) if renamed and old else None,
        objects_known=op != "repaired" and not {old_key, new_key} & before.unknown,
    )


def _object_disruptions(objects: tuple[ObjectChange, ...]) -> Iterator[Disruption]:
    """Yield the disruption class of each object's change for its spec.

    A Job named after its content (`read-mount-d1809e60dc`) that runs again counts as replacing itself only.
    """
    again = {_name_stem(change.id.name) for change in objects if change.op == "created" and change.id.kind == "Job"}
    for change in objects:
        repeats = change.op == "deleted" and change.id.kind == "Job" and _name_stem(change.id.name) in again
        yield min(change.disruption, Disruption.POD_RESTART) if repeats else change.disruption


def _name_stem(name: str) -> str:
    return name.rpartition("-")[0]


def _as_far_as_known(intent: IntentChange, after: _Side, broken: frozenset[tuple[str, str]]) -> IntentChange:
    """Drop changes that only appear because a dependency of the spec has errors in the base."""
    depends = {(key.kind, key.name) for key in intents.dependencies(intent.item, after.program)}
    if intent.op not in ("changed", "affected") or not depends & broken:
        return intent
    objects = tuple(change for change in intent.objects if change.disruption == Disruption.DATA_LOSS)
    return replace(
        intent,
        objects=objects,
        objects_known=False,
        disruption=worst_disruption(change.disruption for change in objects),
        facts=() if intent.op == "affected" else intent.facts,
        consequences=tuple(c for c in intent.consequences if c.topic == "data"),
    )


def _with_cause(intent: IntentChange, program: Program, changed: set[IntentKey]) -> IntentChange:
    found = intents.changed_dependencies(intent.item, program, changed)
    return replace(intent, consequences=(*intent.consequences, *found)) if found else intent


def _severity_key(intent: IntentChange) -> tuple[bool, bool, int, int, str, str]:
    """Sort key: data loss first, edited specs before affected ones, the most disruptive first."""
    loss = intent.disruption == Disruption.DATA_LOSS
    rank = registry.kind_names().index(intent.key.kind)
    return (not loss, intent.op == "affected", -intent.disruption, rank, intent.key.team, intent.key.name)


def select_files(diff: Diff, files: Iterable[str]) -> Diff:
    """Return the part of a diff that concerns specs of these files and directories, or specs with overlays there."""
    wanted = list(files)

    def concerns(file: str) -> bool:
        return any(file == path or file.startswith(f"{path}/") for path in wanted)

    part = [intent for intent in diff.intents if any(concerns(each.file) for each in intent.item.doc.sources)]
    return replace(diff, intents=tuple(part))
