"""Policy for fields that git does not set: those of controllers stay, those added by hand are removed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from avactl.apply.reconcile.diffing.managed_fields import Path, field_owners, has_path
from avactl.program.ownership import KUBERNETES

_IS_CONTROLLER = re.compile(
    r"avactl.*|kube-.*|kubelet|kwok|cloud-.*|cluster-autoscaler|karpenter|vpa-.*|horizontal-pod-autoscaler"
    r"|.*controller.*|.*operator.*|.*provisioner.*|.*-?scheduler|.*webhook.*|.*injector.*|.*attacher.*|.*resizer.*"
    r"|.*daemon.*|.*-agent|manager|Go-http-client|before-first-apply"
).fullmatch
"""Patterns of field managers that are programs in the cluster. client-go defaults to the name of the binary."""
_IS_PERSON = re.compile(
    r"kubectl.*|oc|k9s|Lens.*|OpenLens|Headlamp|Mozilla|rancher|node-fetch|curl|[Pp]ython.*|OpenAPI-Generator|helm"
).fullmatch
"""Field managers of command-line tools."""


@dataclass(frozen=True, slots=True)
class Hands:
    """Distinguishes manual edits from controllers' writes."""

    leave: Collection[str] = field(default_factory=frozenset)
    """Further managers whose fields stay."""

    def changed(self, manager: str, path: Path) -> bool:
        """Return whether a field that git does not set was set by hand.

        Programs communicate through labels and annotations, so those count only if set with a command-line tool.
        """
        if manager in self.leave:
            return False
        if path[0] == "f:metadata":
            return path[1] in ("f:labels", "f:annotations") and _IS_PERSON(manager) is not None
        return _IS_CONTROLLER(manager) is None


def scaler_of(live: Mapping[str, Any], path: Path) -> str:
    """Return the program that has set a field of a live object by its subresource `scale`, or ""."""
    return next(
        (
            owner.manager
            for owner in field_owners(live)
            if owner.subresource == "scale" and has_path(owner.fields, path) and not _IS_PERSON(owner.manager)
        ),
        "",
    )


@lru_cache
def controller_paths(kind: str, declared: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the controller-owned paths of a kind, in the notation of field sets."""
    found = [tuple(f"f:{step}" for step in owned.path) for owned in KUBERNETES if owned.kind in (kind, "*")]
    return (*found, *(tuple(f"f:{step}" for step in path.split(".")) for path in declared))


def without_fields(body: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Return an object without the given fields; unaffected parts are shared with the original."""
    result = dict(body)
    for path in paths:
        *parents, last = path.split(".")
        at = result
        for step in parents:
            inner = at.get(step)
            if not isinstance(inner, dict):
                break
            at[step] = at = dict(inner)
        else:
            at.pop(last, None)
    return result
