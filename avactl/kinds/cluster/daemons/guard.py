"""Admission policy on namespaces: whatever engine applies them, a team takes over none that is not avactl's."""

from __future__ import annotations

from avactl.contracts import names
from avactl.program.lowering import k8s
from avactl.program.manifest import Manifest
from avactl.program.program import Item
from avactl.spec.platform.cluster import ClusterSpec

NAME = "avactl-namespaces"
MANAGED = f"{{}}.metadata.?labels['{names.MANAGED_BY}'].orValue('') == '{names.MANAGER}'"
"""CEL expression: an object is avactl's."""


def guard_policies(item: Item[ClusterSpec]) -> list[Manifest]:
    """Return the policy and its binding."""
    team = f"{{}}.metadata.?labels['{names.TEAM_LABEL}'].hasValue()"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["namespaces"]}
    condition = f"{team.format('object')} && !{team.format('oldObject')}"
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "gets-a-team", "expression": condition}],
    }
    message = (
        "foreign-namespace: the namespace exists and is not avactl's; choose another name, or hand it over with "
        f"`kubectl label namespace NAME {names.MANAGED_BY}={names.MANAGER}`"
    )
    return k8s.admission_policy(item, item.name, NAME, spec, [(MANAGED.format("oldObject"), message)])
