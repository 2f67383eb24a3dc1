"""Rights of the account that applies the objects: what only an administrator may write is no fault of it."""

from __future__ import annotations

from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live, LiveResource
from avactl.apply.doctor.model import CheckState
from avactl.apply.doctor.needs import needs_of
from tests.kinds.compiling import compiled

CLUSTER = "kind: Cluster\nmetadata: {name: main}\nspec: {reconcile: {mode: MODE}}"
ROLES = LiveResource("rbac.authorization.k8s.io", "clusterroles", False)


def rights(mode: str, denied: dict[tuple[LiveResource, str], set[str]]) -> dict[CheckState, str]:
    needs = needs_of(compiled(CLUSTER.replace("MODE", mode)), "main")
    findings = check(needs, Live(version="1.36.0", denied=denied))
    return {each.state: f"{each.message}: {each.remedy}" for each in findings if each.check == "rights"}


def test_the_reconcilers_account_leaves_roles_to_an_administrator() -> None:
    denied = {(ROLES, ""): {"create", "patch"}, (LiveResource("", "limitranges", True), ""): {"create", "patch"}}
    found = rights("builtin", denied)
    assert "clusterroles" in found[CheckState.WARNING]
    assert "an administrator applies them: `avactl reconcile --once`" in found[CheckState.WARNING]
    assert "clusterroles" not in found[CheckState.FAILED]
    assert "limitranges" in found[CheckState.FAILED]


def test_other_engines_write_roles() -> None:
    assert "clusterroles" in rights("files", {(ROLES, ""): {"create"}})[CheckState.FAILED]


def test_it_must_read_them() -> None:
    assert "clusterroles" in rights("builtin", {(ROLES, ""): {"get", "patch"}})[CheckState.FAILED]
