"""Accounts of pods and daemons, and their rights in one namespace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item


def account_subject(name: str, namespace: str) -> Body:
    """Return a service account as the subject of a binding."""
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def build_role(
    item: Item,
    cluster: str,
    name: str,
    namespace: str,
    rules: list[Body],
    subjects: Iterable[Body],
    component: str | None = None,
) -> list[Manifest]:
    """Return a Role, and the RoleBinding of the same name that gives it to the subjects."""
    version = f"{k8s.RBAC}/v1"
    where: dict[str, Any] = {"namespace": namespace, "component": component}
    role, given = k8s.role_reference("Role", name), list(subjects)
    return [
        k8s.build_manifest(item, cluster, version, "Role", name, rules=rules, **where),
        k8s.build_manifest(item, cluster, version, "RoleBinding", name, roleRef=role, subjects=given, **where),
    ]


def build_account(
    item: Item, name: str, component: str, rules: list[Body], accounts: Sequence[str] = ()
) -> list[Manifest]:
    """Return a service account in the namespace of a spec with its own role, which other `accounts` there get, too."""
    namespace = str(item.ns)
    account = k8s.build_manifest(
        item,
        item.cluster,
        "v1",
        "ServiceAccount",
        name,
        namespace=namespace,
        component=component,
        automountServiceAccountToken=False,
    )
    subjects = [account_subject(each, namespace) for each in (name, *accounts)]
    return [account, *build_role(item, item.cluster, name, namespace, rules, subjects, component)]
