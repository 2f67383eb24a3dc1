"""Pass 4: resolve references and defaults. Afterwards every required value is set."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

from avactl.compiler.lower import apply_patches
from avactl.compiler.pass_state import PassState
from avactl.compiler.validate import validate_document
from avactl.diagnostics import CompileError, Diagnostic, Note, Reference
from avactl.diagnostics.suggest import WordIndex, did_you_mean, one_of
from avactl.hardware import library
from avactl.program.explain import introspect
from avactl.program.program import Item, Program
from avactl.spec.documents.document import Document, ShippedDocument
from avactl.spec.documents.yaml import load_yaml
from avactl.spec.platform.node_pool import NodePoolSpec
from avactl.spec.platform.team import TeamSpec
from avactl.spec.repository.tree import read_input
from avactl.spec.schema.base import Resource


def resolve(state: PassState) -> PassState:
    """Return the program: all specs whose references could be resolved."""
    problems: list[Diagnostic] = []
    items = _unique_items(state, problems)
    items += _shipped_machines(items)
    program = Program(items, partial(read_input, state.tree))
    program.environment = state.tree.environment
    program.broken = state.broken
    names = {(item.kind, item.spec_name) for item in items}
    unknown = [(item, unknown_references(item, names)) for item in program.items]
    good = [item for item, references in unknown if not references]
    # References to invalid specs are not reported.
    problems += [
        _unknown_reference(item, reference, program)
        for item, references in unknown
        for reference in references
        if (reference.kind, reference.name) not in program.broken
    ]
    good = [item for item in good if place_item(item, program, problems)]
    if len(good) < len(items):
        good = _resolved_items(good)
    resolved = Program(good, program.read_file)
    resolved.environment = state.tree.environment
    resolved.with_patches = apply_patches
    resolved.broken = state.broken | names - {(item.kind, item.spec_name) for item in good}
    return replace(state, program=resolved, diagnostics=state.diagnostics + tuple(problems))


def _unique_items(state: PassState, problems: list[Diagnostic]) -> list[Item]:
    """Return one item per name; the first of several specs with the same name wins."""
    by_key: dict[tuple[str, str, str], Item] = {}
    for doc, resource in state.resources:
        item = Item(doc, resource)
        other = by_key.setdefault(item.key, item)
        if other is not item:
            span, notes = item.span("metadata", "name"), (Note(other.span("metadata", "name"), "first occurrence"),)
            message, hint = f"duplicate {item}", "rename or remove one of them"
            problems.append(Diagnostic("duplicate-name", message, span, label="duplicate", hint=hint, notes=notes))
    return list(by_key.values())


def _shipped_machines(items: list[Item]) -> list[Item]:
    """Return the library machine types that pools reference and no spec declares."""
    wanted = {item.spec.machine_type for item in items if isinstance(item.spec, NodePoolSpec)}
    wanted -= {item.name for item in items if item.kind == "MachineType"}
    return [Item(*shipped_machine_type(name)) for name in sorted(wanted.intersection(library.shipped_names()))]


@cache
def shipped_machine_type(name: str) -> tuple[Document, Resource]:
    """Return a machine type of the library. A test ensures that all of them are valid."""
    documents, _ = load_yaml(library.display_path(name), library.read(name))
    (read,) = documents
    document = ShippedDocument(read.file, read.index, read.value, read.locator)
    resource = validate_document(document)
    if isinstance(resource, list):
        raise CompileError(resource)
    return document, resource


def unknown_references(item: Item, names: set[tuple[str, str]]) -> list[introspect.SpecReference]:
    """Return the references of an item to specs that do not exist; `names`: kind and name of those that do."""
    return [each for each in introspect.references(item.resource) if (each.kind, each.name) not in names]


def _unknown_reference(item: Item, reference: introspect.SpecReference, program: Program) -> Diagnostic:
    kind, name = reference.kind, reference.name
    known = _known_names(program, kind)
    meant = known.closest(name)
    hint = did_you_mean(name, known, f"{kind}s") if known.words else f"declare it: `kind: {kind}`"
    if known.words and meant is None and len(unnamed := _unreferenced_names(program, kind)) == 1:
        meant = unnamed[0]
        hint = f"no spec names {kind} `{meant}`: if that was `{name}`, write the same name in both"
    span, about = item.span(*reference.path), Reference(kind, name, meant or "")
    return Diagnostic("missing-reference", f"unknown {kind} `{name}`", span, hint=hint, reference=about)


def _known_names(program: Program, kind: str) -> WordIndex:
    """Return the names that a reference to a kind may have."""
    if kind != "MachineType":
        return program.names(kind)
    return program.memo(_known_names, lambda: WordIndex([*program.names(kind).words, *library.shipped_names()]))


def _unreferenced_names(program: Program, kind: str) -> list[str]:
    """Return the names of the specs of a kind that no other spec names."""

    def names() -> list[str]:
        there = {item.spec_name for item in program.items if item.kind == kind}
        for item in program.items:
            there -= {ref.name for ref in introspect.references(item.resource) if ref.kind == kind}
        return sorted(there)

    return program.memo((_unreferenced_names, kind), names)


def _resolved_items(good: list[Item]) -> list[Item]:
    """Items whose references all resolved, transitively."""
    while True:
        there = {(item.kind, item.spec_name) for item in good}
        needs = ({(ref.kind, ref.name) for ref in introspect.references(item.resource)} for item in good)
        left = [item for item, needed in zip(good, needs, strict=True) if needed <= there]
        if len(left) == len(good):
            return good
        good = left


def place_item(item: Item, program: Program, problems: list[Diagnostic]) -> bool:
    """Determine the clusters and the namespace of an item."""
    every = tuple(cluster.name for cluster in program.clusters())
    placed = item.resource.placed_on(every)
    if placed is not None:
        item.clusters = placed
        return True
    team = program.find_team(item.team) if item.team else None
    offered = (team.resource.placed_on(every) if team is not None else None) or every
    own = getattr(item.spec, "cluster", None)
    if item.team and own is not None and own not in offered:
        if not set(offered) <= set(every):
            return False  # one of the team's clusters is not declared, which is reported
        message = f"team {item.team} does not use cluster `{own}`"
        hint = f"its clusters: {one_of(offered)}; add the cluster to the team, or omit the key"
        problems.append(Diagnostic("missing-reference", message, item.span("spec", "cluster"), hint=hint))
        return False
    item.clusters = (own,) if own is not None else offered
    if item.resource.needs_one_cluster() and len(item.clusters) != 1:
        if not item.clusters:
            if not program.lacks_clusters:
                hint = "declare one: `kind: Cluster`"
                problems.append(Diagnostic("missing-reference", "no Cluster is declared", item.span("kind"), hint=hint))
            return False
        message = f"{item} needs a cluster: team {item.team} uses {one_of(item.clusters)}"
        models = _written_gpu_models(item.doc.get("spec"))
        able = [name for name in item.clusters if models <= _gpu_models(program, name)]
        lacking = f"; no other one has {one_of(sorted(models))}" if len(able) == 1 and models else ""
        hint = f"add `cluster: {(able or item.clusters)[0]}` under `spec`{lacking}"
        if not able:
            hint = f"none of them has {one_of(sorted(models))}: choose another `gpu`, and add `cluster: …` under `spec`"
        problems.append(Diagnostic("ambiguous-reference", message, item.span("spec", key=True), hint=hint))
        return False
    return team is None or _resolve_namespace(item, team, problems)


def _written_gpu_models(value: Any) -> set[str]:
    """Return the GPU models that a spec names, at any depth."""
    if isinstance(value, list):
        return {model for entry in value for model in _written_gpu_models(entry)}
    if not isinstance(value, dict):
        return set()
    model = value.get("gpu")
    return {model} if isinstance(model, str) else set().union(*map(_written_gpu_models, value.values()))


def _gpu_models(program: Program, cluster: str) -> set[str]:
    models = {each.spec_name: gpus.model for each in program.machine_types() if (gpus := each.spec.gpus) is not None}
    return {models[pool.spec.machine_type] for pool in program.pools(cluster) if pool.spec.machine_type in models}


def _resolve_namespace(item: Item, team: Item[TeamSpec], problems: list[Diagnostic]) -> bool:
    offered = [namespace.name for namespace in team.spec.namespaces or []] or [team.name]
    own = item.resource.metadata.namespace
    if own is not None and own not in offered:
        message = f"`{own}` is not a namespace of team {team.name}"
        hint = did_you_mean(own, offered, "its namespaces")
        problems.append(Diagnostic("missing-reference", message, item.span("metadata", "namespace"), hint=hint))
        return False
    item.namespace = own or offered[0]
    return True
