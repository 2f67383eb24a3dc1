"""A machine type as readable YAML: short lists on one line, and comments on assumed values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from avactl.base.yaml_output import quote_scalar

_MAX_LINE_WIDTH = 116


def _flow_style(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow_style(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow_style(entry) for entry in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # In a flow collection a comma ends a plain scalar.
        written = quote_scalar(value)
        return f'"{value}"' if written == value and any(char in value for char in ",[]{}") else written
    return str(value)


def machine_type_yaml(name: str, spec: Mapping[str, Any], comments: Iterable[str], assumed: Mapping[str, str]) -> str:
    """Return the document. `comments` precede it; `assumed` maps `gpus.model`, `cpu`, … to the source of the value."""
    lines: list[str] = []
    for comment in comments:
        lines += textwrap.wrap(
            "".join(char if char.isprintable() else " " for char in comment),
            _MAX_LINE_WIDTH,
            initial_indent="# ",
            subsequent_indent="#   " if comment.startswith("- ") else "# ",
            break_on_hyphens=False,
        ) or ["#"]
    lines += ["apiVersion: avactl.dev/v1", "kind: MachineType", f"metadata: {{name: {_flow_style(name)}}}", "spec:"]
    for key, value in spec.items():
        notes = [
            f"{path.rpartition('.')[2] + ': ' if path != key else ''}{why}"
            for path, why in assumed.items()
            if path.partition(".")[0] == key
        ]
        note = f"  # {notes[0]}" if len(notes) == 1 else ""
        lines += [f"  # {each}" for each in notes if not note]
        if isinstance(value, list):
            lines.append(f"  {key}:{note}")
            lines += [f"    - {_flow_style(entry)}" for entry in value]
        elif key == "nvlink" and value.get("pairs"):
            lines.append(f"  {key}:{note}")
            lines += [f"    {each}: {_flow_style(value[each])}" for each in value if each != "pairs"]
            lines.append("    pairs:")
            lines += [f"      - {_flow_style(entry)}" for entry in value["pairs"]]
        else:
            lines.append(f"  {key}: {_flow_style(value)}{note}")
    return "\n".join(lines) + "\n"
