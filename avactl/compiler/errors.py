"""Converts pydantic errors to diagnostics with source locations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from avactl.base.terminal import shorten_middle
from avactl.compiler.lint import forms, remedies
from avactl.compiler.lint.remedies import describe_value, shorten_and_redact
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.lookalikes import meant_text
from avactl.diagnostics.secrets import holds_secret, looks_secret
from avactl.diagnostics.suggest import closest_word, did_you_mean, one_of
from avactl.program.explain import introspect, kubernetes_keys
from avactl.spec.documents.document import Document, Path
from avactl.spec.documents.yaml import written_scalar
from avactl.spec.schema.base import SecretKey

MAX_PROBLEMS = 100
"""Maximum number of problems reported per spec. More usually have one cause, and a good report of each takes time."""

_EXPECTED_TYPES = {
    **dict.fromkeys(("string_type", "string_sub_type"), "a string"),
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "an integer"),
    "int_parsing_size": "a smaller number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
    "quantity_type": "a quantity such as `512Gi` or 4",
    "finite_number": "a finite number",
    "none_required": "nothing",
}


_EXTRA = "extra_forbidden"
_LAYER_KEYS = ("extends", "template")
"""Keys of a document that the models do not have."""
_MAX_ECHOED = 24
"""Minimum number of characters of a value shown in messages."""


def _walk(value: Any, loc: Iterable[str | int]) -> tuple[Path, Any, int]:
    """Return an error location's document path, the value there, and the number of skipped steps (union tags)."""
    path: list[str | int] = []
    skipped = 0
    for step in loc:
        in_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if in_list or (isinstance(value, dict) and step in value):
            value = value[step]
            path.append(step)
        else:
            skipped += 1
    return tuple(path), value, skipped


def format_path(path: Path) -> str:
    """Format a path: `spec.datasets[0].name`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def to_diagnostics(model: type[BaseModel], doc: Document, error: ValidationError) -> list[Diagnostic]:
    """Return one diagnostic per location; failed branches of a union are merged."""
    groups: dict[Path, list[tuple[int, Any]]] = {}
    for entry in error.errors(include_url=False):
        loc = entry["loc"]
        at_key = entry["type"] in ("missing", _EXTRA)
        path, _, skipped = _walk(doc.value, loc[:-1] if at_key else loc)
        # A key error belongs to the key itself, so two unknown keys stay two problems.
        group = (*path, loc[-1]) if at_key else path
        groups.setdefault(group, []).append((skipped, entry))
    found: list[Diagnostic] = []
    deepest = {path[:i] for path in groups for i in range(len(path))}
    misspelt = _misspelt_keys(groups)
    outside = [path[0] for path in groups if len(path) == 1 and path[0] in _known_keys(model, ("spec",))]
    if ("spec",) in groups and groups["spec",][0][1]["type"] == "missing" and outside:
        found.append(_without_spec(doc, [str(key) for key in outside]))
        misspelt |= {("spec",), *((key,) for key in outside)}
    unindented = _unindented_keys(model, doc, groups)
    for path, entries in groups.items():
        if path in unindented:
            found += filter(None, [unindented[path]])
            continue
        if len(found) == MAX_PROBLEMS:
            message = f"{len(groups) - MAX_PROBLEMS:,} more problems in this spec"
            found.append(Diagnostic("invalid-value", message, doc.span(*path), hint="fix the problems above first"))
            break
        if path in misspelt:
            continue  # the key exists under another name, which is reported
        is_union = any(skipped for skipped, _ in entries)
        if is_union and path in deepest:
            continue  # another branch of the union matched more of the value: report that one
        found.append(
            _with_odd_character(doc, path, _make_diagnostic(model, doc, path, [entry for _, entry in entries]))
        )
    return found


def _with_odd_character(doc: Document, path: Path, problem: Diagnostic) -> Diagnostic:
    """Name the character of another alphabet, or the invisible one, for which a key or value is refused."""
    texts = [each for each in (doc.get(*path), path[-1]) if isinstance(each, str)] if path else []
    odd = next(filter(None, map(meant_text, texts)), None)
    if odd is None or problem.secret or odd.reason in problem.hint:
        return problem
    return replace(problem, hint=f"write `{shorten_and_redact(odd.plain)}`; {odd.reason}", fix="")


def _unindented_keys(model: type[BaseModel], doc: Document, groups: dict[Path, Any]) -> dict[Path, Diagnostic | None]:
    """Return one problem for each key without a value whose keys stand beside it; None for the others it explains."""
    found: dict[Path, Diagnostic | None] = {}
    for path in groups:
        parent = doc.get(*path[:-1]) if path else None
        if not isinstance(parent, dict) or path[-1] not in parent or parent[path[-1]] is not None:
            continue
        known = {*_known_keys(model, path), *(entry := _known_keys(model, (*path, 0)))}
        refused = [key for key in parent if key in known and (*path[:-1], key) in groups]
        below = [key for key in refused if groups[*path[:-1], key][0][1]["type"] == _EXTRA]
        if below:
            found |= dict.fromkeys([(*path[:-1], key) for key in below])
            one = len(below) == 1
            message = f"{_all_of(below)} belong{'s' if one else ''} to `{path[-1]}`, which has no value"
            dash = ", and begin each entry with `- `" if entry else ""
            span = doc.span(*path[:-1], below[0], key=True)
            hint = f"indent {'this line' if one else 'these lines'} below `{path[-1]}:`{dash}"
            found[path] = Diagnostic("unknown-key", message, span, hint=hint)
    return found


def _all_of(keys: list[str]) -> str:
    return one_of(keys).replace(" or ", " and ")


def _without_spec(doc: Document, keys: list[str]) -> Diagnostic:
    message = f"{_all_of(keys)} belong{'s' if len(keys) == 1 else ''} to `spec`"
    hint = "write `spec:` above this line, and indent what belongs to it"
    return Diagnostic("unknown-key", message, doc.span(keys[0], key=True), hint=hint)


def _misspelt_keys(groups: dict[Path, list[tuple[int, Any]]]) -> set[Path]:
    """Return missing keys that are probably misspelt as a neighbouring unknown key."""
    missing: dict[Path, set[str]] = {}
    unknown: dict[Path, list[str]] = {}
    for path, entries in groups.items():
        kind = entries[0][1]["type"]
        if kind == "missing":
            missing.setdefault(path[:-1], set()).add(str(path[-1]))
        elif kind == _EXTRA:
            unknown.setdefault(path[:-1], []).append(str(path[-1]))
    words = ((parent, word) for parent in missing for word in unknown.get(parent, ())[:MAX_PROBLEMS])
    return {(*parent, meant) for parent, word in words if (meant := _likely_key(word, missing[parent])) is not None}


_KEY_SYNONYMS = {
    **dict.fromkeys(("branch", "commit", "revision", "tag"), "ref"),
    **dict.fromkeys(("repo", "repository", "uri"), "url"),
    **dict.fromkeys(("secretKeyRef", "secretRef", "valueFrom"), "secret"),
    **dict.fromkeys(("configMapKeyRef", "configMapRef"), "configMap"),
    "fieldRef": "field",
    "httpGet": "path",
    **dict.fromkeys(("instanceType", "nodeType"), "machineType"),
    "generateName": "name",
    **dict.fromkeys(("setWeight", "weight"), "percent"),
    "size": "count",
    **dict.fromkeys(("nodes", "numNodes", "num_nodes", "num_workers", "numWorkers", "instances"), "replicas"),
    **dict.fromkeys(("manifests", "resources"), "objects"),
}
"""Other tools' names for avactl's keys. They apply if avactl's key is valid there and the word itself is not."""


def _likely_key(word: str, known: Collection[str]) -> str | None:
    """Return the key that was probably meant."""
    synonym = _KEY_SYNONYMS.get(word)
    return synonym if synonym in known else closest_word(word, known)


def _make_diagnostic(model: type[BaseModel], doc: Document, path: Path, entries: list[Any]) -> Diagnostic:
    first = entries[0]
    kind = first["type"]
    if kind == _EXTRA:
        return _unknown_key(model, doc, path)
    if kind == "missing":
        return _missing_key(model, doc, path)
    value = doc.get(*path) if path else doc.value
    # An empty value has no place of its own.
    span = doc.span(*path, key=value is None and bool(path) and not written_scalar(doc, *path))
    name = format_path(path)
    context = first.get("ctx") or {}
    if kind in ("invalid_value", "unsafe_path"):
        if isinstance(value, str) and looks_secret(value) and value[:_MAX_ECHOED] in first["msg"]:
            return _redacted_diagnostic(name, span)
        code = "unsafe-path" if kind == "unsafe_path" else "invalid-value"
        if first["loc"][-1] == "[key]":
            name, span = format_path(path[:-1]), doc.span(*path, key=True)
        hint = remedies.of_text(value) or shorten_middle(str(context.get("hint", "")))
        message, hint = f"{name}: {shorten_middle(first['msg'])}", hint
        fix = str(context.get("fix", ""))
        if hint == "quote it":
            hint = remedies.quote_remedy(value, written_scalar(doc, *path))
            fix = remedies.fix_of(hint)
        return Diagnostic(code, message, span, hint=hint, fix=fix)
    at_key = any(entry["loc"][-1] == "[key]" for entry in entries)
    if path and not at_key and holds_secret(value, str(path[-1])):
        direct = any(found is SecretKey for found in introspect.models_at(model, path))
        return _redacted_diagnostic(name, span, "{name: …, key: …}" if direct else "{secret: {name: …, key: …}}")
    if all(entry["type"] in _EXPECTED_TYPES for entry in entries):
        words = dict.fromkeys(_EXPECTED_TYPES[entry["type"]] for entry in entries)
        if "a number" in words:
            words.pop("an integer", None)
        expected = " or ".join(words)
        types = {entry["type"] for entry in entries}
        hint = remedies.of_type(model, types, value, path, written_scalar(doc, *path)) or _explain_hint(model, path)
        fix = remedies.fix_of(hint)
        return Diagnostic(
            "wrong-type", f"{name}: expected {expected}, got {describe_value(value)}", span, hint=hint, fix=fix
        )
    entry = next((entry for entry in entries if entry["type"] not in _EXPECTED_TYPES), first)
    if entry["loc"][-1] == "[key]":
        message, hint = _value_message(entry, path[-1])
        return Diagnostic("invalid-value", f"{format_path(path[:-1])}: {message}", doc.span(*path, key=True), hint=hint)
    message, hint = _value_message(entry, value)
    return Diagnostic("invalid-value", f"{name}: {message}", span, hint=hint or _explain_hint(model, path))


def _explain_hint(model: type[BaseModel], path: Path) -> str:
    """Point to the field's `avactl explain` topic, the remedy if there is no better one."""
    kind = getattr(model, "KIND", "")
    if not kind:
        return f"its keys: {one_of(known)}" if (known := _known_keys(model, path)) else ""
    keys: list[str] = []
    for depth, step in enumerate(path):
        if isinstance(step, str):
            if step not in _known_keys(model, path[:depth]):
                break  # a user-defined key, such as the name of a variable
            keys.append(step)
    return f"`avactl explain {'.'.join((kind, *keys))}` shows the accepted values" if keys else ""


def _known_keys(model: type[BaseModel], path: Path) -> list[str]:
    return sorted({name for found in introspect.models_at(model, path) for name in introspect.fields_by_key(found)})


def _redacted_diagnostic(name: str, span: Span, reference: str = "{secret: {name: …, key: …}}") -> Diagnostic:
    """Return the diagnostic for an invalid value that must not be shown."""
    message = f"{name}: the value is invalid and looks like a credential"
    hint = f"reference a Secret: `{reference}`"
    return Diagnostic("invalid-value", message, span, hint=hint, secret=True)


def _value_message(entry: Any, value: Any) -> tuple[str, str]:
    context = entry.get("ctx") or {}
    match entry["type"]:
        case "literal_error" | "enum":
            words = [word.strip("'") for word in str(context.get("expected", "")).replace(" or ", ", ").split(", ")]
            meant = kubernetes_keys.VALUES.get(str(value).lower())
            near = meant if meant in words else closest_word(str(value), words)
            hint = f"did you mean `{near}`?" if near else ""
            return f"expected {one_of(words)}, got {describe_value(value)}", hint
        case "greater_than_equal":
            return f"{describe_value(value)} is below {context['ge']}", f"write {context['ge']} or more"
        case "greater_than":
            return f"{describe_value(value)} is not above {context['gt']}", f"write more than {context['gt']}"
        case "less_than_equal":
            return f"{describe_value(value)} is above {context['le']}", f"write {context['le']} or less"
        case "string_pattern_mismatch":
            meant = forms.fitting_text(str(context["pattern"]), value)
            hint = f"write `{shorten_and_redact(meant)}`" if meant else ""
            return f"{describe_value(value)} does not match the pattern {context['pattern']}", hint
        case "string_too_short" | "too_short":
            return f"{describe_value(value)} is too short", f"the minimum length is {context['min_length']}"
        case "string_too_long" | "too_long":
            return f"{describe_value(value)} is too long", f"the maximum length is {context['max_length']}"
        case "invalid_value":
            return str(entry["msg"]), str(context.get("hint", ""))
        case _:
            return f"{entry['msg']}, got {describe_value(value)}", "see `avactl explain`"


_GLUED_KEY = re.compile(r"([A-Za-z][\w-]{0,60})([ :])(.*)", re.DOTALL).fullmatch
"""A key and its value without the colon, or without the space after it."""


def _unknown_key(model: type[BaseModel], doc: Document, path: Path) -> Diagnostic:
    key = str(path[-1])
    parents = introspect.models_at(model, path[:-1])
    known = _known_keys(model, path[:-1])
    near = _likely_key(key, known)
    within = next((path for parent in parents for path in introspect.paths_of_key(parent, key)), None)
    if near is not None and within is not None and near[0] != key[0]:
        near = None  # the same key in a mapping below is more likely meant than another word
    if (glued := _GLUED_KEY(key)) is not None and glued[1] in known:
        value = shorten_and_redact(glued[3].strip())
        hint = f"put a {'space after the colon' if glued[2] == ':' else 'colon after the key'}: `{glued[1]}: "
        hint += f"{value}`" if glued[2] == ":" and value else "…`"
    elif hint := kubernetes_keys.hint_for_key(getattr(model, "KIND", ""), path):
        pass
    elif near is not None:
        hint = f"did you mean `{near}`?"
    elif len(path) > 1 and key in (*_known_keys(model, ()), *_LAYER_KEYS):
        hint = "write it at the top of the document, beside `spec`"
    else:
        if within is None and len(path) > 1:
            elsewhere = next(iter(introspect.paths_of_key(model, key)), None)
            hint = _owner_hint(elsewhere[:-1], key) if elsewhere else ""
        else:
            hint = _owner_hint((*path[:-1], *within[:-1]), key) if within else ""
        hint = hint or did_you_mean(key, known, "known keys")
    top = "a spec" if "metadata" in model.model_fields else doc.file
    where = f"`{format_path(path[:-1])}` has no key `{key}`" if len(path) > 1 else f"{top} has no key `{key}`"
    return Diagnostic("unknown-key", shorten_middle(where), doc.span(*path, key=True), hint=hint)


def _owner_hint(parent: Path, key: str) -> str:
    return f"it belongs to `{format_path(parent)}`: write `{parent[-1]}: {{{key}: …}}`"


def _missing_key(model: type[BaseModel], doc: Document, path: Path) -> Diagnostic:
    key = str(path[-1])
    parent = path[:-1]
    where = f"`{format_path(parent)}`" if parent else "the spec"
    description = ""
    for parent_model in introspect.models_at(model, parent):
        field = introspect.fields_by_key(parent_model).get(key)
        description = (field.description or "") if field else ""
    if description[1:2].islower():
        description = description[0].lower() + description[1:]  # but keep `OIDC user`
    hint = f"add `{key}: …`" + (f": {description.rstrip('.')}" if description else "")
    removed = doc.removed(*path)
    if removed is not None:
        hint = f"give `{key}` a value: the spec needs it"
    span = removed or doc.span(*parent, key=bool(parent))
    return Diagnostic("missing-key", f"{where} needs `{key}`", span, hint=hint)
