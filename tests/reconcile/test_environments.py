"""Reconciling one environment of a repository: another one never prunes its objects."""

from __future__ import annotations

import pytest

from avactl.apply.reconcile.command import _not_owned
from avactl.compiler import compile_tree
from avactl.compiler.config import owners_of
from avactl.policy.owners import as_json
from avactl.spec.repository.tree import MemoryTree
from tests.compiler.test_environments import DEFAULTS, EXTENDING, TEMPLATE
from tests.reconcile.world import World
from tests.test_invalid import BASE

CONFIG = "environments: {prod: {overlays: [overlays/prod]}, staging: {}}\n"


def test_an_inventory_belongs_to_one_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: vision}\nspec: {members: {groups: [prod]}}\n"
    world.commit({"avactl.yaml": CONFIG, "specs.yaml": world.specs(), "overlays/prod/team.yaml": overlay})
    monkeypatch.setenv("AVACTL_ENVIRONMENT", "prod")
    assert world.once().ok
    assert "no cluster" not in world.run("--dry-run", "--environment", "prod").stderr
    monkeypatch.setenv("AVACTL_ENVIRONMENT", "staging")
    refused = world.once()
    assert not refused.ok
    assert "(environment prod)" in refused.problem
    assert world.once(take_over=True).ok


@pytest.mark.parametrize("path", ["defaults.yaml", "templates.yaml"])
def test_earlier_owners_decide_about_what_specs_inherit(path: str) -> None:
    """A commit cannot both give a team's file the platform's rights and use them."""
    files = {"defaults.yaml": DEFAULTS, "templates.yaml": TEMPLATE, "jobs.yaml": EXTENDING}
    text = "owners:\n  - {path: '*', teams: ['*'], kinds: ['*']}\n"
    rule = f"  - {{path: /{path}, teams: [vision]}}\n"
    recorded = compile_tree(MemoryTree({**BASE, "avactl.yaml": text + rule}))
    assert recorded.ok
    after = compile_tree(MemoryTree({**BASE, **files, "avactl.yaml": text}))
    assert after.ok
    assert _not_owned(after.program, as_json(owners_of(after.tree))) == ""
    refused = _not_owned(after.program, as_json(owners_of(recorded.tree)))
    assert f"{path} may not declare a TrainingJob without a team" in refused
