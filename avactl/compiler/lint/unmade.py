"""ConfigMaps and claims that a spec names and that the repository has otherwise: other spelling, namespace or keys.

Others may exist in the cluster without a spec; `avactl doctor` looks for them there.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import partial

from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import WordIndex, did_you_mean
from avactl.program import registry
from avactl.program.program import Item, Program
from avactl.program.references import CLAIM, CONFIG_MAP, PodReference, find_references, keys_of
from avactl.program.registry import WrittenObject
from avactl.spec.documents.document import Document, Path

_NAME_SEPARATOR = re.compile("[-._]")
_MIN_NAME_LENGTH = 4
"""Parts of names that are shorter are never taken for others, misspelt."""
_Made = dict[tuple[str, str], dict[str, dict[str, tuple[tuple[str, str, str], list[str] | None]]]]
"""By cluster and kind, by namespace, by name: key of the spec that has the object, and keys of a ConfigMap; None if
patches can change them."""


def dangling_references(item: Item, program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one spec."""
    for doc, path, namespace, reference in _spec_references(item, program):
        if namespace:
            yield from _reference_problems(item, program, namespace, reference, doc, path)


def _spec_references(item: Item, program: Program) -> Iterator[tuple[Document, Path, str, PodReference]]:
    """Yield the references of a spec: the document, its part, and the namespace."""
    written = list(registry.get_kind(item.kind).written(item, program))
    for each in written:
        for key in each.body.keys() - {"apiVersion", "kind", "metadata"}:
            for reference in find_references(each.body[key], (key,)):
                yield each.doc, each.path, each.namespace, reference
    if not written:
        for key in ("spec", "patches"):
            for reference in find_references(item.doc.get(key), (key,)):
                yield item.doc, (), item.namespace or "", reference


def _reference_problems(
    item: Item, program: Program, namespace: str, use: PodReference, doc: Document, path: Path
) -> Iterator[Diagnostic]:
    made = _all_made(program).get((item.clusters[0], use.kind)) if item.clusters else None
    if not made:
        return
    here = made.get(namespace, {})
    if use.name not in here:
        elsewhere = [other for other, names in made.items() if use.name in names]
        index = program.memo(("similar objects", item.clusters[0], use.kind, namespace), lambda: WordIndex(here))
        near = next((name for name in index.similar(use.name) if _is_misspelt(use.name, name)), None)
        if near is None and not elsewhere:
            return
        hint = f"did you mean `{near}`?" if near else f"declare it in `{namespace}`: pods use those of their namespace"
        there = here[near] if near else made[elsewhere[0]][use.name]
        where = "" if near else f", only in `{elsewhere[0]}`"
        yield Diagnostic(
            "missing-reference",
            f"no spec has a {use.kind} `{use.name}` in namespace `{namespace}`{where}",
            doc.span(*path, *use.path),
            severity="warning",
            hint=hint,
            notes=_similar_notes(program, there[0], use.kind, near or use.name),
        )
        return
    owner, keys = here[use.name]
    for key, at in use.keys if keys is not None and not use.optional else ():
        if key not in (keys or ()):
            yield Diagnostic(
                "missing-reference",
                f"ConfigMap `{use.name}` has no key `{key}`: the pods do not start",
                doc.span(*path, *at),
                hint=did_you_mean(key, keys or (), "its keys"),
                notes=_similar_notes(program, owner, CONFIG_MAP, use.name),
            )


def _is_misspelt(word: str, name: str) -> bool:
    """Return True if two names differ in their separators, or in a letter of a part that is no number or letter."""
    one, other = _NAME_SEPARATOR.split(word), _NAME_SEPARATOR.split(name)
    if len(one) != len(other):
        return "".join(one) == "".join(other)
    return all(map(_is_alike, one, other))


def _is_alike(one: str, other: str) -> bool:
    if one == other:
        return True
    if len(one) < _MIN_NAME_LENGTH or [each for each in one if each.isdigit()] != [
        each for each in other if each.isdigit()
    ]:
        return False
    return difflib.SequenceMatcher(None, one, other).ratio() >= 1 - 1 / len(one)


def _similar_notes(program: Program, owner: tuple[str, str, str], kind: str, name: str) -> tuple[Note, ...]:
    spec_kind, team, spec_name = owner
    for each in _written_objects(program.get(spec_kind, spec_name, team), program):
        if (each.body["kind"], each.body["metadata"]["name"]) == (kind, name):
            return (Note(each.doc.span(*each.path, "metadata", "name"), "declared here"),)
    return ()


def _all_made(program: Program) -> _Made:
    return program.memo("ConfigMaps and claims of specs", partial(_collect_objects, program))


def _collect_objects(program: Program) -> _Made:
    kinds = registry.written_kinds()
    if any(kind in kinds for kind, _ in program.broken):
        return {}
    made: _Made = {}
    for item in (item for kind in kinds for item in program.of(kind)):
        for kind, namespace, name, keys in program.derive(item, made_by):
            for cluster in item.clusters:
                made.setdefault((cluster, kind), {}).setdefault(namespace, {})[name] = (item.key, keys)
    return made


def made_by(item: Item, program: Program) -> list[tuple[str, str, str, list[str] | None]]:
    """Return the ConfigMaps and claims of a spec: kind, namespace, name and keys."""
    return [
        (
            each.body["kind"],
            each.namespace,
            each.body["metadata"]["name"],
            None if item.resource.patches or each.body["kind"] == CLAIM else sorted(keys_of(each.body)),
        )
        for each in _written_objects(item, program)
    ]


def _written_objects(item: Item, program: Program) -> list[WrittenObject]:
    return [
        each for each in registry.get_kind(item.kind).written(item, program) if each.body["kind"] in (CLAIM, CONFIG_MAP)
    ]
