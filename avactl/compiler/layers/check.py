"""Checks of templates, defaults and overlays: form, types, size, owners, and that overlays have an effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from avactl.compiler.errors import to_diagnostics
from avactl.compiler.layers.declarations import Declarations, document_title, owner_of
from avactl.compiler.layers.document import OVERLAY, SPEC, Layer, LayeredDocument
from avactl.compiler.layers.merge import LayerPart, merge_values, trace_parts
from avactl.compiler.layers.recognition import DEFAULTS, SpecName, name_of
from avactl.compiler.lint.remedies import describe_value
from avactl.diagnostics import Diagnostic, Reference
from avactl.diagnostics.suggest import WordIndex, did_you_mean, one_of
from avactl.program import registry
from avactl.program.explain import introspect
from avactl.spec.documents.document import Document, Path
from avactl.spec.schema.base import API_VERSION, Metadata

if TYPE_CHECKING:
    from avactl.policy.owners import Owners


def check_declarations(declared: Declarations, owners: Sequence[Owners]) -> list[Diagnostic]:
    """Return the problems of all templates, defaults and overlays, each by itself."""
    problems = list(declared.problems)
    for template in declared.templates():
        problems += _check_template(template, declared, owners)
    for defaults in declared.defaults():
        problems += _check_defaults(defaults, declared, owners)
    for overlay in declared.overlays:
        problems += _check_overlay(overlay)
    return problems


# -- form ------------------------------------------------------------------------------------------------------------


def _unknown_key(document: Document, path: Path, known: Collection[str], where: str) -> list[Diagnostic]:
    """Return the problems of keys that a mapping may not have."""
    value = document.get(*path) if path else document.value
    return [
        Diagnostic(
            "unknown-key",
            f"{where} has no key `{key}`",
            document.span(*path, key, key=True),
            hint=did_you_mean(key, known, "known keys"),
        )
        for key in value
        if key not in known
    ]


def _check_envelope(document: Document, what: str) -> list[Diagnostic]:
    """Check `apiVersion` and that `metadata` and `spec` are mappings."""
    found = []
    if document.value.get("apiVersion") != API_VERSION:
        message, hint = f"{what} needs `apiVersion: {API_VERSION}`", f"write `apiVersion: {API_VERSION}`"
        found.append(Diagnostic("unknown-api-version", message, document.span("apiVersion"), hint=hint))
    for key in ("metadata", "spec"):
        value = document.value.get(key, {})
        if not isinstance(value, dict):
            message = f"{key}: expected a mapping, got {describe_value(value)}"
            found.append(Diagnostic("wrong-type", message, document.span(key), hint=f"write `{key}: {{…}}`"))
    return found


def _want_name(document: Document, what: str) -> list[Diagnostic]:
    if name_of(document.value)[2]:
        return []
    hint = "write `metadata: {name: …}`"
    return [Diagnostic("missing-key", f"{what} needs `metadata.name`", document.span("metadata", key=True), hint=hint)]


# -- templates, defaults, overlays -----------------------------------------------------------------------------------


def _check_template(template: Document, declared: Declarations, owners: Sequence[Owners]) -> list[Diagnostic]:
    kind, team, _ = name_of(template.value)
    known = registry.workload_kinds()
    if kind not in known:
        message = (
            f"a template cannot be a {kind}: only {one_of(known)} can"
            if kind in registry.kind_names()
            else (f"unknown kind `{kind}`" if kind else "the template has no `kind`")
        )
        hint = (
            "`kind: Defaults` sets defaults of any kind" if kind in registry.kind_names() else did_you_mean(kind, known)
        )
        return [Diagnostic("unknown-kind", message, template.span("kind"), hint=hint)]
    problems = [*_check_envelope(template, "a template"), *_want_name(template, "a template")]
    problems = problems or declared.too_large(template, "this template")
    if problems:
        return problems
    own = {key: value for key, value in template.value.items() if key not in ("template", "extends")}
    layered = LayeredDocument([Layer(SPEC, template, (), own), *declared.overlay_layers(template)])
    problems = [*_check_types(layered, kind), *_not_owned(layered, kind, team, owners)]
    if "extends" in template.value:
        declared.layered(template, problems)
    return problems


def _check_defaults(defaults: Document, declared: Declarations, owners: Sequence[Owners]) -> list[Diagnostic]:
    problems = _check_envelope(defaults, DEFAULTS) or [
        *_unknown_key(defaults, (), ("apiVersion", "kind", "metadata", "spec"), DEFAULTS),
        *declared.too_large(defaults, DEFAULTS),
    ]
    if "metadata" in defaults.value and not problems:
        problems += _unknown_key(defaults, ("metadata",), ("team",), "`metadata` of Defaults")
    if problems:
        return problems
    _, team, _ = name_of(defaults.value)
    if "team" in (defaults.get("metadata") or ()) and not team:
        message = f"metadata.team: expected a string, got {describe_value(defaults.get('metadata', 'team'))}"
        hint = "write the name of a Team; without `team` they are the platform's"
        return [Diagnostic("wrong-type", message, defaults.span("metadata", "team"), hint=hint)]
    for document in (defaults, *declared.overlays_of(defaults)):
        for kind, value in (document.get("spec") or {}).items():
            problems += _check_entry(document, kind, value, team, owners)
    return problems


def _check_entry(document: Document, kind: str, value: Any, team: str, owners: Sequence[Owners]) -> list[Diagnostic]:
    """Check the defaults of one kind."""
    path = ("spec", kind)
    owned = [name for name in registry.kind_names() if not team or registry.get_model(name).SCOPE != "platform"]
    if kind not in owned:
        hint = did_you_mean(kind, owned, "kinds")
        message = f"unknown kind `{kind}`"
        if kind in registry.kind_names():
            message, hint = f"a {kind} has no team", "the platform sets its defaults, without `metadata.team`"
        return [Diagnostic("unknown-kind", message, document.span(*path, key=True), hint=hint)]
    if not isinstance(value, dict):
        message = f"spec.{kind}: expected a mapping, got {describe_value(value)}"
        return [Diagnostic("wrong-type", message, document.span(*path), hint="write `{spec: {…}}`")]
    of_spec = introspect.models_at(registry.get_model(kind), ("spec",))
    outside = [key for key in value if any(key in introspect.fields_by_key(model) for model in of_spec)]
    if outside and "spec" not in value:
        message = f"`{outside[0]}` belongs to `spec`"
        hint = f"write `{kind}: {{spec: {{{outside[0]}: …}}}}`"
        return [Diagnostic("unknown-key", message, document.span(*path, outside[0], key=True), hint=hint)]
    problems = _unknown_key(document, path, ("metadata", "spec", "patches"), f"`{kind}` of Defaults")
    if problems:
        return problems
    if isinstance(value.get("metadata"), dict):
        problems += _unknown_key(document, (*path, "metadata"), ("labels", "annotations"), "`metadata` in Defaults")
    layer = Layer(SPEC, document, path, {"apiVersion": API_VERSION, "kind": kind, **value})
    layered = LayeredDocument([layer])
    return [*problems, *_check_types(layered, kind), *_not_owned(layered, kind, team, owners)]


def _check_overlay(overlay: Document) -> list[Diagnostic]:
    kind, _, _ = name_of(overlay.value)
    kinds = [*registry.kind_names(), DEFAULTS]
    if not isinstance(overlay.value, dict):
        hint = "write `kind`, `metadata` and the changed keys of the spec"
        message = f"an overlay must be a mapping, got {describe_value(overlay.value)}"
        return [Diagnostic("not-a-spec", message, overlay.span(), hint=hint)]
    if kind not in kinds:
        message = f"unknown kind `{kind}`" if kind else "an overlay needs `kind` and `metadata` of the spec"
        hint = did_you_mean(kind, kinds, "known kinds") if kind else "write the `kind` of the spec that it changes"
        return [Diagnostic("unknown-kind", message, overlay.span("kind"), hint=hint)]
    problems = _check_envelope(overlay, "an overlay")
    if kind != DEFAULTS:
        problems = problems or _want_name(overlay, "an overlay")
    known = ("apiVersion", "kind", "metadata", "spec", "patches")
    for key in overlay.value:
        if key in ("extends", "template"):
            hint = (
                "change it in the spec, or the template in an overlay of its own"
                if key == "extends"
                else "remove the key: `kind` and `metadata` name what it changes"
            )
            message = f"an overlay cannot change `{key}`"
            problems.append(Diagnostic("unknown-key", message, overlay.span(key, key=True), hint=hint))
        elif key not in known:
            problems += _unknown_key(overlay, (), (*known, *overlay.value.keys() - {key}), "an overlay")
    return problems


def _check_types(document: LayeredDocument, kind: str) -> list[Diagnostic]:
    """Return the problems of a partial spec that completing it cannot solve."""
    model = registry.get_model(kind)
    try:
        model.model_validate(document.value, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = [entry for entry in error.errors(include_url=False) if not _of_the_rest(document, entry)]
        return to_diagnostics(model, document, _Errors(lines)) if lines else []  # type: ignore[arg-type]
    return []


class _Errors:
    """Some errors of a ValidationError."""

    def __init__(self, lines: list[Any]) -> None:
        self._lines = lines

    def errors(self, *, include_url: bool = False) -> list[Any]:
        return self._lines


def _of_the_rest(document: Document, entry: Any) -> bool:
    """Return True for an error about keys that other layers may add: missing ones, and rules over several keys."""
    if entry["type"] == "missing":
        return True
    return entry["type"] in ("invalid_value", "value_error") and isinstance(document.get(*entry["loc"]), dict)


def _not_owned(document: Document, kind: str, team: str, owners: Sequence[Owners]) -> list[Diagnostic]:
    """Return a problem if a file may not declare specs of the kind and team, or their patches."""
    if not owners:
        return []
    from avactl.policy.owners import ownership_problem
    from avactl.spec.schema.base import Patch

    given = document.get("patches")
    patches = []
    for each in given if isinstance(given, list) else ():
        # One without a target is no error of a layer, since others may replace it. The file needs its rights all the
        # same: what it sets beside the patches counts.
        with suppress(ValidationError):
            patches.append(Patch.model_validate(each, by_alias=True, by_name=False))
    model = registry.get_model(kind)
    metadata = Metadata.model_construct(name=team or "defaults", team=team or None)
    found = ownership_problem(
        owners, document, model.model_construct(kind=kind, metadata=metadata, spec=None, patches=patches)
    )
    return [found] if found else []


def inherited_not_owned(document: Document, kind: str, owners: Owners) -> Diagnostic | None:
    """Return a problem if a template or defaults of a spec are in a file that may not declare them."""
    if not isinstance(document, LayeredDocument):
        return None
    for layer in document.layers:
        if layer.role not in (SPEC, OVERLAY):
            _, team, _ = name_of(layer.document.value)
            found = _not_owned(LayeredDocument([layer._replace(role=SPEC)]), kind, team, (owners,))
            if found:
                return found[0]
    return None


# -- effect ----------------------------------------------------------------------------------------------------------


def unmatched_layers(declared: Declarations, names: Iterable[SpecName]) -> list[Diagnostic]:
    """Return a problem for each overlay of nothing and for defaults of unknown teams; `names`: of all specs."""
    known = {*names, *(name_of(each.value) for each in declared.documents)}
    problems: list[Diagnostic] = []
    unmatched = [(overlay, name) for overlay in declared.overlays if (name := name_of(overlay.value)) not in known]
    owners, named = _group_names(known if unmatched else ())
    for overlay, name in unmatched:
        kind, _, own = name
        if kind not in (*registry.kind_names(), DEFAULTS) or (not own and kind != DEFAULTS):
            continue  # malformed overlays are reported by themselves
        message = f"this overlay changes {_document_title(name)}, which no file declares"
        span = overlay.span("metadata", "team" if kind == DEFAULTS else "name")
        problems.append(Diagnostic("overlay-without-target", message, span, hint=_nearest_hint(name, owners, named)))
    teams = {name for kind, _, name in known if kind == "Team"}
    unknown = [(each, team) for each in declared.defaults() if (team := name_of(each.value)[1]) and team not in teams]
    index = WordIndex(teams if unknown else ())
    for defaults, team in unknown:
        hint, about = did_you_mean(team, index, "teams"), Reference("Team", team, index.closest(team) or "")
        span, message = defaults.span("metadata", "team"), f"unknown Team `{team}`"
        problems.append(Diagnostic("missing-reference", message, span, hint=hint, reference=about))
    return problems


def _document_title(name: SpecName) -> str:
    kind, team, _ = name
    return f"the Defaults of {owner_of(team)}" if kind == DEFAULTS else document_title(name)


def _group_names(
    known: Iterable[SpecName],
) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], WordIndex]]:
    """Return the teams that have a spec by its kind and name, and the names by kind and team."""
    owners: dict[tuple[str, str], list[str]] = {}
    named: dict[tuple[str, str], list[str]] = {}
    for kind, team, own in known:
        owners.setdefault((kind, own), []).append(team)
        named.setdefault((kind, team), []).append(own)
    return owners, {key: WordIndex(names) for key, names in named.items()}


def _nearest_hint(
    name: SpecName, owners: dict[tuple[str, str], list[str]], named: dict[tuple[str, str], WordIndex]
) -> str:
    kind, team, own = name
    teams = sorted(owners.get((kind, own), ()))
    if len(teams) == 1 and kind != DEFAULTS:
        return (
            f"add `team: {teams[0]}` to `metadata`"
            if not team
            else f"did you mean team `{teams[0]}`?"
            if teams[0]
            else "remove `team`"
        )
    if teams and kind != DEFAULTS:
        return f"write `team` in `metadata`: {one_of(filter(None, teams))}"
    near = named[kind, team].closest(own) if (kind, team) in named else None
    if near is not None:
        return f"did you mean `{near}`?"
    return "correct `kind` and `metadata`; specs of one environment only are listed under its `include`"


def without_effect(document: LayeredDocument) -> list[Diagnostic]:
    """Return a problem for each overlay of a spec that changes nothing, and each `null` that removes nothing."""
    problems: list[Diagnostic] = []
    parts = [LayerPart(index, layer.root, layer.value) for index, layer in enumerate(document.layers)]
    for index, layer in enumerate(document.layers):
        if layer.role != OVERLAY:
            continue
        below = parts[:index]
        value = reduce(merge_values, (part.value for part in below))
        nulls = [path for path in _null_paths(layer.value) if trace_parts(below, path)[1]]
        for path in nulls:
            message, hint = f"`{path[-1]}: null` removes nothing: the spec has no such key", "remove the line"
            span = layer.document.span(*path, key=True)
            problems.append(Diagnostic("overlay-without-effect", message, span, hint=hint))
        if not nulls and merge_values(value, layer.value) == value:
            message, hint = "this overlay changes nothing", "remove it; its values are those of the spec"
            span = layer.document.span("metadata", "name")
            problems.append(Diagnostic("overlay-without-effect", message, span, hint=hint))
    return problems


def _null_paths(value: Any, path: Path = ()) -> Iterable[Path]:
    """Yield the paths of `null` in mappings below a value; lists have other positions in the merged spec."""
    for key, inner in value.items():
        if inner is None:
            yield (*path, key)
        elif isinstance(inner, dict):
            yield from _null_paths(inner, (*path, key))
