"""Templates, defaults and overlays that documents declare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from avactl.compiler.layers.document import (
    OVERLAY,
    PLATFORM_DEFAULT,
    SPEC,
    TEAM_DEFAULT,
    TEMPLATE,
    Layer,
    LayeredDocument,
)
from avactl.compiler.layers.recognition import SpecName, is_defaults, is_template, name_of
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import did_you_mean, one_of
from avactl.program import registry
from avactl.spec.documents.document import Document

MAX_CHAIN = 8
"""Maximum number of templates that a spec extends, directly and indirectly."""
MAX_OVERLAYS = 32
"""Maximum number of overlays of one spec, template or defaults: each is merged with all below it."""
MAX_VALUES = 2000
"""Maximum number of values in a template or defaults, or an overlay of them: every spec gets all of them."""


def document_title(name: SpecName) -> str:
    """Return the words for a document: `TrainingJob vision/resnet50`."""
    kind, team, own = name
    return f"{kind} {'/'.join(filter(None, (team, own)))}".strip()


def owner_of(team: str) -> str:
    """Return the words for a team, or for the platform."""
    return f"team {team}" if team else "the platform"


def contributed_values(value: dict[str, Any]) -> dict[str, Any]:
    """Return what a template, an entry of defaults or an overlay contributes to a spec: not its own name."""
    found: dict[str, Any] = {key: value[key] for key in ("spec", "patches") if key in value}
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        own = {key: each for key, each in metadata.items() if key not in ("name", "team")}
        return {"metadata": own, **found} if own else found
    return found if metadata is None else {"metadata": metadata, **found}


def is_too_large(document: Document) -> bool:
    """Return True if specs must not inherit a document: it has more than `MAX_VALUES` values."""
    left, ahead = MAX_VALUES, [document.value]
    while ahead and left >= 0:
        value = ahead.pop()
        left -= 1
        if isinstance(value, dict | list):
            ahead += value.values() if isinstance(value, dict) else value
    return left < 0


class Declarations:
    """The templates, defaults and overlays of a repository in one environment."""

    def __init__(self, documents: Iterable[Document], overlays: Sequence[Document]) -> None:
        """`documents`: templates and defaults, others are ignored; `overlays`: later ones win."""
        self.problems: list[Diagnostic] = []
        self.documents: list[Document] = []
        """Templates and defaults."""
        self.overlays = list(overlays)
        self._templates: dict[SpecName, Document] = {}
        self._defaults: dict[str, Document] = {}
        self._chains: dict[SpecName, list[Layer]] = {}
        """Layers of templates by kind and team of the spec, and the name that it extends."""
        self._default_cache: dict[tuple[str, str], list[Layer]] = {}
        """Layers of the defaults by kind and team."""
        self._overlays: dict[SpecName, list[Document]] = {}
        for overlay in overlays:
            changed = name_of(overlay.value)
            others = self._overlays.setdefault(changed, [])
            if len(others) < MAX_OVERLAYS:
                others.append(overlay)
            else:
                message = f"{document_title(changed)} has more than {MAX_OVERLAYS} overlays"
                span = overlay.span("metadata", "name")
                self.problems.append(Diagnostic("layer-too-large", message, span, hint="merge them"))
        for document in documents:
            kind, team, name = name_of(document.value)
            if is_template(document.value):
                self._declare(self._templates, (kind, team, name), document)
            elif is_defaults(document.value):
                self._declare(self._defaults, team, document)

    def _declare(self, table: dict[Any, Document], key: Any, document: Document) -> None:
        self.documents.append(document)
        other = table.setdefault(key, document)
        if other is not document:
            path = ("kind",) if is_defaults(document.value) else ("metadata", "name")
            title = f"template {document_title(key)}" if is_template(document.value) else f"Defaults of {owner_of(key)}"
            span, notes = document.span(*path), (Note(other.span(*path), "first occurrence"),)
            message, hint = f"duplicate {title}", "merge them, or remove one"
            problem = Diagnostic("duplicate-name", message, span, label="duplicate", hint=hint, notes=notes)
            self.problems.append(problem)

    def __bool__(self) -> bool:
        return bool(self.documents or self.overlays)

    def templates(self) -> list[Document]:
        """Return all templates, without overlays."""
        return list(self._templates.values())

    def defaults(self) -> list[Document]:
        """Return all documents with defaults, without overlays."""
        return list(self._defaults.values())

    def overlays_of(self, document: Document) -> list[Document]:
        """Return the overlays of a spec, a template or defaults."""
        return self._overlays.get(name_of(document.value), [])

    def too_large(self, document: Document, what: str) -> list[Diagnostic]:
        """Return the problems of a template or defaults, and of their overlays, that specs must not inherit."""
        hint = "move lists of data to a file"
        return [
            Diagnostic(
                "layer-too-large",
                f"{what if each is document else 'this overlay'} has more than {MAX_VALUES:,} values, which every spec "
                "would get",
                each.span("kind"),
                hint=hint,
            )
            for each in (document, *self.overlays_of(document))
            if is_too_large(each)
        ]

    def layered(self, document: Document, problems: list[Diagnostic]) -> Document | None:
        """Return a spec merged of its layers, or itself if it has no others; None if they have problems."""
        value = document.value
        if not isinstance(value, dict):
            return document
        kind, team, _ = name_of(value)
        below = self._default_layers(kind, team)
        if "extends" in value:
            templates = self._chain(document, problems)
            if templates is None:
                return None
            below = [*below, *templates]
        overlays = self.overlay_layers(document) if self._overlays else []
        if not below and not overlays and "extends" not in value and "template" not in value:
            return document
        own = {key: each for key, each in value.items() if key not in ("extends", "template")}
        return LayeredDocument([*below, Layer(SPEC, document, (), own), *overlays])

    def overlay_layers(self, document: Document) -> list[Layer]:
        """Return the overlays of a document as layers."""
        return [Layer(OVERLAY, each, (), contributed_values(each.value)) for each in self.overlays_of(document)]

    def _default_layers(self, kind: str, team: str) -> list[Layer]:
        if not self._defaults:
            return []
        known = self._default_cache.get((kind, team))
        if known is not None:
            return known
        found = []
        for role, owner in ((PLATFORM_DEFAULT, ""), (TEAM_DEFAULT, team)):
            document = self._defaults.get(owner)
            if document is not None and (owner or role == PLATFORM_DEFAULT):
                for each in (document, *self.overlays_of(document)):
                    value = each.get("spec", kind)
                    if isinstance(value, dict) and not is_too_large(each):
                        found.append(Layer(role, each, ("spec", kind), contributed_values(value)))
        self._default_cache[kind, team] = found
        return found

    def _chain(self, document: Document, problems: list[Diagnostic]) -> list[Layer] | None:
        """Return the templates that a document extends, lowest first; None with a problem."""
        kind, team, _ = name_of(document.value)
        wanted = document.value["extends"]
        key = (kind, team, wanted) if isinstance(wanted, str) else ("", "", "")
        if key in self._chains:
            return self._chains[key]
        found: list[Document] = []
        at = document
        while "extends" in at.value:
            template = self._template(at, problems)
            if template is None:
                return None
            if template in found or len(found) == MAX_CHAIN:
                problems.append(_endless_problem(document, found, template))
                return None
            if large := self.too_large(template, "this template"):
                problems += large
                return None
            found.append(template)
            at = template
        layers = self._chains[key] = [
            layer
            for template in reversed(found)
            for layer in (
                Layer(f"{TEMPLATE} {name_of(template.value)[2]}", template, (), contributed_values(template.value)),
                *(each._replace(role=f"{OVERLAY} of template") for each in self.overlay_layers(template)),
            )
        ]
        return layers

    def _template(self, at: Document, problems: list[Diagnostic]) -> Document | None:
        """Return the template that a spec or template extends; None with a problem."""
        kind, team, _ = name_of(at.value)
        wanted = at.value["extends"]
        if kind not in registry.workload_kinds():
            message = f"a {kind} cannot extend a template: only {one_of(registry.workload_kinds())} can"
            hint = "remove the key; `kind: Defaults` sets defaults of any kind"
            problems.append(Diagnostic("unknown-key", message, at.span("extends", key=True), hint=hint))
            return None
        if not isinstance(wanted, str):
            hint = "write the name of one template"
            problems.append(Diagnostic("wrong-type", "extends: expected a string", at.span("extends"), hint=hint))
            return None
        found = (self._templates.get((kind, team, wanted)) if team else None) or self._templates.get((kind, "", wanted))
        if found is None:
            message, hint = self._missing(kind, team, wanted)
            problems.append(Diagnostic("missing-reference", message, at.span("extends"), hint=hint))
        return found

    def _missing(self, kind: str, team: str, wanted: str) -> tuple[str, str]:
        """Return message and hint for a template that a spec of this kind and team cannot extend."""
        named = [each for each in self._templates if each[2] == wanted]
        if any(other == kind for other, _, _ in named):
            hint = "teams extend their own templates, and the platform's, which have no `metadata.team`"
            return f"template `{wanted}` belongs to another team", hint
        for other, owner, _ in named:
            if owner in ("", team):
                return f"template `{wanted}` is a {other}, which a {kind} cannot extend", f"extend a {kind} template"
        usable = {name for other, owner, name in self._templates if other == kind and owner in ("", team)}
        if usable:
            hint = did_you_mean(wanted, usable, f"{kind} templates")
        else:
            hint = f"declare it: `kind: {kind}` with `template: true`"
        return f"unknown template `{wanted}`", hint


def _endless_problem(document: Document, chain: list[Document], template: Document) -> Diagnostic:
    """Return the problem of a chain that comes back to a template, or is too long; the same from every spec."""
    hint = "remove one `extends`"
    if template not in chain:
        names = " → ".join(name_of(each.value)[2] for each in (document, *chain, template))
        message = f"a chain of more than {MAX_CHAIN} templates: {names}"
        return Diagnostic("template-chain", message, document.span("extends"), hint=hint)
    circle = chain[chain.index(template) :]
    first = circle.index(min(circle, key=lambda each: name_of(each.value)))
    circle = [*circle[first:], *circle[: first + 1]]
    message = f"templates extend each other: {' → '.join(name_of(each.value)[2] for each in circle)}"
    return Diagnostic("template-chain", message, circle[0].span("extends"), hint=hint)
