"""Changes of source objects, one value at a time, and what an import says of them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from avactl.program import kubernetes_schema
from avactl.workbench.importer import report
from avactl.workbench.importer.model import GivenValue, ImportResult
from avactl.workbench.importer.session import Imported

Path = tuple[str | int, ...]
_OTHER_WORDS = {
    "OnFailure": "Never",
    "Never": "OnFailure",
    "Always": "IfNotPresent",
    "IfNotPresent": "Never",
    "RollingUpdate": "Recreate",
    "Recreate": "RollingUpdate",
    "ClusterIP": "NodePort",
    "NoSchedule": "NoExecute",
    "Exists": "Equal",
    "In": "NotIn",
    "HTTP": "HTTPS",
    "TCP": "UDP",
    "None": "Always",
    "Memory": "",
}
"""Words that the API knows, and others that it knows at the same place."""
_SERVER_KEYS = ("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "ownerReferences")
_SAMPLES = {"string": "other", "integer": 7, "boolean": True, "number": 7}
_UNKNOWN_WORDS = (("status",), ("spec", "strategy", "type"), ("spec", "template", "spec", "ephemeralContainers"))
"""Keys that are not added: the API refuses them, or knows one other value."""
_KNOWN_SAMPLES = {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}
_MAX_DEPTH = 4


class Change(NamedTuple):
    """One change of an object: at a path, to a value; `ABSENT` removes it."""

    path: Path
    value: Any
    how: str

    @property
    def text(self) -> str:
        """The path in words, without positions: `spec.containers[].image`."""
        return key_path(self.path, "")

    def __str__(self) -> str:
        shown = "" if self.value is ABSENT else f": {str(self.value)[:80]}"
        return f"{self.how} {key_path(self.path)}{shown}"


ABSENT = object()


def key_path(path: Path, index: str = "{}") -> str:
    """Return a path as reports show it."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{index.format(step)}]"
        else:
            text += f"[{step}]" if "." in step or "/" in step else f".{step}" if text else step
    return text


def value_at(value: Any, path: Path) -> Any:
    """Return the value at a path, or ABSENT."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step, ABSENT)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return ABSENT
    return value


def changes(body: dict[str, Any]) -> Iterator[Change]:
    """Yield the changes of an object: each value another one, each value gone, and each key that it could have."""
    for path, value in _values(body):
        if path[0] in ("apiVersion", "kind") or path == ("metadata",) or path[:2] == ("metadata", "name"):
            continue
        if path[0] == "status" and body["kind"] != "Node":
            continue
        if any(step in _SERVER_KEYS for step in path):
            continue
        if not isinstance(value, dict | list):
            yield Change(path, _other(path, value), "changed")
        if value not in (None, {}, [], ""):
            yield Change(path, ABSENT, "removed")
        if isinstance(value, list) and value and isinstance(value[-1], dict):
            yield Change((*path, len(value)), _twin(value[-1]), "added")
        if isinstance(value, dict):
            for key, schema in _fields(body, path).items():
                if key not in value and (*path, key) not in _UNKNOWN_WORDS and value != {"type": "Recreate"}:
                    yield Change((*path, key), _KNOWN_SAMPLES.get(key) or _sample(schema), "added")


def apply(body: dict[str, Any], change: Change) -> dict[str, Any]:
    """Return the object with the change."""
    made = copy.deepcopy(body)
    value: Any = made
    for step in change.path[:-1]:
        value = value[step]
    last: Any = change.path[-1]
    if change.value is ABSENT:
        del value[last]
    elif isinstance(value, list) and last == len(value):
        value.append(copy.deepcopy(change.value))
    else:
        value[last] = copy.deepcopy(change.value)
    return made


def _values(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if path:
        yield path, value
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from _values(inner, (*path, key))


def _other(path: Path, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    text = str(value)
    if text in _OTHER_WORDS:
        return _OTHER_WORDS[text]
    if "A100" in text:
        return text.replace("A100", "H100")
    if re.search("h100", text, re.IGNORECASE):
        return re.sub("h100", "h200", text, flags=re.IGNORECASE)
    amount = re.fullmatch(r"([0-9]+)([A-Za-z%]*)", text)
    return f"{int(amount[1]) + 1}{amount[2]}" if amount is not None else f"{text}x"


def _twin(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of a list like the one before it, of another name."""
    made = copy.deepcopy(entry)
    for key in ("name", "mountPath", "ip", "key", "containerPort", "port"):
        if isinstance(made.get(key), str):
            made[key] += "-2"
        elif isinstance(made.get(key), int):
            made[key] += 1
    return made


def _fields(body: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the keys that a mapping of an object could have, as far as Kubernetes' own kinds are concerned."""
    schema = kubernetes_schema.find(body["apiVersion"], body["kind"])
    steps = path
    if schema is None:
        if "template" not in path:
            return {}
        schema = kubernetes_schema.child_schema(
            kubernetes_schema.child_schema(kubernetes_schema.find("batch/v1", "Job") or {}, "spec"), "template"
        )
        steps = path[path.index("template") + 1 :]
    if steps[:1] == ("metadata",) and len(steps) == 1:
        return {}
    try:
        for step in steps:
            schema = kubernetes_schema.child_schema(schema, step)
    except (KeyError, TypeError):
        return {}
    schema = kubernetes_schema.resolve_reference(schema)
    return schema.get("fields", {}) if schema["type"] == "object" else {}


def _sample(schema: Any, depth: int = 0) -> Any:
    """Return a value of a schema, with something in each mapping and list."""
    quantity = str(schema.get("ref", "")).endswith("Quantity")
    schema = kubernetes_schema.resolve_reference(schema)
    kind = schema["type"]
    if quantity:
        return "7Gi"
    if kind == "list":
        return [_sample(schema["items"], depth + 1)] if depth < _MAX_DEPTH else []
    if kind == "map":
        return {"example.com/other": "other"}
    if kind == "object":
        fields = schema["fields"]
        wanted = [key for key in fields if key in schema.get("required", ())] or list(fields)[:1]
        return {key: _sample(fields[key], depth + 1) for key in wanted} if depth < _MAX_DEPTH else {}
    return _SAMPLES.get(kind, "other")


class Told(NamedTuple):
    """What an import says."""

    files: dict[str, bytes]
    words: list[str]
    lost: list[tuple[str, str]]
    """Objects and paths whose values are not carried over."""

    def covers(self, given: GivenValue, change: Change, made: Imported) -> bool:
        """Return whether a line says that nothing at the place is carried over."""
        text = key_path(change.path)
        for name, path in self.lost:
            if (
                name == str(given)
                and path
                and text.startswith(path)
                and text[len(path) : len(path) + 1] in ("", ".", "[")
            ):
                return True
        return any(each.given.key == given.key and each.result is ImportResult.left_out for each in made.outcomes)


def told(made: Imported) -> Told:
    """Return the files of an import, and all that its report says."""
    words = ["  ".join(row) for row in report.table_rows(made)]
    words += [reason for reason, _ in report.group_by_reason(made)]
    words += report.loss_lines(made.losses)
    words += report.difference_lines(made)
    words += [f"{each.spec} {each.added} {each.objects}" for each in made.compared]
    lost = [(loss.source, loss.path) for loss in made.losses if not loss.carried]
    return Told(made.files, words, lost)
