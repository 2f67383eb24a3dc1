"""Report the engine's events in terms of specs, grouped by the component of each spec. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from avactl.apply.pulumi.resource_plan import component_type
from avactl.contracts.pod_annotations import AnnotationReader, read_by
from avactl.diagnostics.redaction import redact_text

_OPERATION_SIGNS = {"create": "+", "update": "~", "delete": "-", "replace": "±", "import": "+"}
_OPERATION_WORDS = {"create": "new", "import": "new", "update": "changed", "replace": "replaced", "delete": "deleted"}
_NEW_OF_REPLACE = "create-replacement"
_DONE_OPERATIONS = ("create", "update", "delete", "import", _NEW_OF_REPLACE)
_SHOWN_FIELDS = 4
_COLOUR_MARKUP = re.compile(r"<\{%[^%]*%\}>|\x1b\[[0-9;]*m")
_PROTECTED_ERROR = re.compile(r'resource "(urn:[^"]+)"[^"]*protect', re.IGNORECASE)
_PATH_STEP = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[]+)')
_DIGEST_STEPS = tuple(f'.annotations["{annotation.name}"]' for annotation in read_by(AnnotationReader.DIFF))


class EngineChange(NamedTuple):
    """The change of one object."""

    operation: str
    urn: str
    parent: str
    fields: tuple[str, ...]


@dataclass(slots=True)
class EngineReport:
    """Changes and problems of one engine run or preview, collected from its events."""

    changes: dict[str, EngineChange] = field(default_factory=dict)
    same: int = 0
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, event: Any) -> EngineChange | None:
        """Record an engine event (`pulumi.automation.EngineEvent`); return the change if it completes one."""
        if (said := event.diagnostic_event) is not None:
            if said.severity in ("error", "warning"):
                found = self.problems if said.severity == "error" else self.warnings
                _add_complaint(found, said.urn, _error_text(strip_colours(said.message)))
        elif (step := event.resource_pre_event) is not None:
            self._begin(step.metadata)
        elif (done := event.res_outputs_event) is not None and _operation_of(done.metadata) in _DONE_OPERATIONS:
            return self.changes.get(done.metadata.urn)
        return None

    def _begin(self, metadata: Any) -> None:
        operation = _operation_of(metadata)
        if not _is_object(metadata.urn):
            return
        if operation in ("same", "read"):
            self.same += 1
        elif operation in _OPERATION_SIGNS or operation == _NEW_OF_REPLACE:
            operation = "replace" if operation == _NEW_OF_REPLACE else operation
            state = metadata.new or metadata.old
            change = EngineChange(
                operation, metadata.urn, state.parent if state else "", tuple(_changed_fields(metadata))
            )
            if change.fields or metadata.urn not in self.changes:
                self.changes[metadata.urn] = change

    @property
    def counts(self) -> dict[str, int]:
        """Count new, changed, replaced and deleted objects."""
        return Counter(_OPERATION_WORDS[change.operation] for change in self.changes.values())


def _add_complaint(found: list[str], urn: str | None, text: str) -> None:
    where = object_of(urn) if urn and _is_object(urn) else ""
    if text and not any(text in known for known in found):
        found.append(f"{where}: {text}" if where and where not in text else text)


def _operation_of(metadata: Any) -> str:
    return str(getattr(metadata.op, "value", metadata.op))


def _is_object(urn: str) -> bool:
    return urn.split("::")[2].rpartition("$")[2].startswith("kubernetes:")


def strip_colours(text: str) -> str:
    """Strip colours from the engine's text."""
    return _COLOUR_MARKUP.sub("", text).strip()


def _error_text(text: str) -> str:
    """Return the error without the engine's advice for authors of Pulumi programs."""
    if text in ("preview failed", "update failed", "refresh failed") or "from $PATH" in text:
        return ""
    if (protected := _PROTECTED_ERROR.search(text)) is not None:
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


def report_lines(report: EngineReport) -> list[str]:
    """Format the changes, each spec with its objects."""
    by_spec: dict[str, list[EngineChange]] = {}
    for change in report.changes.values():
        by_spec.setdefault(change.parent, []).append(change)
    out: list[str] = []
    for parent in sorted(by_spec, key=spec_of):
        changes = by_spec[parent]
        operations = {change.operation for change in changes}
        sign = _OPERATION_SIGNS[operations.pop()] if len(operations) == 1 else "~"
        out.append(f"{sign} {spec_of(parent)}")
        out += [f"    {change_line(change)}" for change in sorted(changes, key=lambda change: object_of(change.urn))]
    out += report_warnings(report)
    return out


def report_warnings(report: EngineReport) -> list[str]:
    """Return the engine's warnings."""
    return [redact_text(f"warning: {text}") for text in report.warnings]


def change_line(change: EngineChange) -> str:
    """Format one object's change: `~ Job vision/resnet50-worker  spec.completions 2 → 4`."""
    shown = list(change.fields[:_SHOWN_FIELDS])
    if len(change.fields) > _SHOWN_FIELDS:
        shown.append(f"… and {len(change.fields) - _SHOWN_FIELDS} more")
    text = f"{_OPERATION_SIGNS[change.operation]} {object_of(change.urn)}"
    return redact_text(f"{text}  {', '.join(shown)}" if shown else text)


def report_summary(report: EngineReport) -> str:
    """Return e.g. `3 objects: 1 new, 2 changed; 40 unchanged`."""
    counts = report.counts
    if not counts:
        return f"no changes: {report.same} objects are as declared"
    total = sum(counts.values())
    parts = ", ".join(f"{counts[word]} {word}" for word in dict.fromkeys(_OPERATION_WORDS.values()) if word in counts)
    return f"{total} object{'' if total == 1 else 's'}: {parts}; {report.same} unchanged"


def _changed_fields(metadata: Any) -> Iterable[str]:
    """Yield the changed fields, with old and new value if short.

    Digests that avactl writes into annotations are omitted, because what they are made of is shown.
    """
    if _operation_of(metadata) in ("create", "delete"):
        return
    old = metadata.old.inputs if metadata.old else {}
    new = metadata.new.inputs if metadata.new else {}
    paths = sorted(metadata.detailed_diff or metadata.diffs or ())
    for path in [path for path in paths if not path.endswith(_DIGEST_STEPS)] or paths:
        before, after = _show_value(_value_at(old, path)), _show_value(_value_at(new, path))
        yield f"{path} {before} → {after}" if before and after and before != after else path


def _value_at(data: Any, path: str) -> Any:
    """Return the value at a Pulumi property path: `spec.containers[0].image`, `data["a.b"]`."""
    for quoted, index, name in _PATH_STEP.findall(path):
        if index and isinstance(data, list) and int(index) < len(data):
            data = data[int(index)]
        elif not index and isinstance(data, Mapping):
            data = data.get(quoted or name)
        else:
            return None
    return data


def _show_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value) if isinstance(value, str | int | float) else ""
    return text if len(text) <= 60 and "\n" not in text else ""
