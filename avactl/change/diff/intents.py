"""Changes of one spec: headline facts, field changes, and the specs that cause them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from avactl.base.equality import is_same
from avactl.change.diff import phrases
from avactl.change.diff.fields import ValueChange, field_differences
from avactl.change.diff.model import ABSENT, Consequence, FactChange, FieldChange, IntentKey
from avactl.change.diff.objects import field_changes
from avactl.change.diff.secrets import mask_credentials
from avactl.program import dataset_access, registry
from avactl.program.explain import introspect
from avactl.program.program import Item, Program
from avactl.program.registry import Fact


def has_other_meaning(old: Item, new: Item) -> bool:
    """Return whether two specs differ in meaning; comments, order and explicit defaults do not count."""
    if is_same(old.doc.value, new.doc.value):
        return False
    if old.resource != new.resource:
        return True
    return not is_same(*(item.resource.model_dump(mode="json", by_alias=True) for item in (old, new)))


def _environment_sources(item: Item) -> list[str]:
    return list(getattr(item.spec, "env", None) or ())


def env_reordered(old: Item, new: Item) -> bool:
    """Return whether environment variables were reordered: significant, but equal as mappings."""
    was, now = _environment_sources(old), _environment_sources(new)
    return was != now and [n for n in was if n in set(now)] != [n for n in now if n in set(was)]


def spec_values(item: Item) -> dict[str, Any]:
    """Return a spec's values with defaults, without its identity."""
    data = item.resource.model_dump(mode="json", by_alias=True, exclude_none=True)
    metadata = {k: v for k, v in data["metadata"].items() if k in ("namespace", "labels", "annotations") and v}
    patches = {"patches": data["patches"]} if data.get("patches") else {}
    return {"metadata": metadata, "spec": data["spec"], **patches}


def spec_changes(old: Item, new: Item) -> tuple[FieldChange, ...]:
    """Return the changes of the spec itself."""
    changes = []
    if has_other_meaning(old, new):
        model = type(new.resource)
        changes = field_differences(
            spec_values(old), spec_values(new), is_quantity=lambda path: introspect.is_quantity_at(model, path)
        )
    if env_reordered(old, new):
        changes.append(ValueChange(("spec", "env"), "reordered", _environment_sources(old), _environment_sources(new)))
    return field_changes(changes)


def headline_facts(item: Item, program: Program) -> Mapping[str, Fact]:
    """Return the headline facts of a spec; empty if the program has errors and a dependency is missing."""
    try:
        found = registry.get_kind(item.kind).facts(item, program)
        return {name: value for name, value in found.items() if value is not None}
    except Exception:
        if program.broken:
            return {}
        raise


def fact_changes(before: Mapping[str, Fact], after: Mapping[str, Fact]) -> tuple[FactChange, ...]:
    """Return the facts that differ, in the kind's order."""
    return tuple(
        FactChange(
            name, mask_credentials(before.get(name, ABSENT), name), mask_credentials(after.get(name, ABSENT), name)
        )
        for name in {**after, **before}
        if not is_same(before.get(name, ABSENT), after.get(name, ABSENT))
    )


def changed_dependencies(item: Item, program: Program, changed: set[IntentKey]) -> list[Consequence]:
    """Return the changed specs that an unchanged one depends on."""
    found = [key for key in dict.fromkeys(dependencies(item, program)) if key in changed]
    if not found:
        return []
    return [Consequence("cause", f"because of {phrases.join_names(map(str, found), 3)}")]


def dependencies(item: Item, program: Program) -> Iterator[IntentKey]:
    """Yield the specs that determine the objects of a spec."""
    for reference in introspect.references(item.resource):
        other = program.find(reference.kind, reference.name, item.team)
        if other is not None:
            yield IntentKey(*other.key)
            pool = program.find_pool(other.spec_name)
            if pool is not None and pool is other:
                yield IntentKey(*program.machine_type(pool).key)
    for mount in dataset_access.dataset_mounts(item):
        dataset = dataset_access.find(program, item.team, mount.name)
        if dataset is not None:
            yield IntentKey(*dataset.key)
            if dataset.spec.tier:
                yield IntentKey(*program.tier(dataset.spec.tier).key)
    if item.team:
        yield IntentKey(*program.team(item.team).key)
        for quota in program.quotas():
            if quota.team == item.team:
                yield IntentKey(*quota.key)
    for cluster in item.clusters:
        found = program.find_cluster(cluster)
        if found is not None:
            yield IntentKey(*found.key)
        for pool in program.pools(cluster):
            yield IntentKey(*pool.key)
            yield IntentKey(*program.machine_type(pool).key)
