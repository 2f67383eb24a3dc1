"""What people do to a cluster by hand: values changed, fields removed and added, objects deleted."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from avactl.apply.reconcile.desired import Wanted
from tests.reconcile.world import World, content, key_of
from tools.controlplane import ApiError

Path = tuple[str | int, ...]
MANAGERS = ("kubectl-edit", "kubectl-patch", "k9s", "python-httpx", "someone")
APPLIERS = ("kubectl-client-side-apply", "kubectl")
"""`kubectl apply` without and with `--server-side`, which own all fields of what they apply."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NEVER = frozenset(("name", "namespace", "apiVersion", "kind"))


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all plain values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path


def at(value: Any, path: Path) -> Any:
    """The value at a path. Raises KeyError, IndexError and TypeError."""
    for step in path:
        value = value[step]
    return value


def edit(body: dict[str, Any], chance: random.Random) -> str:
    """One change in an object; what it was."""
    way = chance.choice(["change", "change", "remove", "add"])
    if way == "add":
        return _add(body, chance)
    paths = [path for path in leaves({k: v for k, v in body.items() if k not in _NEVER}) if path[-1] not in _NEVER]
    path = chance.choice(paths)
    *parents, last = path
    holder = at(body, tuple(parents))
    if way == "remove":
        del holder[last]
        return f"remove {path}"
    holder[last] = _other(holder[last], chance)
    return f"change {path}"


def _other(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice([1, 2])
    return f"{value}x" if chance.random() < 0.7 else f"{value}1"


def _add(body: dict[str, Any], chance: random.Random) -> str:
    if chance.random() < 0.5 or body["kind"] not in ("ConfigMap", "Deployment", "StatefulSet", "DaemonSet", "Role"):
        body["metadata"].setdefault("annotations", {})["example.com/hand"] = "made"
        return "add an annotation"
    if body["kind"] == "ConfigMap":
        if "data" not in body:  # a program of the job writes it
            return ""
        body["data"]["by-hand"] = "made"
        return "add data"
    if body["kind"] == "Role":
        body["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
        return "add a rule"
    container = body["spec"]["template"]["spec"]["containers"][0]
    container.setdefault("env", []).append({"name": "BY_HAND", "value": "made"})
    return "add an environment variable"


def by_hand(world: World, wanted: Wanted, chance: random.Random, *, delete: float = 0.25) -> str:
    """One change of one object in the cluster that the API server takes; what it was, or nothing."""
    version, kind, namespace, name = key_of(wanted.body)
    if chance.random() < delete:
        world.kube.delete(version, kind, name, namespace or None)
        return "delete"
    path = world.kube.path(version, kind, name, namespace)
    for _ in range(20):
        live = world.kube.get(version, kind, name, namespace or None)
        # Only what git declares is there to be changed, and what people add.
        changed = copy.deepcopy(dict(wanted.body))
        if not (done := edit(changed, chance)):
            continue
        merged = _merged(live, wanted.body, changed)
        manager = chance.choice((*MANAGERS[:2], *APPLIERS) if "annotation" in done else (*MANAGERS, *APPLIERS))
        try:
            if manager == "kubectl":
                answer = world.kube.apply(changed, field_manager=manager, force=True)
            else:
                if manager == "kubectl-client-side-apply":
                    merged["metadata"].setdefault("annotations", {})[_LAST_APPLIED] = json.dumps(changed)
                answer = world.kube.request("PUT", path, body=merged, query={"fieldManager": manager})
        except ApiError as error:
            # 500: two equal entries of a set, by server-side apply.
            if error.status not in (400, 403, 409, 422, 500):
                raise
            continue
        if content(answer.body) != content(live):
            return f"{done} by {manager}"
    return ""


def _merged(live: Any, before: Any, after: Any) -> Any:
    """The live value with the difference between two others."""
    if before == after:
        return live
    if isinstance(live, dict) and isinstance(before, dict) and isinstance(after, dict):
        result = dict(live)
        for key in {**before, **after}:
            if key not in after:
                result.pop(key, None)
            elif key not in before or key not in live:
                result[key] = after[key]
            else:
                result[key] = _merged(live[key], before[key], after[key])
        return result
    if isinstance(live, list) and isinstance(before, list) and isinstance(after, list):
        if len(live) == len(before) == len(after):
            return [_merged(*each) for each in zip(live, before, after, strict=True)]
        if len(after) > len(before):
            return [*live, *after[len(before) :]]
    return after


def snapshot(live: Mapping[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """A copy."""
    return {key: copy.deepcopy(body) for key, body in live.items()}
