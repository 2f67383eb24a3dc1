"""Edit values in YAML text: only the value's characters change, so comments, order and quoting are kept.

ruamel.yaml writes the new value; the parser provides the position. A round trip through a dumper would re-wrap flow
mappings and long lines of the rest of the file, and clutter the review.
"""

from __future__ import annotations

import io
import re
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, SingleQuotedScalarString

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.diagnostics.suggest import did_you_mean
from avactl.spec.documents.value_path import PathEntry, parse_path
from avactl.spec.documents.yaml import compose_documents, load_yaml


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


def _resolve(text: str, root: Any) -> tuple[str | int, ...]:
    """Return the keys and indices of a path in a document. Raises PathError, and EditError for an unknown entry."""
    path: list[str | int] = []
    node = root
    for selector in parse_path(text):
        step: str | int
        if isinstance(selector, PathEntry):
            step = _find_entry(node, selector, text)
        else:
            index = isinstance(selector, str) and selector.isdigit() and isinstance(node, yaml.SequenceNode)
            step = int(selector) if index else selector
        path.append(step)
        node = _child_nodes(node, step)[1]
    return tuple(path)


def _find_entry(node: Any, wanted: PathEntry, text: str) -> int:
    names = []
    for i, entry in enumerate(node.value if isinstance(node, yaml.SequenceNode) else []):
        found = _child_nodes(entry, wanted.key)[1]
        if isinstance(found, yaml.ScalarNode):
            if found.value == wanted.value:
                return i
            names.append(found.value)
    hint = did_you_mean(wanted.value, names, "entries") if names else ""
    raise EditError(f"`{text}`: no entry has {wanted.key} `{wanted.value}`", hint)


def _child_nodes(node: Any, step: str | int) -> tuple[Any, Any]:
    if isinstance(node, yaml.MappingNode):
        return next(((k, v) for k, v in node.value if isinstance(k, yaml.ScalarNode) and k.value == step), (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return None, node.value[step]
    return None, None


def _parse_value(text: str) -> Any:
    loader = YAML()
    try:
        return loader.load(text) if text.strip() else text
    except YAMLError as error:
        problem = getattr(error, "problem", None) or error
        raise EditError(f"the value `{text}` is not YAML: {problem}", "quote it for YAML: PATH='\"text\"'") from None


def _one_line(value: Any, flow: bool) -> str:
    """Write a value on one line with ruamel.yaml, inside a flow collection (`flow`) or after a block key."""
    for part in _node_parts(value):
        part.fa.set_flow_style()
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


def _stands_as_it_is(text: str, flow: bool) -> bool:
    """Return whether the user's text is valid there and keeps its meaning."""
    if not text.strip() or "\n" in text or "#" in text:
        return False
    if text.strip() in ("null", "~"):
        return True  # by itself, it is a file without documents
    documents, problems = load_yaml("value", (f"[{text}]" if flow else f"k: {text}").encode())
    alone, more = load_yaml("value", f"[{text}]".encode()) if flow else load_yaml("value", text.encode())
    if problems or more or len(documents) != 1 or len(alone) != 1:
        return False
    if flow:
        return len(documents[0].value) == 1
    return bool(documents[0].value == {"k": alone[0].value})


def _new_text(old: Any, text: str, flow: bool) -> str:
    """Return the text of a new value: in the quotes of the old one, else as the user wrote it."""
    if (not _is_quoted(old) or text.strip()[:1] in "'\"[{") and _stands_as_it_is(text, flow):
        return text.strip()
    return _one_line(_quoted_like(old, text), flow)


def _is_quoted(node: Any) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style in ("'", '"')


def _node_parts(value: Any) -> list[Any]:
    if isinstance(value, CommentedMap):
        return [value, *(part for inner in value.values() for part in _node_parts(inner))]
    if isinstance(value, CommentedSeq):
        return [value, *(part for inner in value for part in _node_parts(inner))]
    return []


def _quoted_like(old: Any, text: str) -> Any:
    """Return the new value in the old one's quoting: quoted strings stay quoted strings."""
    value = _parse_value(text)
    if _is_quoted(old) and not isinstance(value, CommentedMap | CommentedSeq):
        plain = str(value) if isinstance(value, str) and text.strip()[:1] in "'\"" else text
        return DoubleQuotedScalarString(plain) if old.style == '"' else SingleQuotedScalarString(plain)
    return value


def set_values(file: str, text: str, document: int, edits: list[tuple[str, str | None]]) -> str:
    """Apply the edits to one document of the text (counted from 0). Raises EditError and PathError."""
    for path, value in edits:
        nodes = compose_documents(text)
        steps = _resolve(path, nodes[document])
        text = _apply(text, nodes[document], steps, value)
        _, problems = load_yaml(file, text.encode())
        # Validation is not done here: the edit may be removing a credential.
        wrong = [p for p in problems if p.severity == "error" and p.code != "credential-literal"]
        if wrong:
            message = f"`{path}` cannot be set to this value: {wrong[0].message}"
            raise EditError(message, "quote the value, or edit the file")
    return text


def _apply(text: str, root: Any, path: tuple[str | int, ...], value: str | None) -> str:
    node = parent = root
    for depth, step in enumerate(path):
        key, found = _child_nodes(node, step)
        if found is None:
            if value is None:
                raise EditError(f"`{'.'.join(map(str, path))}` does not exist")
            return _insert_value(text, node, path[depth:], value)
        parent, node = node, found
    if value is None:
        return _remove(text, parent, key, node)
    start, end = _node_extent(text, node)
    block = not isinstance(node, yaml.ScalarNode) and not node.flow_style
    new = _new_text(node, value, bool(parent.flow_style))
    if block:
        # The old value was on lines of its own; the new one follows its key.
        colon = text.rindex(":", 0, start) + 1
        return f"{text[:colon]} {new}{text[end:]}"
    if start == end and start and text[start - 1] == ":":
        new = f" {new}"
    return text[:start] + new + text[end:]


def _node_extent(text: str, node: Any) -> tuple[int, int]:
    """Return the first and last character of a node, without trailing line ends and comments of a block."""
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, yaml.ScalarNode) and node.style not in ("|", ">"):
        return start, end
    if not isinstance(node, yaml.ScalarNode) and node.flow_style:
        return start, end
    if isinstance(node, yaml.ScalarNode):
        body = text[start:end].rstrip("\n")
        return start, start + len(body)
    children = [n for pair in node.value for n in (pair if isinstance(pair, tuple) else (pair,))]
    return start, max(_node_extent(text, child)[1] for child in children)


def _nested_text(steps: tuple[str | int, ...], value: str, flow: bool) -> str:
    """Return the text of a new value below keys that do not exist yet."""
    if not steps:
        return _new_text(None, value, flow)
    result = _parse_value(value)
    for step in reversed(steps):
        if isinstance(step, int):
            raise EditError(f"entry [{step}] does not exist", "to append, use the length of the list as the index")
        result = CommentedMap({step: result})
    return _one_line(result, flow)


def _insert_value(text: str, parent: Any, steps: tuple[str | int, ...], value: str) -> str:
    first, rest = steps[0], steps[1:]
    if isinstance(parent, yaml.SequenceNode):
        if first != len(parent.value):
            message = f"entry [{first}] does not exist"
            raise EditError(message, f"the list has {len(parent.value)} entries; to append, use [{len(parent.value)}]")
        new = _nested_text(rest, value, bool(parent.flow_style))
    elif isinstance(parent, yaml.MappingNode) and isinstance(first, str):
        new = f"{_one_line(first, True)}: {_nested_text(rest, value, bool(parent.flow_style))}"
    else:
        raise EditError(f"`{first}` is below a value that is not a {'list' if isinstance(first, int) else 'mapping'}")
    if parent.flow_style:
        close = parent.end_mark.index - 1
        body_end = len(text[:close].rstrip())
        comma = ", " if parent.value and text[body_end - 1] != "," else " " if parent.value else ""
        return text[:body_end] + comma + new + text[body_end:]
    end = _node_extent(text, parent)[1]
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    indent = " " * parent.start_mark.column
    dash = "- " if isinstance(parent, yaml.SequenceNode) else ""
    return f"{text[:line_end]}\n{indent}{dash}{new}{text[line_end:]}"


def _remove(text: str, parent: Any, key: Any, node: Any) -> str:
    start = (key or node).start_mark.index
    end = _node_extent(text, node)[1]
    if len(parent.value) == 1:
        p_start, p_end = _node_extent(text, parent)
        empty = "{}" if isinstance(parent, yaml.MappingNode) else "[]"
        if parent.flow_style:
            return text[:p_start] + empty + text[p_end:]
        colon = text.rindex(":", 0, p_start) + 1
        return f"{text[:colon]} {empty}{text[p_end:]}"
    if parent.flow_style:
        after = re.compile(r"\s*,\s*").match(text, end)
        if after:
            return text[:start] + text[after.end() :]
        before = len(text[:start].rstrip().rstrip(",").rstrip())
        return text[:before] + text[end:]
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    line_start = text.rfind("\n", 0, start) + 1
    lead = text[line_start:start]
    if lead.strip():  # `- key: value`: remove the entry's first key, keep the dash
        following = re.compile(r"\n\s*").match(text, line_end)
        return text[:start] + text[following.end() if following else line_end :]
    return text[:line_start] + text[line_end + 1 :]


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
