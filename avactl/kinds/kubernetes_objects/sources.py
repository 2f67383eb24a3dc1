"""The manifests of a spec, with their places: inline ones, and those of files and directories."""

from __future__ import annotations

import posixpath
from typing import Any, NamedTuple

from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.kubernetes_objects.spec import KubernetesObjectsSpec
from avactl.program.program import Item, Program
from avactl.spec.documents.document import Document

_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")
MAX_OBJECTS = 5000
"""Maximum number of manifests of one spec."""


class ObjectSource(NamedTuple):
    """One manifest, and the document that it stands in."""

    value: Any
    doc: Document
    path: tuple[str | int, ...]

    def span(self, *path: str | int, key: bool = False) -> Span:
        """Return the location of a value of the manifest."""
        return self.doc.span(*self.path, *path, key=key)


class Sources(NamedTuple):
    """The manifests of a spec, and the problems of its files."""

    found: tuple[ObjectSource, ...]
    problems: tuple[Diagnostic, ...]


def manifest_sources(item: Item[KubernetesObjectsSpec], program: Program) -> Sources:
    """Return the manifests of a spec; each file is read once."""
    return program.memo(("kubernetes objects", item.key), lambda: _read_sources(item, program))


def _path_hint(name: str) -> str:
    directory = posixpath.dirname(name) or "DIRECTORY"
    if any(character in name for character in "*?["):
        return f"patterns are not expanded: write the directory, `{directory}`, for all of its files"
    return "write its path relative to this file"


def _read_sources(item: Item[KubernetesObjectsSpec], program: Program) -> Sources:
    # Here, because a spec file in Python, which imports the kind, may not import the native code of PyYAML.
    from avactl.spec.documents.yaml import MAX_BYTES, load_yaml

    inline = (
        ObjectSource(value, item.doc, ("spec", "objects", index)) for index, value in enumerate(item.spec.objects)
    )
    found = [entry for source in inline for entry in _list_entries(source)]
    problems: list[Diagnostic] = []
    seen: set[str] = set()
    for index, name in enumerate(item.spec.files):
        span = item.span("spec", "files", index)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(item.doc.file), name))
        paths = [path] if path.endswith(_MANIFEST_SUFFIXES) else _list_files(program, path)
        if not paths:
            message = f"there is no directory `{path}` with YAML or JSON files"
            hint = _path_hint(name)
            problems.append(Diagnostic("missing-reference", message, span, hint=hint))
        for each in paths:
            if each in seen:
                message, hint = f"`{each}` is listed twice", "remove one of them"
                problems.append(Diagnostic("duplicate-entry", message, span, hint=hint))
                break
            if len(found) > MAX_OBJECTS:
                break
            seen.add(each)
            data = program.read_file(each)
            if data is None or len(data) > MAX_BYTES:
                what = "cannot be read" if data is None else f"is larger than {MAX_BYTES:,} bytes"
                hint = _path_hint(name) if data is None else "split it"
                problems.append(Diagnostic("missing-reference", f"`{each}` {what}", span, hint=hint))
                continue
            documents, wrong = load_yaml(each, data)
            problems += [problem for problem in wrong if problem.code != "empty-file"]
            found += [entry for doc in documents for entry in _list_entries(ObjectSource(doc.value, doc, ()))]
    if len(found) > MAX_OBJECTS:
        hint = "split it into several specs"
        problem = Diagnostic("invalid-value", f"more than {MAX_OBJECTS:,} manifests", item.span("spec"), hint=hint)
        return Sources((), (problem,))
    return Sources(tuple(found), tuple(problems))


def _list_entries(source: ObjectSource) -> list[ObjectSource]:
    """Return the entries of a List, or the manifest itself; nothing of an empty document."""
    value = source.value
    if isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list):
        made = (ObjectSource(each, source.doc, (*source.path, "items", at)) for at, each in enumerate(value["items"]))
        return [each for each in made if each.value is not None]
    return [] if value is None else [source]


def _list_files(program: Program, path: str) -> list[str]:
    data = program.read_file(f"{path}/")
    return [] if data is None else [each for each in data.decode().split("\n") if each.endswith(_MANIFEST_SUFFIXES)]
