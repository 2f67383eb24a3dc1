"""Ways to change one value in YAML text so that all other characters stay.

Each function yields whole new texts, the tidiest first. None of them is trusted: the caller loads each and takes the
first whose values are exactly the wanted ones. So a rare style costs a refusal, never a wrong value.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, SingleQuotedScalarString

from avactl.spec.documents.text_nodes import (
    AliasText,
    CollectionText,
    Entry,
    ScalarText,
    TextNode,
    line_end,
    line_start,
    skip_blanks,
)

_skip_properties = re.compile(r"(?:[&!][^\s,\[\]{}]*(?:[ \t]+|(?=\n)|$))*").match
_same_line_comment = re.compile(r"[ \t]+#[^\n]*").match


def write_value(value: Any, flow: bool, like: TextNode | None = None) -> list[str]:
    """Return ways to write a value on one line, inside a flow collection (`flow`) or after a block key or dash.

    A text is written in the quotes of the scalar `like`, which it replaces.
    """
    if isinstance(value, str) and isinstance(like, ScalarText) and like.style in ("'", '"'):
        quoted = DoubleQuotedScalarString if like.style == '"' else SingleQuotedScalarString
        ways = [_dump(quoted(value), flow)]
    else:
        ways = [_dump(_flow_style(value), flow)]
    return [*ways, json.dumps(value, ensure_ascii=False), json.dumps(value)]


def _flow_style(value: Any) -> Any:
    if isinstance(value, dict):
        mapping = CommentedMap({key: _flow_style(item) for key, item in value.items()})
        mapping.fa.set_flow_style()
        return mapping
    if isinstance(value, list):
        sequence = CommentedSeq([_flow_style(item) for item in value])
        sequence.fa.set_flow_style()
        return sequence
    return value


def _dump(value: Any, flow: bool) -> str:
    writer = YAML()
    writer.width = 1_000_000
    stream = io.StringIO()
    holder: Any = CommentedSeq([value]) if flow else CommentedMap({"k": value})
    if flow:
        holder.fa.set_flow_style()
    writer.dump(holder, stream)
    if flow and isinstance(value, CommentedMap):
        written = stream.getvalue().strip()[1:-1]
        return written if written.startswith("{") else f"{{{written}}}"  # a single pair is written without braces
    return stream.getvalue().strip()[1:-1] if flow else stream.getvalue().strip().removeprefix("k:").strip()


def replace_node(text: str, parent: CollectionText | None, index: int, node: TextNode, new: str) -> Iterator[str]:
    """Yield texts with `new` in place of a value: entry `index` of a collection, or a document's root."""
    match = _skip_properties(text, node.start, node.end)
    content = match.end() if match and not isinstance(node, AliasText) else node.start
    is_block = isinstance(node, CollectionText) and not node.flow
    if isinstance(node, ScalarText) and node.style in ("|", ">"):
        header = text[content : line_end(text, content)]
        comment = re.search(r"[ \t]#.*", header)
        yield text[:content] + new + (f" {comment[0]}" if comment else "") + text[node.end :]
        yield text[:content] + new + "\n" + text[node.raw_end :]
    elif is_block and parent is not None:
        # The old value was on lines of its own; the new one follows its key or dash.
        indicator = _after_indicator(text, parent, index)
        comment = _same_line_comment(text, indicator)
        yield f"{text[:indicator]} {new}{comment[0] if comment else ''}{text[node.end :]}"
        yield f"{text[:indicator]} {new}\n{text[node.raw_end :]}"
    else:
        space = " " if content and text[content - 1] in ":-" else ""
        yield text[:content] + space + new + text[node.end :]
        if content != node.start:
            yield text[: node.start] + new + text[node.end :]
        yield f"{text[:content]}: {new}{text[node.end :]}"  # a key of a flow mapping without a colon
        yield f"{text[:content]} {new} {text[node.end :]}"


def _after_indicator(text: str, parent: CollectionText, index: int) -> int:
    """Return the position after the colon or the dash of an entry of a block collection."""
    key = parent.entries[index].key
    if key is None:
        return _dash(text, parent, index) + 1
    return skip_blanks(text, key.end) + 1


def _dash(text: str, parent: CollectionText, index: int) -> int:
    """Return the position of the dash of an entry of a block sequence."""
    if index:
        return skip_blanks(text, parent.entries[index - 1].value.end)
    properties = _skip_properties(text, parent.start, parent.end)
    return skip_blanks(text, properties.end() if properties else parent.start)


def _entry_start(text: str, parent: CollectionText, index: int) -> int:
    entry = parent.entries[index]
    return entry.start if parent.flow or parent.is_mapping else _dash(text, parent, index)


def insert_entry(text: str, parent: CollectionText, key: str | None, value: str) -> Iterator[str]:
    """Yield texts with a new last entry of a collection: a key and its value, or an item."""
    new = value if key is None else f"{_dump(key, True)}: {value}"
    if parent.flow:
        yield from _insert_in_flow(text, parent, new)
        return
    entry = f"- {new}" if key is None else new
    first = _entry_start(text, parent, 0)
    indent = " " * (first - line_start(text, first))
    end = line_end(text, parent.end)
    yield f"{text[:end]}\n{indent}{entry}{text[end:]}"
    end = parent.raw_end  # after a block scalar that keeps its blank lines
    break_before = "" if text[:end].endswith("\n") else "\n"
    yield f"{text[:end]}{break_before}{indent}{entry}\n{text[end:]}"
    if key is not None:
        yield f"{text[:first]}{entry}\n{indent}{text[first:]}"


def _insert_in_flow(text: str, parent: CollectionText, new: str) -> Iterator[str]:
    close = parent.end - 1
    if not parent.entries:
        yield text[:close].rstrip(" ") + new + text[close:]
        yield f"{text[:close].rstrip()}{new}\n{text[close:]}"
        yield text[:close] + new + text[close:]
        return
    end = parent.entries[-1].value.end
    comma = skip_blanks(text, end)
    has_comma = text[comma] == ","
    after = comma + 1 if has_comma else end
    head = text[:after] if has_comma else f"{text[:end]},"
    start = parent.entries[-1].start
    if _is_first_on_line(text, start) and _is_first_on_line(text, close) and line_start(text, close) > end:
        indent = " " * (start - line_start(text, start))
        rest = line_end(text, after)
        tail = "," if has_comma else ""
        yield f"{head}{text[after:rest]}\n{indent}{new}{tail}{text[rest:]}"
    yield f"{head} {new}{text[after:]}"
    yield f"{head}\n{' ' * (start - line_start(text, start))}{new}\n{text[after:]}"


def _is_first_on_line(text: str, position: int) -> bool:
    return not text[line_start(text, position) : position].strip()


def remove_entry(text: str, parent: CollectionText, index: int) -> Iterator[str]:
    """Yield texts without an entry of a collection that has others."""
    yield from (_remove_from_flow if parent.flow else _remove_from_block)(text, parent, index)


def empty_collection(text: str, parent: CollectionText | None, index: int, node: CollectionText) -> Iterator[str]:
    """Yield texts with `{}` or `[]` in place of a collection whose only entry is removed."""
    empty = "{}" if node.is_mapping else "[]"
    if not node.flow:
        first = _entry_start(text, node, 0)
        above = text[node.start if parent is None else _after_indicator(text, parent, index) : first]
        if re.search(r"\n[ \t]*#", above):
            yield text[:first] + empty + text[node.end :]  # below the comments above the entry
    yield from replace_node(text, parent, index, node, empty)


def _remove_from_block(text: str, parent: CollectionText, index: int) -> Iterator[str]:
    entry = parent.entries[index]
    start = _entry_start(text, parent, index)
    end = line_end(text, entry.value.end)
    if _is_first_on_line(text, start):
        yield text[: line_start(text, start)] + text[end + 1 :]
        yield text[: line_start(text, start)] + text[entry.value.raw_end :]
        blank = re.compile(r"\s*\n").match(text, end)  # a block scalar above would keep the blank lines
        yield text[: line_start(text, start)] + text[blank.end() if blank else end :]
        return
    # The first entry of a collection that begins on the line of its key or dash.
    following = _entry_start(text, parent, index + 1)
    if "#" not in text[end:following]:
        yield text[:start] + text[following:]
    yield text[:start].rstrip(" ") + text[end:]


def _remove_from_flow(text: str, parent: CollectionText, index: int) -> Iterator[str]:
    entries = parent.entries
    start, end = entries[index].start, entries[index].value.end
    comma = skip_blanks(text, end)
    after = comma + 1 if text[comma] == "," else end
    before = _comma_before(text, entries, index)
    is_last = index == len(entries) - 1
    rest = line_end(text, after)
    if _is_first_on_line(text, start) and skip_blanks(text, after) >= rest:
        # It has its lines to itself.
        head = text[: line_start(text, start)]
        if is_last and after == end and before is not None:
            head = text[:before] + text[before + 1 : line_start(text, start)]
        yield head + text[rest + 1 :]
        yield text[: line_start(text, start)] + text[rest + 1 :]
    if not is_last and "#" not in text[after : entries[index + 1].start]:
        yield text[:start] + text[entries[index + 1].start :]
    if is_last and before is not None and "#" not in text[before:start]:
        yield text[:before] + text[end:]
    yield text[:start] + text[after:].lstrip(" ")
    yield text[:start] + text[after:]


def _comma_before(text: str, entries: Sequence[Entry], index: int) -> int | None:
    return skip_blanks(text, entries[index - 1].value.end) if index else None
