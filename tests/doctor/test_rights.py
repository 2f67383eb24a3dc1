"""Rights of the account that applies the objects: what only an administrator may write is no fault of it."""

from __future__ import annotations

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live, Resource
from avactl.apply.doctor.model import State
from avactl.apply.doctor.needs import needs_of
from tests.kinds.compiling import compiled

CLUSTER = "kind: Cluster\nmetadata: {name: main}\nspec: {reconcile: {mode: MODE}}"
ROLES = Resource("rbac.authorization.k8s.io", "clusterroles", False)


def rights(mode: str, denied: dict[tuple[Resource, str], set[str]]) -> dict[State, str]:
    needs = needs_of(compiled(CLUSTER.replace("MODE", mode)), "main")
    findings = check(needs, Live(version="1.36.0", denied=denied))
    return {each.state: f"{each.message}: {each.remedy}" for each in findings if each.check == "rights"}


def test_the_reconcilers_account_leaves_roles_to_an_administrator() -> None:
    denied = {(ROLES, ""): {"create", "patch"}, (Resource("", "limitranges", True), ""): {"create", "patch"}}
    found = rights("builtin", denied)
    assert "clusterroles" in found[State.WARNING]
    assert "an administrator applies them: `avactl reconcile --once`" in found[State.WARNING]
    assert "clusterroles" not in found[State.FAILED]
    assert "limitranges" in found[State.FAILED]


def test_other_engines_write_roles() -> None:
    assert "clusterroles" in rights("files", {(ROLES, ""): {"create"}})[State.FAILED]


def test_it_must_read_them() -> None:
    assert "clusterroles" in rights("builtin", {(ROLES, ""): {"get", "patch"}})[State.FAILED]
