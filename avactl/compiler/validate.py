"""Pass 3: parse documents into typed resources. Every problem of every document is reported at its own line."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from avactl.compiler.errors import to_diagnostics
from avactl.compiler.lint.remedies import describe_value
from avactl.compiler.pass_state import PassState
from avactl.diagnostics import Diagnostic
from avactl.diagnostics.lookalikes import meant_text
from avactl.diagnostics.suggest import closest_word, did_you_mean
from avactl.program import registry
from avactl.program.explain import kubernetes_keys
from avactl.spec.documents.document import Document
from avactl.spec.documents.yaml import MAX_BYTES, YamlLocator
from avactl.spec.schema.base import API_VERSION, GROUP, Resource

_TOP_LEVEL_KEYS = ("apiVersion", "kind", "metadata", "spec", "patches", "extends", "template")

_MISNAMED_SETTINGS = ("avactl.yml", "avactl.json", ".avactl.yaml", ".avactl.yml")
"""Names that settings of a repository do not have."""

_MAX_SCRIPT_HEAD = 4096
"""Characters of a file in which options of Slurm are looked for."""
MAX_WRONG = 1000
"""Maximum number of invalid specs reported per file."""


def validate(state: PassState) -> PassState:
    """Return the typed resources of all specs; invalid documents leave diagnostics."""
    found: list[tuple[Document, Resource]] = []
    misplaced: list[tuple[Document, Resource]] = []
    problems: list[Diagnostic] = []
    broken = _unparsable_specs(state)
    wrong: dict[str, int] = {}
    for doc in state.documents:
        if wrong.get(doc.file, 0) >= MAX_WRONG:
            continue
        result = validate_document(doc)
        if isinstance(result, list):
            wrong[doc.file] = wrong.get(doc.file, 0) + 1
            if wrong[doc.file] == MAX_WRONG:
                result = [*result, _too_many(doc)]
            problems += result
            broken |= _probably_declared(doc.get("kind"), doc.get("metadata"))
        else:
            problem = None
            if state.owners:
                from avactl.policy.owners import ownership_problem  # most repositories have no `owners`

                problem = ownership_problem(state.owners, doc, result)
                problems += filter(None, [problem])
            # Of two specs with one name, the one in its place wins.
            (misplaced if problem is not None else found).append((doc, result))
    diagnostics = state.diagnostics + tuple(problems)
    return replace(state, resources=(*found, *misplaced), broken=state.broken | broken, diagnostics=diagnostics)


def _too_many(doc: Document) -> Diagnostic:
    message = f"{MAX_WRONG} specs of this file have problems; the rest were not checked"
    hint = "fix the problems above first; they may have the same cause"
    return Diagnostic("not-a-spec", message, doc.span(), hint=hint)


def _probably_declared(kind: Any, metadata: Any) -> set[tuple[str, str]]:
    """Return the specs that an invalid document may declare, so that references to them are not reported too."""
    near = closest_word(kind, registry.kind_names()) if isinstance(kind, str) else None
    kinds = registry.kind_names() if near is None else [near]
    name = metadata.get("name") if isinstance(metadata, dict) else None
    names = {""}
    if isinstance(name, str):
        odd = meant_text(name)
        plain = (odd.plain if odd is not None else name).lower()
        names = {name, plain, re.sub(r"[^a-z0-9-]+", "-", plain).strip("-")}
    elif isinstance(metadata, dict):  # as in `{name sft, team: vision}`
        names = {word for key in metadata for word in str(key).split()}
    return {(kind, name) for kind in kinds for name in names}


_FIND_KINDS = re.compile(r"\b([A-Z][A-Za-z]+)\b").findall
_FIND_NAMES = re.compile(r"""\bname["']?\s*[:=]\s*["']?([a-z0-9][-a-z0-9]*)""").findall


def _unparsable_specs(state: PassState) -> set[tuple[str, str]]:
    """Return the specs that unparsable files appear to declare."""
    found: set[tuple[str, str]] = set()
    for path in sorted({d.span.file for d in state.diagnostics if d.severity == "error"}):
        try:
            text = state.tree.read(path).decode("utf-8", "replace") if state.tree.size(path) <= MAX_BYTES else ""
        except OSError:
            continue
        kinds = set(_FIND_KINDS(text)).intersection(registry.kind_names())
        names = set(_FIND_NAMES(text))
        found |= {(kind, name) for kind in kinds for name in names}
    return found


def validate_document(doc: Document) -> Resource | list[Diagnostic]:
    """Return the typed resource of one document, or its problems."""
    problem = _check_envelope(doc)
    if problem is not None:
        return [problem]
    model = registry.get_model(doc.value["kind"])
    try:
        resource = model.model_validate(doc.value, by_alias=True, by_name=False)
    except ValidationError as error:
        return to_diagnostics(model, doc, error)
    if model.SCOPE == "team" and resource.team is None:
        message = f"`metadata` needs `team`: every {model.KIND} belongs to a team"
        hint = "add `team: NAME`, the name of a Team spec"
        return [Diagnostic("missing-key", message, doc.span("metadata", key=True), hint=hint)]
    if model.SCOPE == "platform":
        for key in ("team", "namespace"):
            if getattr(resource.metadata, key) is not None:
                message = f"a {model.KIND} belongs to the platform and has no `metadata.{key}`"
                return [Diagnostic("unknown-key", message, doc.span("metadata", key, key=True), hint="remove the key")]
    if model.SCOPE != "team" and resource.metadata.object_name is not None:
        return [
            Diagnostic(
                "unknown-key",
                f"a {model.KIND} has no `metadata.objectName`: only workspaces, jobs and services support it",
                doc.span("metadata", "objectName", key=True),
                hint=model.OBJECT_NAME_HINT,
            )
        ]
    return resource


def _check_envelope(doc: Document) -> Diagnostic | None:
    """Check the four top-level keys, before the kind's own model applies."""
    value: Any = doc.value
    if not isinstance(value, dict):
        hint = "start with `apiVersion: avactl.dev/v1` and `kind: …`"
        if isinstance(value, list) and isinstance(value[0] if value else None, dict) and "kind" in value[0]:
            hint = "write each spec without `- `, and `---` on a line between them"
        elif isinstance(doc.locator, YamlLocator) and "#SBATCH" in doc.locator.text[:_MAX_SCRIPT_HEAD]:
            hint = f"`avactl import slurm {doc.file}` turns a batch script into a spec"
        return Diagnostic("not-a-spec", f"a spec must be a mapping, got {describe_value(value)}", doc.span(), hint=hint)
    version, kind = value.get("apiVersion"), value.get("kind")
    if kind is None or version is None:
        missing = "kind" if kind is None else "apiVersion"
        typo = closest_word(missing, [key for key in value if key not in _TOP_LEVEL_KEYS])
        if missing not in value and typo is not None:
            hint = f"did you mean `{missing}`?"
            return Diagnostic("unknown-key", f"a spec has no key `{typo}`", doc.span(typo, key=True), hint=hint)
        hint = f"write `apiVersion: {API_VERSION}`" if missing == "apiVersion" else "`avactl explain` lists the kinds"
        if missing in value:
            return Diagnostic("not-a-spec", f"`{missing}` has no value", doc.span(missing, key=True), hint=hint)
        if version is None and kind is None:
            hint = f"start with `apiVersion: {API_VERSION}` and `kind: …`"
        if version != API_VERSION and kind not in registry.kind_names():
            hint += "; list files that are not specs under `exclude` in avactl.yaml"
        if doc.file in _MISNAMED_SETTINGS:
            hint = "rename it to avactl.yaml, if it has the settings of the repository"
        what = "neither `apiVersion` nor `kind`" if version is None and kind is None else f"no `{missing}`"
        return Diagnostic("not-a-spec", f"the document has {what}", doc.span(), hint=hint)
    if version != API_VERSION:
        return _other_version(doc, version, kind)
    if not isinstance(kind, str) or kind not in registry.kind_names():
        hint = did_you_mean(str(kind), registry.kind_names(), "known kinds")
        if (odd := meant_text(str(kind))) is not None:
            hint = f"write `kind: {odd.plain}`; {odd.reason}"
        elif (own := kubernetes_keys.KINDS.get(str(kind))) is not None:
            hint = f"write `kind: {own}`: `avactl explain {own}` shows its keys"
        elif str(kind) in kubernetes_keys.CONCEPTS:
            hint = kubernetes_keys.CONCEPTS[str(kind)]
        message = (
            f"unknown kind `{kind}`"
            if isinstance(kind, str)
            else f"kind: expected a string, got {describe_value(kind)}"
        )
        return Diagnostic("unknown-kind", message, doc.span("kind"), hint=hint)
    return None


def _other_version(doc: Document, version: Any, kind: Any) -> Diagnostic:
    text, hint = str(version), f"write `apiVersion: {API_VERSION}`"
    if (odd := meant_text(text)) is not None:
        hint += f"; {odd.reason}"
    if text == GROUP or text.startswith(f"{GROUP}/"):
        message = f"`{text}` is not a supported apiVersion"
        return Diagnostic("unknown-api-version", message, doc.span("apiVersion"), hint=hint)
    if closest_word(text, [API_VERSION]) is not None or (kind in registry.kind_names() and "." not in text):
        message = f"apiVersion: expected `{API_VERSION}`, got {describe_value(version)}"
        return Diagnostic("unknown-api-version", message, doc.span("apiVersion"), hint=hint)
    message = f"this is a Kubernetes {kind}, not an avactl spec"
    own = kubernetes_keys.KINDS.get(str(kind))
    hint = f"{f'write a {own} instead, or ' if own else ''}import it: `avactl import {doc.file}`; or "
    hint += "list the file under `exclude` in avactl.yaml, and under `files` of a KubernetesObjects to apply it"
    return Diagnostic("kubernetes-object", message, doc.span("apiVersion"), hint=hint)
