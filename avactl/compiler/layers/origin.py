"""Origin of a value: the layers that give it, the one that decides first."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.compiler.layers.declarations import Declarations, document_title
from avactl.compiler.layers.document import OVERLAY, SPEC, Layer, LayeredDocument
from avactl.compiler.layers.merge import LayerPart, merge_values, removing_part, trace_parts
from avactl.compiler.layers.recognition import declares_layer, is_template, name_of
from avactl.compiler.load import load
from avactl.compiler.pass_state import PassState
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.program import registry
from avactl.program.explain import introspect
from avactl.spec.documents.document import Document, Path
from avactl.spec.documents.value_path import PathEntry, PathError, Selector, parse_path
from avactl.spec.repository.tree import Tree

_MAX_WIDTH = 60
"""Longest value that is printed in full, in characters."""


class OriginError(HintedError):
    """The value cannot be found."""

    exit_code = USAGE


class LayerSource(NamedTuple):
    """A layer that gives a value."""

    role: str
    """`spec`, `overlay`, `team default`, `template NAME`, `built-in default`, …"""
    value: Any
    span: Span | None
    """Location; None for the built-in default."""
    removes: bool = False
    """True for a `null` that removes the value of the layers below."""


class LayerOrigin(NamedTuple):
    """The sources of one value of a spec."""

    title: str
    """Kind, team and name of the spec."""
    path: str
    value: Any
    sources: list[LayerSource]
    """The one that decides first, or all parts of a mapping; empty if nothing sets the value."""


class Specs:
    """The specs of a tree with their layers."""

    def __init__(self, tree: Tree) -> None:
        state = load(PassState(tree))
        self.problems: list[Diagnostic] = [each for each in state.diagnostics if each.severity == "error"]
        self._documents = state.documents
        self._overlays = state.overlays
        own = [document for document in state.documents if declares_layer(document.value)]
        self._declared = Declarations(own, state.overlays)

    def of(self, file: str, name: str = "") -> LayeredDocument:
        """Return the spec or template that a file declares, or that its overlay changes. Raises OriginError.

        `name`: `NAME` or `KIND/NAME` if it has several.
        """
        overlays = {name_of(each.value) for each in self._overlays if each.file == file}
        found = [each for each in self._documents if each.file == file or name_of(each.value) in overlays]
        found = [each for each in found if not declares_layer(each.value) or is_template(each.value)]
        if not found:
            raise OriginError(f"{file} has no spec of this environment", "name a spec file, or an overlay")
        labels = [f"{kind}/{own}" for kind, _, own in (name_of(each.value) for each in found)]
        wanted = [
            each for each, label in zip(found, labels, strict=True) if name in ("", label, label.partition("/")[2])
        ]
        if len(wanted) != 1:
            message = f"no spec in {file} is named {name}" if name and not wanted else f"{file} has several specs"
            raise OriginError(message, f"choose with --name: {one_of(labels)}")
        return self.layered(wanted[0])

    def at(self, file: str, index: int) -> LayeredDocument:
        """Return the spec or template that a document of a file declares. Raises OriginError."""
        found = next((each for each in self._documents if (each.file, each.index) == (file, index)), None)
        if found is None:
            raise OriginError(f"{file} has no spec of this environment", "name a spec file")
        return self.layered(found)

    def layered(self, document: Document) -> LayeredDocument:
        """Return a spec with all its layers. Raises OriginError if they have problems."""
        problems: list[Diagnostic] = []
        found = self._declared.layered(document, problems)
        if found is None:
            raise OriginError(f"{problems[0].span}: {problems[0].message}", problems[0].hint)
        return found if isinstance(found, LayeredDocument) else LayeredDocument([Layer(SPEC, found, (), found.value)])


def value_origin(document: LayeredDocument, path: str) -> LayerOrigin:
    """Return the sources of a value. Raises PathError, and OriginError if neither its kind nor a layer has it."""
    kind, team, name = name_of(document.value)
    title = ("template " if is_template(document.value) else "") + document_title((kind, team, name))
    steps = _parse_selectors(path, document)
    sources = _value_sources(document, steps)
    known, default = _built_in_default(kind, steps)
    if not known and not sources:
        model = registry.get_model(kind) if kind in registry.kind_names() else None
        parents = introspect.models_at(model, _plain_path(steps[:-1])) if model else []
        keys = {key for parent in parents for key in introspect.fields_by_key(parent)}
        raise OriginError(f"a {kind} has no `{path}`", did_you_mean(str(steps[-1]), keys, "keys there"))
    value = document.get(*_indexed_path(document.value, steps))
    if default and (not sources or not isinstance(value, dict)):
        sources.append(default)
    return LayerOrigin(title, path, default.value if default and value is None else value, sources)


def deciding_overlay(document: LayeredDocument, path: str) -> LayerSource | None:
    """Return the overlay that decides a value of a spec; None if the spec or a lower layer does."""
    try:
        found = value_origin(document, path).sources
    except (OriginError, PathError):
        return None
    return found[0] if found and found[0].role.startswith(OVERLAY) else None


def _value_sources(document: LayeredDocument, steps: list[Selector]) -> list[LayerSource]:
    parts = [LayerPart(index, layer.root, layer.value) for index, layer in enumerate(document.layers)]
    found = []
    for index in reversed(range(len(parts))):
        layer, below = document.layers[index], parts[: index + 1]
        path = _indexed_path(reduce(merge_values, (part.value for part in below)), steps)
        live, rest = trace_parts(below, path)
        if not rest and live[-1].layer == index:
            span = layer.document.span(*live[-1].path)
            found.append(LayerSource(layer.role, live[-1].value, span))
        elif len(rest) == 1 and (gone := removing_part(live, rest[0])) is not None and gone.layer == index:
            found.append(LayerSource(layer.role, None, layer.document.span(*gone.path, key=True), removes=True))
    return found


def _parse_selectors(text: str, document: LayeredDocument) -> list[Selector]:
    """Parse a path; an entry that has a name is selected by it, because its index differs between layers."""
    steps: list[Selector] = []
    for step in parse_path(text):
        value = document.get(*_indexed_path(document.value, steps))
        entries = value if isinstance(value, list) else ()
        if isinstance(step, str) and step.isdigit() and isinstance(value, list):
            step = int(step)
        entry = entries[step] if isinstance(step, int) and step < len(entries) else None
        name = entry.get("name") if isinstance(entry, dict) else None
        steps.append(PathEntry("name", name) if isinstance(name, str) else step)
    return steps


def _indexed_path(value: Any, steps: list[Selector]) -> Path:
    """Return steps as a path in a value; an unknown entry gets the index after the last."""
    path: list[str | int] = []
    for step in steps:
        if isinstance(step, PathEntry):
            entries = value if isinstance(value, list) else []
            index = step.find(entries)
            path.append(len(entries) if index is None else index)
            value = None if index is None else entries[index]
        else:
            path.append(step)
            inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
            value = value.get(step) if isinstance(value, dict) else value[step] if inside else None
    return tuple(path)


def _plain_path(steps: list[Selector]) -> Path:
    return tuple(0 if isinstance(step, PathEntry) else step for step in steps)


def _built_in_default(kind: str, steps: list[Selector]) -> tuple[bool, LayerSource | None]:
    """Return True if the kind has the field, and its built-in default."""
    if kind not in registry.kind_names():
        return False, None
    path = _plain_path(steps)
    for model in introspect.models_at(registry.get_model(kind), path[:-1]):
        field = introspect.fields_by_key(model).get(str(path[-1]))
        if field is not None:
            return True, None if field.is_required() else LayerSource("built-in default", _value_of(field), None)
    return False, None


def _value_of(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return None
    return value.model_dump(mode="json", by_alias=True) if isinstance(value, BaseModel) else value


def origin_text(found: LayerOrigin, environment: str) -> str:
    """Format the sources of a value, the deciding one first."""
    from avactl.diagnostics.redaction import redact_text

    def shown(value: Any) -> str:
        if value is None:
            return "none"
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text = redact_text(text.replace("\n", "\\n"))
        return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"

    where = f" in environment {environment}" if environment else ""
    rows = [
        ("removed" if each.removes else shown(each.value), str(each.span or ""), each.role) for each in found.sources
    ]
    wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [f"{found.title}{where}", f"{found.path}: {shown(found.value)}"]
    lines += [f"  {value:<{wide[0]}}  {place:<{wide[1]}}  {role}" for value, place, role in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"
