"""Pass 2: merge specs with defaults, templates, and the overlays of an environment."""

from __future__ import annotations

from dataclasses import replace

from avactl.compiler.layers.recognition import declares_layer, extends_template, name_of
from avactl.compiler.pass_state import PassState
from avactl.diagnostics import Diagnostic
from avactl.spec.documents.document import Document


def merge(state: PassState) -> PassState:
    """Return the documents of all specs with what they inherit; templates and defaults are left out."""
    own = [document for document in state.documents if declares_layer(document.value)]
    if not own and not state.overlays and not any(extends_template(document.value) for document in state.documents):
        return state
    from avactl.compiler.layers.check import check_declarations, unmatched_layers, without_effect
    from avactl.compiler.layers.declarations import Declarations
    from avactl.compiler.layers.document import LayeredDocument

    declared = Declarations(own, state.overlays)
    problems: list[Diagnostic] = check_declarations(declared, state.owners)
    broken: set[tuple[str, str]] = set()
    documents: list[Document] = []
    specs = [document for document in state.documents if not declares_layer(document.value)]
    for document in specs:
        if extends_template(document.value) and not isinstance(document.value.get("template", False), bool):
            message, span = "template: expected true or false", document.span("template")
            problems.append(Diagnostic("wrong-type", message, span, hint="write `template: true`, or remove the key"))
        layered = declared.layered(document, problems)
        if layered is None:
            kind, _, name = name_of(document.value)
            broken.add((kind, name))
            continue
        documents.append(layered)
        if state.overlays and isinstance(layered, LayeredDocument):
            problems += without_effect(layered)
    problems += unmatched_layers(declared, (name_of(document.value) for document in specs))
    return replace(
        state,
        documents=tuple(documents),
        broken=state.broken | broken,
        diagnostics=state.diagnostics + tuple(problems),
    )
