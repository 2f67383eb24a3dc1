"""The nodes of a YAML text with their extents, aliases kept: what an edit of the text needs to know of it.

The composer of PyYAML resolves aliases and ends block collections where the next token begins; an edit needs the alias
itself, and the last character that belongs to a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from avactl.spec.documents.yaml import parse_events


@dataclass(slots=True)
class TextNode:
    """A value of the text. `start` includes its anchor and tag; positions are characters from the text's beginning."""

    start: int
    end: int
    """After the last character of the value, without the line ends and comments that follow a block."""
    anchor: str = ""
    raw_end: int = 0
    """As `end`, with the blank lines that a block scalar may keep."""


@dataclass(slots=True)
class AliasText(TextNode):
    """`*name`."""


@dataclass(slots=True)
class ScalarText(TextNode):
    """A scalar; `style` is its quote, `|` or `>`, or "" for a plain one."""

    value: str = ""
    style: str = ""


@dataclass(slots=True)
class Entry:
    """An entry of a collection: `key` is None in a sequence."""

    key: TextNode | None
    value: TextNode

    @property
    def start(self) -> int:
        return self.value.start if self.key is None else self.key.start


@dataclass(slots=True)
class CollectionText(TextNode):
    """A mapping or a sequence."""

    flow: bool = False
    is_mapping: bool = True
    entries: list[Entry] = field(default_factory=list)

    def find_child(self, step: str | int) -> int | None:
        """Return the index of a key or of an item; None if there is none, or only by a merge (`<<`)."""
        if not self.is_mapping:
            return step if isinstance(step, int) and 0 <= step < len(self.entries) else None
        keys = (entry.key for entry in self.entries)
        return next((i for i, key in enumerate(keys) if isinstance(key, ScalarText) and key.value == step), None)


def parse_text_nodes(text: str) -> list[TextNode]:
    """Return the root node of each document. Raises `yaml.YAMLError`."""
    events = parse_events(text)
    return [_build(text, next(events), events) for event in events if isinstance(event, yaml.DocumentStartEvent)]


def _build(text: str, event: Any, events: Iterator[Any]) -> TextNode:
    start, end, anchor = event.start_mark.index, event.end_mark.index, event.anchor or ""
    if isinstance(event, yaml.AliasEvent):
        return AliasText(start, end, anchor, end)
    if isinstance(event, yaml.ScalarEvent):
        style = event.style or ""
        trimmed = start + len(text[start:end].rstrip("\n")) if style in ("|", ">") else end
        return ScalarText(start, trimmed, anchor, end, event.value, style)
    node = CollectionText(start, end, anchor, end, event.flow_style, isinstance(event, yaml.MappingStartEvent))
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        key = _build(text, event, events) if node.is_mapping else None
        value = _build(text, next(events) if node.is_mapping else event, events)
        node.entries.append(Entry(key, value))
    if node.flow:
        closing: Any = event
        node.end = node.raw_end = closing.end_mark.index
    else:
        # A block collection has an entry at least; an empty value stands right after its colon or dash.
        node.end, node.raw_end = node.entries[-1].value.end, node.entries[-1].value.raw_end
    return node


def skip_blanks(text: str, position: int) -> int:
    """Return the position of the next character that is neither white space nor part of a comment."""
    while position < len(text):
        if text[position] == "#" and (position == 0 or text[position - 1].isspace()):
            position = line_end(text, position)
        elif not text[position].isspace():
            break
        else:
            position += 1
    return position


def line_start(text: str, position: int) -> int:
    """Return where the line of a position begins."""
    return text.rfind("\n", 0, position) + 1


def line_end(text: str, position: int) -> int:
    """Return the position of the line feed that ends the line, or the text's length."""
    end = text.find("\n", position)
    return len(text) if end < 0 else end
