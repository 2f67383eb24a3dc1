"""Recognition of templates and defaults among documents, without imports that a warm start would pay for."""

from __future__ import annotations

from typing import Any

DEFAULTS = "Defaults"
"""Kind of the documents with defaults of a team or the platform."""

SpecName = tuple[str, str, str]
"""Kind, team or "", and name of a document."""


def is_template(value: Any) -> bool:
    """Return True if a document declares a template."""
    return isinstance(value, dict) and value.get("template") is True


def is_defaults(value: Any) -> bool:
    """Return True if a document declares defaults."""
    return isinstance(value, dict) and value.get("kind") == DEFAULTS


def name_of(value: Any) -> SpecName:
    """Return what a document names itself; parts that are not text are empty."""
    try:
        kind, metadata = value["kind"], value["metadata"]
        team, name = metadata.get("team", ""), metadata["name"]
        if isinstance(kind, str) and isinstance(team, str) and isinstance(name, str):
            return kind, team, name
    except (AttributeError, LookupError, TypeError):
        pass  # malformed, which a later pass reports
    if not isinstance(value, dict):
        return "", "", ""
    metadata = value.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    found = (value.get("kind"), named.get("team"), named.get("name"))
    return tuple(each if isinstance(each, str) else "" for each in found)  # type: ignore[return-value]


def declares_layer(value: Any) -> bool:
    """Return True if a document declares a template or defaults, and no spec."""
    return is_template(value) or is_defaults(value)


def extends_template(value: Any) -> bool:
    """Return True if a document extends a template, or says whether it is one."""
    return isinstance(value, dict) and ("extends" in value or "template" in value)
