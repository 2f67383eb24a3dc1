"""Edit values in YAML text: only the value's characters change, so comments, order and quoting are kept.

After each edit the values of the new text are those of the old one with this change and no other, or the text stays as
it is and the reason is told. A round trip through a dumper would re-wrap flow mappings and long lines of the rest of
the file, and clutter the review.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from avactl.base.equality import is_same
from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.base.terminal import shorten_middle
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import did_you_mean
from avactl.spec.documents.text_edits import empty_collection, insert_entry, remove_entry, replace_node, write_value
from avactl.spec.documents.text_nodes import (
    AliasText,
    CollectionText,
    ScalarText,
    TextNode,
    parse_text_nodes,
)
from avactl.spec.documents.value_path import PathEntry, parse_path
from avactl.spec.documents.yaml import load_yaml

Steps = tuple[str | int, ...]
_REMOVED = object()


class EditError(HintedError):
    """The edit is impossible."""

    exit_code = USAGE


def parse_edit(text: str) -> tuple[str, str | None]:
    """Split `PATH=VALUE` or `PATH-` (remove) into its parts. Raises EditError."""
    match = re.match(r"((?:[^=\[]|\[[^\]]*\])+)=(.*)$", text, re.DOTALL)
    if match:
        return match[1].strip(), match[2]
    if text.endswith("-") and len(text) > 1:
        return text[:-1], None
    raise EditError(f"`{text}` is not PATH=VALUE", "write e.g. spec.workers.replicas=8, or `spec.ttl-` to remove a key")


def set_values(file: str, text: str, document: int, edits: list[tuple[str, str | None]]) -> str:
    """Apply the edits to one document of the text, counted from 0, and return the new text.

    `edits`: paths with the new value as YAML, or None to remove it. Line ends stay as they are. Raises EditError, with
    the text unchanged, if an edit is impossible or would change another value, and PathError.
    """
    for path, value in edits:
        plain = text.replace("\r\n", "\n")
        new = _TextEdit(file, plain, document, path, value).apply()
        text = new if plain == text else _with_line_ends(text, plain, new)
    return text


class _TextEdit:
    """One edit: the wanted values, and the ways to write them."""

    def __init__(self, file: str, text: str, document: int, path: str, value: str | None) -> None:
        self.file, self.text, self.document, self.path, self.value = file, text, document, path, value
        self.values = self._load(text)
        if document not in self.values:
            raise EditError(f"{file} has no document {document}")
        try:
            self.root = parse_text_nodes(text)[document]
        except yaml.YAMLError as error:  # load_yaml has parsed it
            raise EditError(f"{file} is not YAML: {error}") from None
        self.steps = _resolve_path(path, self.values[document])
        self.nodes, self.indexes = self._walk()
        self.problem = ""

    def _walk(self) -> tuple[list[TextNode], list[int]]:
        """Return the nodes of the path from the root, as far as the text has them, and the index of each in the one
        before: an alias and an empty value have no entries, and a merge (`<<`) is no entry of its keys."""
        nodes, indexes = [self.root], [0]
        for step in self.steps:
            node = nodes[-1]
            index = node.find_child(step) if isinstance(node, CollectionText) else None
            if index is None or not isinstance(node, CollectionText):
                break
            nodes.append(node.entries[index].value)
            indexes.append(index)
        return nodes, indexes

    def apply(self) -> str:
        """Return the new text. Raises EditError."""
        wanted = dict(self.values)
        written = _REMOVED if self.value is None else self._parse_value(self.value)
        wanted[self.document] = _changed(self.values[self.document], self.steps, self.path, written)
        if is_same(wanted[self.document], self.values[self.document]):
            return self.text
        for candidate in self._candidates(wanted[self.document]):
            try:
                if is_same(self._load(candidate), wanted):
                    return candidate
            except EditError as error:
                self.problem = self.problem or str(error)
        raise self._refusal()

    def _load(self, text: str) -> dict[int, Any]:
        """Return the values of each document. Raises EditError."""
        documents, problems = load_yaml(self.file, text.encode("utf-8", "surrogateescape"))
        errors = [each for each in problems if _prevents_edit(each)]
        if errors:
            raise EditError(f"{self.file}:{errors[0].span.line}: {errors[0].message}", errors[0].hint)
        return {each.index: each.value for each in documents}

    def _parse_value(self, text: str) -> Any:
        """Return the value that the user wrote. A quoted text stays one, whatever the new text looks like."""
        quoted = len(self.nodes) > len(self.steps) and _is_quoted(self.nodes[-1])
        if not text.strip() or (quoted and text.strip()[0] not in "'\"[{"):
            return text
        documents, problems = load_yaml("value", text.encode())
        errors = [each for each in problems if _prevents_edit(each) and each.code != "empty-file"]
        quoting, shown = "quote it for YAML: PATH='\"text\"'", shorten_middle(text)
        if errors:
            raise EditError(f"the value `{shown}` is not YAML: {errors[0].message.removeprefix('not YAML: ')}", quoting)
        if text.strip() in ("null", "~"):
            return None  # by itself, it is a file without documents
        if len(documents) != 1:
            raise EditError(f"the value `{shown}` has {len(documents)} YAML documents, not one", quoting)
        if "#" in _outside_scalars(text):
            raise EditError(f"the value `{shown}` has a comment", quoting)
        return documents[0].value

    def _candidates(self, wanted: Any) -> Iterator[str]:
        """Yield new texts that may have the wanted values, the tidiest first."""
        depth, node, index = len(self.nodes) - 1, self.nodes[-1], self.indexes[-1]
        parent = self.nodes[-2] if depth else None
        assert parent is None or isinstance(parent, CollectionText)
        if depth < len(self.steps) and isinstance(node, CollectionText):
            if self.value is None:
                raise EditError(f"`{self.path}` comes from a merge (`<<`)", "remove it there")
            step = self.steps[depth]
            for new in self._texts(_value_at(wanted, self.steps[: depth + 1]), node.flow, None, depth + 1):
                yield from insert_entry(self.text, node, step if isinstance(step, str) else None, new)
        elif self.value is None and depth == len(self.steps) and parent is not None:
            if len(parent.entries) > 1:
                yield from remove_entry(self.text, parent, index)
            else:
                above = self.nodes[-3] if depth > 1 else None
                assert above is None or isinstance(above, CollectionText)
                yield from empty_collection(self.text, above, self.indexes[-2], parent)
        else:
            # Also an alias on the way, by a copy of its own, and an empty value, by a mapping.
            for new in self._texts(
                _value_at(wanted, self.steps[:depth]), parent is not None and parent.flow, node, depth
            ):
                yield from replace_node(self.text, parent, index, node, new)

    def _texts(self, value: Any, flow: bool, old: TextNode | None, depth: int) -> list[str]:
        """Return ways to write a value: as the user did, if it is the path's and keeps its meaning, else dumped."""
        dumped = write_value(value, flow, old)
        as_written = (self.value or "").strip()
        is_whole = depth == len(self.steps) and as_written and "\n" not in as_written
        stays_quoted = is_whole and _is_quoted(old) and as_written[0] not in "'\"[{"
        if not is_whole or stays_quoted or re.search(r"[&*!]", _outside_scalars(as_written)):
            return dumped
        return [as_written, *dumped]

    def _refusal(self) -> EditError:
        """Explain why no text has the wanted values."""
        for name in (node.anchor for node in self.nodes if node.anchor and not isinstance(node, AliasText)):
            if use := re.search(rf"\*{re.escape(name)}(?![^\s,\[\]{{}}])", self.text):
                line = self.text.count("\n", 0, use.start()) + 1
                message = f"`{self.path}` is part of the anchor `&{name}`, which line {line} uses too"
                return EditError(message, f"replace `*{name}` there by a copy first, or edit the file")
        message = f"`{self.path}` cannot be changed in place without changing anything else"
        return EditError(f"{message}: {self.problem}" if self.problem else message, "edit the file")


def _prevents_edit(problem: Diagnostic) -> bool:
    # The edit may be removing a credential.
    return problem.severity == "error" and problem.code != "credential-literal"


def _is_quoted(node: TextNode | None) -> bool:
    return isinstance(node, ScalarText) and node.style in ("'", '"')


def _outside_scalars(text: str) -> str:
    """Return the text of a value without its scalars; empty if it is not YAML."""
    try:
        roots = parse_text_nodes(text)
    except yaml.YAMLError:
        return ""
    outside, position = [], 0
    for scalar in _scalars(roots):
        outside.append(text[position : scalar.start])
        position = scalar.end
    return "".join([*outside, text[position:]])


def _scalars(nodes: list[TextNode]) -> Iterator[TextNode]:
    for node in nodes:
        if isinstance(node, CollectionText):
            for entry in node.entries:
                yield from _scalars([entry.value] if entry.key is None else [entry.key, entry.value])
        elif isinstance(node, ScalarText) and not node.anchor:
            yield node


def _resolve_path(text: str, value: Any) -> Steps:
    """Return the keys and indices of a path in a document's value. Raises PathError, and EditError for no entry."""
    steps: list[str | int] = []
    for selector in parse_path(text):
        step: str | int
        if isinstance(selector, PathEntry):
            step = _find_entry(value, selector, text)
        else:
            index = isinstance(selector, str) and selector.isdecimal() and isinstance(value, list)
            step = int(selector) if index else selector
        steps.append(step)
        value = _child(value, step)
    return tuple(steps)


def _find_entry(entries: Any, wanted: PathEntry, text: str) -> int:
    index = wanted.find(entries)
    if index is None:
        given = (
            (entry.get(wanted.key) for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()
        )
        names = [name for name in given if isinstance(name, str)]
        hint = did_you_mean(wanted.value, names, "entries") if names else ""
        raise EditError(f"`{text}`: no entry has {wanted.key} `{wanted.value}`", hint)
    return index


def _child(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    return value[step] if isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value) else None


def _value_at(value: Any, steps: Steps) -> Any:
    for step in steps:
        value = value[step]
    return value


def _changed(value: Any, steps: Steps, path: str, new: Any) -> Any:
    """Return a value with another one below it, or without it (`_REMOVED`); the rest is shared. Raises EditError."""
    if not steps:
        return new
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(value, list | None):
            raise EditError(f"`{path}`: [{step}] is below a value that is not a list")
        items = list(value or [])
        if step > len(items) or (step == len(items) and new is _REMOVED):
            hint = f"the list has {len(items)} entries; to append, use [{len(items)}]"
            raise EditError(f"`{path}`: entry [{step}] does not exist", hint)
        below = items[step] if step < len(items) else None
        items[step : step + 1] = [] if new is _REMOVED and not rest else [_changed(below, rest, path, new)]
        return items
    if not isinstance(value, dict | None):
        raise EditError(f"`{path}`: `{step}` is below a value that is not a mapping")
    fields = dict(value or {})
    if new is _REMOVED and step not in fields:
        raise EditError(f"`{path}` does not exist")
    if new is _REMOVED and not rest:
        del fields[step]
    else:
        fields[step] = _changed(fields.get(step), rest, path, new)
    return fields


def _with_line_ends(original: str, old: str, new: str) -> str:
    """Return the new text with the line ends of the original; `old` is the original with LF.

    Only what is inserted gets a line end, that of the line before it, so a file with both kinds keeps them.
    """
    head = _common_length(old, new)
    tail = _common_length(old[head:][::-1], new[head:][::-1])
    start, stop = _original_position(original, head), _original_position(original, len(old) - tail)
    inserted = new[head : len(new) - tail]
    line_feed = original.rfind("\n", 0, start)
    line_feed = original.find("\n") if line_feed < 0 else line_feed
    if line_feed > 0 and original[line_feed - 1] == "\r":
        inserted = inserted.replace("\n", "\r\n")
    return original[:start] + inserted + original[stop:]


def _common_length(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _original_position(original: str, position: int) -> int:
    """Return where a character of the text with LF stands in the text with CRLF."""
    for match in re.finditer("\r\n", original):
        if match.start() >= position:
            break
        position += 1
    return position


def document_content(text: str, index: int) -> str:
    """Return the text of a document, counted from 0, without the line `---` above it. Raises EditError."""
    start, end = _document_extent(text, index)
    return text[start:end]


def replace_document(text: str, index: int, content: str) -> str:
    """Return the text with another content of one document. Raises EditError."""
    start, end = _document_extent(text, index)
    ended = content if content.endswith("\n") or end == len(text) else f"{content}\n"
    return text[:start] + ended + text[end:]


def _document_extent(text: str, index: int) -> tuple[int, int]:
    """Return where the content of a document begins and ends. Comments above a `---` are those of what precedes it."""
    try:
        events: Any = yaml.parse(text, yaml.CSafeLoader)
        begins: list[Any] = [each for each in events if isinstance(each, yaml.DocumentStartEvent)]
    except yaml.YAMLError as error:
        raise EditError(f"the file is not YAML: {getattr(error, 'problem', None) or error}") from None
    if index >= len(begins):
        raise EditError(f"the file has {len(begins)} documents")
    own = begins[index]
    if own.explicit:
        start = own.end_mark.index
        line_end = text.find("\n", start)
        if line_end >= 0 and not text[start:line_end].strip():
            start = line_end + 1
    else:
        start = own.start_mark.index if index else 0
    return start, begins[index + 1].start_mark.index if index + 1 < len(begins) else len(text)
