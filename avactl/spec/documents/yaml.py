"""Parse YAML text to documents with libyaml.

Positions are not stored: a location is needed only for a problem, and the file is then composed again. That keeps a
clean compile fast and small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import yaml

from avactl.diagnostics import Diagnostic, Note, Span
from avactl.diagnostics.lookalikes import find_odd_space
from avactl.diagnostics.secrets import has_shape
from avactl.spec.documents.credentials import credentials_in
from avactl.spec.documents.document import Document, Path
from avactl.spec.documents.scalars import resolve_plain

MAX_BYTES = 4 * 1024 * 1024
"""Largest spec file in bytes. A spec is about a page; lists of data belong in a dataset's manifest."""
MAX_NODES = 200_000
"""Maximum number of values per file after expanding aliases."""
MAX_DEPTH = 64
"""Deepest nesting of mappings and lists. The kinds need eight levels."""

_PLAIN, _QUOTED = "p", "s"
_KNOWN_TAGS = {
    f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")
}


class _Loader(yaml.CSafeLoader):
    """libyaml's composer, with tags reduced to what the constructor needs: was the scalar plain?"""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:  # called per node: the hot path
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return _QUOTED


class _Problem(Exception):  # noqa: N818 - control flow inside of this module
    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        super().__init__(diagnostic.message)


def _make_span(file: str, mark: Any, end: Any = None) -> Span:
    column = mark.column + 1
    same_line = end is not None and end.line == mark.line and end.column > mark.column
    return Span(file, mark.line + 1, column, end.column + 1 if same_line else 0)


def compose_documents(text: str) -> list[Any]:
    """Return the YAML nodes of each document of `text`. Raises `yaml.YAMLError`."""
    loader = _Loader(text)
    try:
        nodes = []
        while loader.check_node():
            nodes.append(loader.get_node())
        return nodes
    finally:
        loader.dispose()


class YamlLocator:
    """Finds values in one file's text by composing it again, once."""

    __slots__ = ("_indexes", "_nodes", "file", "text")

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._nodes: list[Any] | None = None
        self._indexes: dict[int, dict[Any, tuple[Any, Any]]] = {}

    def __getstate__(self) -> tuple[str, str]:
        return self.file, self.text

    def __setstate__(self, state: tuple[str, str]) -> None:
        self.file, self.text = state
        self._nodes = None
        self._indexes = {}

    def locate(self, index: int, path: Path, key: bool) -> Span:
        if self._nodes is None:
            self._nodes = compose_documents(self.text)
        node = self._nodes[index]
        key_node = None
        for step in path:
            found_key, found = self._child(node, step)
            if found is None:
                # The key is missing: point at the parent's key, which names the mapping better than its first line.
                return self._of(node, key_node, True)
            node, key_node = found, found_key
        return self._of(node, key_node, key)

    def _child(self, node: Any, step: str | int) -> tuple[Any, Any]:
        if not isinstance(node, yaml.MappingNode) or len(node.value) < 64:
            return _child_nodes(node, step)
        index = self._indexes.get(id(node))
        if index is None:  # cached: all keys of a large mapping may have problems
            index = self._indexes[id(node)] = {
                key.value: (key, value) for key, value in reversed(node.value) if isinstance(key, yaml.ScalarNode)
            }
        return index.get(step) or _child_nodes(node, step)

    def _of(self, node: Any, key_node: Any, key: bool) -> Span:
        is_block = not isinstance(node, yaml.ScalarNode) and not node.flow_style
        if key_node is not None and (key or is_block):
            return _make_span(self.file, key_node.start_mark, key_node.end_mark)
        if is_block and isinstance(node, yaml.MappingNode) and node.value:
            first = node.value[0][0]
            return _make_span(self.file, first.start_mark, first.end_mark)
        return _make_span(self.file, node.start_mark, node.end_mark)


def written_scalar(doc: Document, *path: str | int) -> str:
    """Return a scalar as written in its file, such as `1.30`; "" for other values and files that are not YAML."""
    span = doc.span(*path)
    if not isinstance(doc.locator, YamlLocator) or not span.end_column:
        return ""
    return doc.locator.text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]


def _child_nodes(node: Any, step: str | int) -> tuple[Any, Any]:
    if isinstance(node, yaml.MappingNode):
        merged: list[Any] = []
        for key, value in node.value:
            if key.value == step and isinstance(key, yaml.ScalarNode):
                return key, value
            if key.tag == _PLAIN and key.value == "<<":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        for other in merged:
            found = _child_nodes(other, step)
            if found[1] is not None:
                return found
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and -len(node.value) <= step < len(node.value):
        return None, node.value[step]
    return None, None


class _Constructor:
    """Converts nodes to plain data, with a limit on alias expansion."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.left = MAX_NODES
        self.open: dict[int, Any] = {}
        self.problems: list[Diagnostic] = []

    def build(self, node: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            message = f"aliases expand to more than {MAX_NODES:,} values"
            hint = "expand the aliases by hand, or split the file"
            raise _Problem(Diagnostic("yaml-alias-bomb", message, self._of_alias(node), hint=hint))
        tag = node.tag
        if isinstance(node, yaml.ScalarNode):
            if tag == _PLAIN:
                return resolve_plain(node.value)
            if tag == _QUOTED:
                return node.value
            return self._tagged(node)
        if tag != _QUOTED and tag not in _KNOWN_TAGS:
            self._unknown_tag(node)
        if id(node) in self.open:
            span = _make_span(self.file, node.start_mark)
            raise _Problem(Diagnostic("yaml-alias-bomb", "an alias contains itself", span, hint="remove the alias"))
        if len(self.open) >= MAX_DEPTH:
            raise _Problem(_too_deep(_make_span(self.file, node.start_mark)))
        self.open[id(node)] = node
        value = self._mapping(node) if isinstance(node, yaml.MappingNode) else [self.build(n) for n in node.value]
        del self.open[id(node)]
        return value

    def _of_alias(self, node: Any) -> Span:
        """Return the span of the outermost aliased value, whose content is located elsewhere."""
        chain = [*self.open.values(), node]
        for parent, child in pairwise(chain):
            if child.start_mark.index < parent.start_mark.index:
                node = parent
                break
        return self._place(node)

    def _mapping(self, node: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, Any] = {}
        merges: list[Any] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                is_template = key_node.start_mark.index == node.start_mark.index + 1
                hint = "quote it; avactl does not render templates (`{{ … }}`)"
                message = "a mapping key must be a string, not a list or mapping"
                place = self._place(node if is_template else key_node)
                self.problems.append(Diagnostic("yaml-key", message, place, hint=hint))
                continue
            key = key_node.value
            if odd := find_odd_space(key[:1]):
                message = f"a key begins with the character U+{ord(odd[0]):04X}, which only looks like a space"
                self.problems.append(
                    Diagnostic("yaml-key", message, self._place(key_node), hint="replace it by a space")
                )
                continue
            if key == "<<" and key_node.tag == _PLAIN:
                merges.append(value_node)
                continue
            if key in first:
                span, notes = self._place(key_node), (Note(self._place(first[key]), "first occurrence"),)
                message, hint = f"duplicate key `{key}`", "remove one of them"
                if key == "apiVersion" and len(self.open) == 1:
                    message, hint = "a second spec begins in this document", "write `---` on a line above it"
                    self.problems.append(Diagnostic("yaml-duplicate-key", message, span, hint=hint, notes=notes))
                    break  # the rest is the second spec
                problem = Diagnostic("yaml-duplicate-key", message, span, label="duplicate", hint=hint, notes=notes)
                self.problems.append(problem)
                continue
            first[key] = key_node
            result[key] = self.build(value_node)
        for merge in merges:
            self._merge(result, merge)
        return result

    def _merge(self, into: dict[str, Any], node: Any) -> None:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.build(source)
            if not isinstance(value, dict):
                message = "the value of `<<` must be a mapping or a list of mappings"
                self.problems.append(Diagnostic("yaml-key", message, self._place(source), hint="write `<<: *name`"))
                return
            for key, item in value.items():
                into.setdefault(key, item)

    def _tagged(self, node: Any) -> Any:
        name = _KNOWN_TAGS.get(node.tag)
        if name is None:
            self._unknown_tag(node)
        return node.value if name in (None, "str") else resolve_plain(node.value)

    def _unknown_tag(self, node: Any) -> None:
        message = f"unknown YAML tag `{node.tag.replace('tag:yaml.org,2002:', '!!')}`"
        hint = "remove the tag; specs are plain YAML"
        self.problems.append(Diagnostic("yaml-tag", message, self._place(node), hint=hint))

    def _place(self, node: Any) -> Span:
        return _make_span(self.file, node.start_mark, node.end_mark)


def _too_deep(span: Span) -> Diagnostic:
    message = f"nested deeper than {MAX_DEPTH} levels"
    return Diagnostic("yaml-depth", message, span, hint="no kind needs more than ten levels")


_MANY_DASHES = re.compile(r"(?:[-?:][ \t]+){8}").search
_FLOW_BRACKETS = re.compile(r"[\[\]{}]").finditer


def _may_nest_deeply(text: str) -> bool:
    """Return False only if nesting is certainly shallow: block levels need columns, flow levels need brackets."""
    if "\n" + " " * MAX_DEPTH in text or text.startswith(" " * MAX_DEPTH) or _MANY_DASHES(text):
        return True
    if text.count("[") + text.count("{") < MAX_DEPTH:
        return False
    depth = deepest = 0
    for bracket in _FLOW_BRACKETS(text):
        depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest >= MAX_DEPTH // 2


def _check_depth(file: str, text: str) -> None:
    """Check depth by events if the text may nest deeply, because libyaml's composer recurses in C."""
    if not _may_nest_deeply(text):
        return
    depth = 0
    for event in parse_events(text):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _Problem(_too_deep(_make_span(file, event.start_mark)))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def parse_events(text: str) -> Iterator[Any]:
    loader = yaml.CSafeLoader(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


def decode(file: str, data: bytes) -> tuple[str, list[Diagnostic]]:
    """Decode bytes to text. For invalid UTF-8, return an empty text and the problem."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        byte = data[error.start]
        message = f"byte 0x{byte:02x} is not UTF-8"
        return "", [Diagnostic("invalid-utf8", message, Span(file, line, column), hint="save the file as UTF-8")]
    problems = []
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        column = text.index("\r\n") - text.rfind("\n", 0, text.index("\r\n"))
        message = "the file has CRLF line endings"
        hint = "save it with LF, and add `*.yaml text eol=lf` to .gitattributes"
        problems.append(Diagnostic("crlf", message, Span(file, line, column), severity="warning", hint=hint))
        text = text.replace("\r\n", "\n")
    return text, problems


_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]").search


def _other_break(file: str, text: str) -> Diagnostic | None:
    """Report a line break of libyaml (YAML 1.1) that editors do not count, so that line numbers would differ."""
    found = _OTHER_BREAKS(text) if "\r" in text or not text.isascii() else None
    if found is None:
        return None
    position = found.start()
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    names = {"\r": "a carriage return without a line feed", "\x85": "a next-line character (U+0085)"}
    name = names.get(found[0], f"a line separator (U+{ord(found[0]):04X})")
    hint = "end lines with a line feed; in double-quoted strings, use an escape sequence"
    return Diagnostic("yaml-syntax", f"not YAML: {name} ends a line here", Span(file, line, column), hint=hint)


def load_yaml(file: str, data: bytes) -> tuple[list[Document], list[Diagnostic]]:
    """Parse one file; return its documents and the problems of its text. Never raises.

    Documents with a structural problem are omitted, so that later passes do not report half of a spec.
    """
    if len(data) > MAX_BYTES:
        return [], [too_large(file, len(data))]
    text, problems = decode(file, data)
    if any(p.severity == "error" for p in problems):
        return [], problems
    if not text.strip():
        hint = "delete the file, or write a spec: `avactl explain` lists the kinds"
        return [], [*problems, Diagnostic("empty-file", "the file is empty", Span(file), hint=hint)]
    odd = _other_break(file, text)
    if odd is not None:
        return [], [*problems, odd]
    documents: list[Document] = []
    locator = YamlLocator(file, text)
    try:
        _check_depth(file, text)
        for index, node in enumerate(compose_documents(text)):
            constructor = _Constructor(file)
            value = constructor.build(node)
            problems += constructor.problems
            if value is not None and not constructor.problems:
                documents.append(Document(file, index, value, locator))
        if documents and has_shape(text):
            problems += credentials_in(documents)
        if not documents and not problems:
            hint = "delete the file, or write a spec: `avactl explain` lists the kinds"
            message = "the file contains only comments"
            problems.append(Diagnostic("empty-file", message, Span(file), "warning", hint=hint))
    except _Problem as problem:
        problems.append(problem.diagnostic)
    except yaml.YAMLError as error:
        from avactl.spec.documents.yaml_syntax import syntax_problem  # most files have none

        problems.append(syntax_problem(file, text, error))
    return documents, problems


def too_large(file: str, size: int) -> Diagnostic:
    """Return the diagnostic for a file over the limit; `size` in bytes."""
    message = f"the file has {size:,} bytes; the limit is {MAX_BYTES:,}"
    hint = "split it; put data lists in a Dataset's JSON-lines manifest"
    return Diagnostic("file-too-large", message, Span(file), hint=hint)
