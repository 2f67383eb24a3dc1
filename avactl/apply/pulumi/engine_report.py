"""Report the engine's events in terms of specs, grouped by the component of each spec. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.apply.pulumi.resource_plan import component_type
from avactl.diagnostics.redaction import redact

_SIGNS = {"create": "+", "update": "~", "delete": "-", "replace": "±", "import": "+"}
_WORDS = {"create": "new", "import": "new", "update": "changed", "replace": "replaced", "delete": "deleted"}
_NEW_OF_REPLACE = "create-replacement"
_DONE = ("create", "update", "delete", "import", _NEW_OF_REPLACE)
_SHOWN_FIELDS = 4
_MARKUP = re.compile(r"<\{%[^%]*%\}>|\x1b\[[0-9;]*m")
_PROTECTED = re.compile(r'resource "(urn:[^"]+)"[^"]*protect', re.IGNORECASE)
_STEP = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[]+)')


class Change(NamedTuple):
    """The change of one object."""

    operation: str
    urn: str
    parent: str
    fields: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """Changes and problems of one engine run or preview, collected from its events."""

    changes: dict[str, Change] = field(default_factory=dict)
    same: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, event: Any) -> Change | None:
        """Record an engine event (`pulumi.automation.EngineEvent`); return the change if it completes one."""
        if (said := event.diagnostic_event) is not None:
            if said.severity in ("error", "warning"):
                found = self.problems if said.severity == "error" else self.warnings
                _complain(found, said.urn, _problem(plain(said.message)))
        elif (step := event.resource_pre_event) is not None:
            self._begin(step.metadata)
        elif (done := event.res_outputs_event) is not None and _operation(done.metadata) in _DONE:
            return self.changes.get(done.metadata.urn)
        return None

    def _begin(self, metadata: Any) -> None:
        operation = _operation(metadata)
        if not _is_object(metadata.urn):
            return
        if operation in ("same", "read"):
            self.same += 1
        elif operation in _SIGNS or operation == _NEW_OF_REPLACE:
            operation = "replace" if operation == _NEW_OF_REPLACE else operation
            state = metadata.new or metadata.old
            change = Change(operation, metadata.urn, state.parent if state else "", tuple(_fields(metadata)))
            if change.fields or metadata.urn not in self.changes:
                self.changes[metadata.urn] = change

    @property
    def counts(self) -> dict[str, int]:
        """Count new, changed, replaced and deleted objects."""
        return Counter(_WORDS[change.operation] for change in self.changes.values())


def _complain(found: list[str], urn: str | None, text: str) -> None:
    where = object_of(urn) if urn and _is_object(urn) else ""
    if text and not any(text in known for known in found):
        found.append(f"{where}: {text}" if where and where not in text else text)


def _operation(metadata: Any) -> str:
    return str(getattr(metadata.op, "value", metadata.op))


def _is_object(urn: str) -> bool:
    return urn.split("::")[2].rpartition("$")[2].startswith("kubernetes:")


def plain(text: str) -> str:
    """Strip colours from the engine's text."""
    return _MARKUP.sub("", text).strip()


def _problem(text: str) -> str:
    """Return the error without the engine's advice for authors of Pulumi programs."""
    if text in ("preview failed", "update failed", "refresh failed") or "from $PATH" in text:
        return ""
    if (protected := _PROTECTED.search(text)) is not None:
        what = "replace" if "replace" in text[: protected.start(1)] else "delete"
        return f"{object_of(protected[1])} holds data, and this would {what} it"
    return text


def spec_of(urn: str) -> str:
    """Return the spec of a component's URN: `TrainingJob vision/resnet50`."""
    token, _, name = urn.split("::", 2)[2].partition("::")
    return f"{token.rpartition('$')[2].removeprefix(component_type(''))} {name}"


def object_of(urn: str) -> str:
    """Return the object of a URN: `Job vision/resnet50-worker`."""
    token, _, name = urn.split("::", 2)[2].partition("::")
    return f"{token.rpartition(':')[2]} {name}"


def lines(report: Report) -> list[str]:
    """Format the changes, each spec with its objects."""
    by_spec: dict[str, list[Change]] = {}
    for change in report.changes.values():
        by_spec.setdefault(change.parent, []).append(change)
    out: list[str] = []
    for parent in sorted(by_spec, key=spec_of):
        changes = by_spec[parent]
        operations = {change.operation for change in changes}
        sign = _SIGNS[operations.pop()] if len(operations) == 1 else "~"
        out.append(f"{sign} {spec_of(parent)}")
        out += [f"    {line(change)}" for change in sorted(changes, key=lambda change: object_of(change.urn))]
    out += warnings(report)
    return out


def warnings(report: Report) -> list[str]:
    """Return the engine's warnings."""
    return [redact(f"warning: {text}") for text in report.warnings]


def line(change: Change) -> str:
    """Format one object's change: `~ Job vision/resnet50-worker  spec.completions 2 → 4`."""
    shown = list(change.fields[:_SHOWN_FIELDS])
    if len(change.fields) > _SHOWN_FIELDS:
        shown.append(f"… and {len(change.fields) - _SHOWN_FIELDS} more")
    text = f"{_SIGNS[change.operation]} {object_of(change.urn)}"
    return redact(f"{text}  {', '.join(shown)}" if shown else text)


def summary(report: Report) -> str:
    """Return e.g. `3 objects: 1 new, 2 changed; 40 unchanged`."""
    counts = report.counts
    if not counts:
        return f"no changes: {report.same} objects are as declared"
    total = sum(counts.values())
    parts = ", ".join(f"{counts[word]} {word}" for word in dict.fromkeys(_WORDS.values()) if word in counts)
    return f"{total} object{'' if total == 1 else 's'}: {parts}; {report.same} unchanged"


def _fields(metadata: Any) -> Iterable[str]:
    """Yield the changed fields, with old and new value if short."""
    if _operation(metadata) in ("create", "delete"):
        return
    old = metadata.old.inputs if metadata.old else {}
    new = metadata.new.inputs if metadata.new else {}
    paths = metadata.detailed_diff or metadata.diffs or ()
    for path in sorted(paths):
        before, after = _show(_value(old, path)), _show(_value(new, path))
        yield f"{path} {before} → {after}" if before and after and before != after else path


def _value(data: Any, path: str) -> Any:
    """Return the value at a Pulumi property path: `spec.containers[0].image`, `data["a.b"]`."""
    for quoted, index, name in _STEP.findall(path):
        if index and isinstance(data, list) and int(index) < len(data):
            data = data[int(index)]
        elif not index and isinstance(data, Mapping):
            data = data.get(quoted or name)
        else:
            return None
    return data


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value) if isinstance(value, str | int | float) else ""
    return text if len(text) <= 60 and "\n" not in text else ""
