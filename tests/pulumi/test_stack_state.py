"""The state of a stack: when the engine has nothing to do, and the record of an unfinished run. No engine is needed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.apply.pulumi.resource_plan import manifest_parent, manifest_urn, provider_inputs, type_token
from avactl.apply.pulumi.stack_state import ObjectRef, is_declared, read_record, with_record
from tests.pulumi.repository import compiled

STACK = "main.vision"
MANIFESTS = [m for m in compiled().manifests if m.item.team == "vision"]
INPUTS = {**provider_inputs("main", context="east"), "version": "4.32.0"}
Resource = dict[str, Any]


def state() -> dict[str, Any]:
    """The state after a run that applied everything, as the engine exports it."""
    root = f"urn:pulumi:{STACK}::avactl::pulumi:pulumi:Stack::avactl-{STACK}"
    provider = f"urn:pulumi:{STACK}::avactl::pulumi:providers:kubernetes::main"
    resources: list[Resource] = [
        {"urn": root, "type": "pulumi:pulumi:Stack", "custom": False},
        {
            "urn": provider,
            "type": "pulumi:providers:kubernetes",
            "custom": True,
            "inputs": {"__internal": {}, **INPUTS},
        },
    ]
    parents = dict.fromkeys(manifest_parent(manifest, STACK) for manifest in MANIFESTS)
    resources += [{"urn": urn, "type": urn.split("::")[2], "custom": False, "parent": root} for urn in parents]
    for manifest in MANIFESTS:
        resource = {
            "urn": manifest_urn(manifest, STACK),
            "type": type_token(manifest),
            "custom": True,
            "inputs": copy.deepcopy(manifest.body),
            "parent": manifest_parent(manifest, STACK),
        }
        resources.append({**resource, **({"protect": True} if manifest.holds_data else {})})
    return {"manifest": {}, "resources": resources}


def declared(found: dict[str, Any], **options: Any) -> bool:
    return is_declared(found, MANIFESTS, STACK, **{"provider_inputs": INPUTS, **options})


def test_what_is_applied_is_declared() -> None:
    assert declared(state())


def changes(resource: Resource) -> Iterator[Resource | None]:
    """Each way in which a resource of the state may differ from what is declared; None: it is missing."""
    yield None
    for name in ("delete", "pendingReplacement", "external", "taint", "protect", "retainOnDelete"):
        yield {**resource, name: not resource.get(name)}
    yield {**resource, "initErrors": ["is not ready"]}
    yield {**resource, "parent": resource["parent"] + "-other"}
    yield {**resource, "urn": resource["urn"] + "-other"}
    if resource["custom"]:
        for path in leaves(resource["inputs"]):
            for value in ("other", None, True, 1, 1.0):
                body = copy.deepcopy(resource)
                place = body["inputs"]
                for step in path[:-1]:
                    place = place[step]
                if not is_same_value(place[path[-1]], value):
                    place[path[-1]] = value
                    yield body


def is_same_value(old: Any, new: Any) -> bool:
    """Two notations of one number are the same quantity, and `1` and `1.0` the same number of JSON."""
    if isinstance(old, bool) or isinstance(new, bool) or old is None or new is None:
        return old is new
    return old == new or {str(old), str(new)} <= {"1", "1.0"}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = False
    for key, entry in entries:
        found = True
        yield from leaves(entry, (*path, key))
    if not found and path:
        yield path


def test_every_difference_is_the_engines() -> None:
    """Property: whatever differs in the state, in any field of any resource, the engine runs."""
    tried = 0
    for index, resource in enumerate(state()["resources"]):
        if "parent" in resource:
            for changed in changes(resource):
                found = state()
                found["resources"][index : index + 1] = [changed] if changed is not None else []
                assert not declared(found), (resource["urn"], changed)
                tried += 1
    assert tried > 1000


def test_the_notation_of_a_quantity_is_no_difference() -> None:
    found = state()
    resource = next(r for r in found["resources"] if r["type"].endswith(":PersistentVolumeClaim"))
    requests = resource["inputs"]["spec"]["resources"]["requests"]
    assert requests["storage"].endswith("Gi")
    requests["storage"] = f"{int(requests['storage'][:-2]) * 1024}Mi"
    assert declared(found)
    requests["storage"] = "1Mi"
    assert not declared(found)


@pytest.mark.parametrize("inputs", [{**INPUTS, "context": "west"}, {**INPUTS, "version": "4.33.0"}, {}])
def test_another_provider_is_the_engines(inputs: dict[str, str]) -> None:
    assert not declared(state(), provider_inputs=inputs)


def test_objects_that_are_left_alone_are_no_difference() -> None:
    found = state()
    kept = {**next(r for r in found["resources"] if r.get("protect")), "urn": "urn:kept"}
    found["resources"].append(kept)
    assert declared(found, excluded=["urn:kept"])
    assert not declared(found)


def test_an_empty_or_pending_state_is_the_engines() -> None:
    assert not declared({})
    assert not is_declared(None, [], STACK, provider_inputs=INPUTS)
    assert not declared({**state(), "pending_operations": [{"type": "creating"}]})


@pytest.mark.parametrize("before", [None, {"manifest": {"version": "v3"}}, state()])
def test_a_record_is_read_again(before: dict[str, Any] | None) -> None:
    refs = [ObjectRef.of(manifest.body) for manifest in MANIFESTS]
    assert read_record(before) is None
    found = with_record(before, STACK, refs)
    assert read_record(found) == refs
    assert read_record(with_record(found, STACK, [])) == []
    assert [r["urn"] for r in found["resources"]][1:] == [r["urn"] for r in (before or {}).get("resources", [])][1:]
    assert {k: v for k, v in found.items() if k != "resources"} == {
        k: v for k, v in (before or {}).items() if k != "resources"
    }
