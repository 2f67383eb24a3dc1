"""Files and specs that move: the same objects stay as they are, and renamed ones leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from avactl.apply.reconcile.reporting.report import as_text
from tests.reconcile.world import World

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("reconcile")]


def _spec(world: World, name: str, *objects: str) -> str:
    bodies = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": each, "namespace": f"{world.name}-vision"},
            "data": {"mode": each},
        }
        for each in objects
    ]
    document = {
        "apiVersion": "avactl.dev/v1",
        "kind": "KubernetesObjects",
        "metadata": {"name": name, "team": "vision"},
    }
    return yaml.safe_dump({**document, "spec": {"objects": bodies}})


def _live(world: World) -> dict[str, Any]:
    bodies = world.kube.list("v1", "ConfigMap", f"{world.name}-vision")
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in bodies if "mode" in each.get("data", {})}


def test_what_moves_stays_and_what_is_renamed_is_pruned(world: World) -> None:
    first = {"one.yaml": _spec(world, "one", "a", "b"), "two.yaml": _spec(world, "two", "c")}
    world.commit({"platform.yaml": world.specs(), **first})
    assert world.once(wait=False).complete
    before = _live(world)
    assert sorted(before) == ["a", "b", "c"]

    # The files move into a directory, and change their order.
    moved = {"teams/z.yaml": first["one.yaml"], "teams/a.yaml": first["two.yaml"]}
    world.commit({"one.yaml": None, "two.yaml": None, **moved})
    assert not world.once(wait=False).changed

    # A spec is renamed with its file, and an object moves from one spec to the other.
    renamed = {"teams/uno.yaml": _spec(world, "uno", "a"), "teams/a.yaml": _spec(world, "two", "b", "c")}
    world.commit({"teams/z.yaml": None, **renamed})
    result = world.once(wait=False)
    assert result.complete, as_text(result, False)
    assert _live(world) == before
    assert not world.once(wait=False).changed

    # An object is renamed, and its file moves, in one commit.
    world.commit({"teams/uno.yaml": None, "uno.yaml": _spec(world, "uno", "a2")})
    assert world.once(wait=False).complete
    after = _live(world)
    assert sorted(after) == ["a2", "b", "c"]
    assert (after["b"], after["c"]) == (before["b"], before["c"])
    assert not world.once(wait=False).changed
    world.want_state_of_git("lab")
