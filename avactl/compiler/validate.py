"""Pass 2: documents to typed resources. Every problem of every document is told at its own line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from avactl.compiler.errors import show, to_diagnostics
from avactl.compiler.state import State
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.suggest import closest, did_you_mean
from avactl.kinds import registry
from avactl.kinds.base import API_VERSION, GROUP, Resource
from avactl.source.document import Document

_TOP = ("apiVersion", "kind", "metadata", "spec")


def validate(state: State) -> State:
    """Typed resources of all documents that are specs; the others leave a diagnostic."""
    found: list[tuple[Document, Resource]] = []
    problems: list[Diagnostic] = []
    broken: set[tuple[str, str]] = set()
    for doc in state.documents:
        result = validate_document(doc)
        if isinstance(result, list):
            problems += result
            name = doc.get("metadata", "name")
            broken.add((str(doc.get("kind")), name if isinstance(name, str) else ""))
        else:
            found.append((doc, result))
    return replace(
        state,
        resources=tuple(found),
        broken=state.broken | broken,
        diagnostics=state.diagnostics + tuple(problems),
    )


def validate_document(doc: Document) -> Resource | list[Diagnostic]:
    """The typed resource of one document, or what is wrong with it."""
    problem = _envelope(doc)
    if problem is not None:
        return [problem]
    model = registry.kind(doc.value["kind"]).model
    try:
        resource = model.model_validate(doc.value, by_alias=True, by_name=False)
    except ValidationError as error:
        return to_diagnostics(model, doc, error)
    if model.SCOPE == "team" and resource.team is None:
        return [
            Diagnostic(
                "missing-key",
                f"`metadata` needs `team`: a {model.KIND} belongs to a team",
                doc.span("metadata", key=True),
                hint="add `team: NAME`, the name of a Team spec",
            )
        ]
    if model.SCOPE == "platform":
        for key in ("team", "namespace"):
            if getattr(resource.metadata, key) is not None:
                return [
                    Diagnostic(
                        "unknown-key",
                        f"a {model.KIND} belongs to the platform and has no `metadata.{key}`",
                        doc.span("metadata", key, key=True),
                        hint="remove the key",
                    )
                ]
    if model.SCOPE != "team" and resource.metadata.object_name is not None:
        return [
            Diagnostic(
                "unknown-key",
                f"a {model.KIND} has no `metadata.objectName`: workspaces, jobs and services keep objects that way",
                doc.span("metadata", "objectName", key=True),
                hint="name the namespaces in `spec.namespaces`" if model.KIND == "Team" else "remove the key",
            )
        ]
    return resource


def _envelope(doc: Document) -> Diagnostic | None:
    """What is wrong with the four top keys, before the kind's own model can speak."""
    value: Any = doc.value
    if not isinstance(value, dict):
        hint = "begin with `apiVersion: avactl.dev/v1` and `kind: …`"
        return Diagnostic("not-a-spec", f"a spec is a mapping, got {show(value)}", doc.span(), hint=hint)
    version, kind = value.get("apiVersion"), value.get("kind")
    if kind is None or version is None:
        missing = "kind" if kind is None else "apiVersion"
        typo = closest(missing, [key for key in value if key not in _TOP])
        if missing not in value and typo is not None:
            hint = f"did you mean `{missing}`?"
            return Diagnostic("unknown-key", f"a spec has no key `{typo}`", doc.span(typo, key=True), hint=hint)
        hint = f"write `apiVersion: {API_VERSION}`" if missing == "apiVersion" else "`avactl explain` lists the kinds"
        return Diagnostic("not-a-spec", f"the document has no `{missing}`", doc.span(), hint=hint)
    if version != API_VERSION:
        return _other_version(doc, version, kind)
    if not isinstance(kind, str) or kind not in registry.names():
        hint = did_you_mean(str(kind), registry.names(), "known kinds")
        return Diagnostic(
            "unknown-kind", f"there is no kind {show(kind).removeprefix('text ')}", doc.span("kind"), hint=hint
        )
    return None


def _other_version(doc: Document, version: Any, kind: Any) -> Diagnostic:
    text = str(version)
    if text == GROUP or text.startswith(f"{GROUP}/"):
        hint = f"write `apiVersion: {API_VERSION}`"
        return Diagnostic(
            "unknown-api-version", f"`{text}` is not a version that avactl reads", doc.span("apiVersion"), hint=hint
        )
    near = closest(text, [API_VERSION])
    if near is not None or kind in registry.names():
        hint = f"write `apiVersion: {API_VERSION}`"
        return Diagnostic(
            "unknown-api-version",
            f"apiVersion: expected `{API_VERSION}`, got {show(version)}",
            doc.span("apiVersion"),
            hint=hint,
        )
    return Diagnostic(
        "kubernetes-object",
        f"this is a Kubernetes {kind}, not an avactl spec",
        doc.span("apiVersion"),
        hint="keep Kubernetes objects out of the spec directory, or list the file under `exclude` in avactl.yaml",
    )
