"""Valid forms of a value, by the model of its field: what a value of another type or form probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from avactl.diagnostics.suggest import one_of
from avactl.program.checks.words import flow_list
from avactl.program.explain import introspect
from avactl.spec.documents.document import Path

Models = Sequence[type[BaseModel]]


def keys_of(models: Models) -> list[str]:
    """Return the keys of mappings of these models."""
    return sorted({key for model in models for key in introspect.fields_by_key(model)})


def of_mapping(models: Models, value: Any) -> str:
    """Return the mapping that another value in its place means, such as `{name: imagenet}`; "" if unclear."""
    for model in models:
        fields = introspect.fields_by_key(model)
        if isinstance(value, list):
            flags = [each for each in value if isinstance(each, str) and each in fields and _is_flag(model, each)]
            if flags and len(flags) == len(value):
                return f"{{{', '.join(f'{each}: true' for each in flags)}}}"
            continue
        required = _required_keys(model)
        # A name names the whole; otherwise the first key that takes the text.
        for key in sorted(required, key=lambda each: each != "name") or [each for each in fields if each == "name"]:
            if _takes_value(model, key, value):
                others = [f"{each}: …" for each in required if each != key]
                text = flow_list([value]) if isinstance(value, str) else str(value)
                return f"{{{', '.join([f'{key}: {text}', *others])}}}"
    return ""


def shortest_mapping(model: type[BaseModel]) -> str:
    """Return the shortest valid mapping of a model."""
    below = {key: introspect.models_at(model, (key,)) for key in _required_keys(model)}
    values = {key: shortest_mapping(models[0]) if models else "…" for key, models in below.items()}
    return f"{{{', '.join(f'{key}: {value}' for key, value in values.items())}}}"


def _required_keys(model: type[BaseModel]) -> list[str]:
    """Return the required keys of a mapping, or those of its first alternative."""
    required = [key for key, field in introspect.fields_by_key(model).items() if field.is_required()]
    extra = model.model_config.get("json_schema_extra")
    alternatives: Any = (extra.get("oneOf") or extra.get("anyOf") or []) if isinstance(extra, dict) else []
    return required or (list(alternatives[0].get("required", ())) if alternatives else [])


def of_list(models: Models, value: dict[str, Any]) -> str:
    """Return the entry of a list of mappings that `{NAME: …}` in its place means; "" if the entries are no mappings."""
    for model in models:
        fields = introspect.fields_by_key(model)
        required = [key for key, field in fields.items() if field.is_required()]
        name = next(iter(value), "")
        if required and not {*value} & {*fields} and _takes_value(model, required[0], name):
            others = "".join(f", {each}: …" for each in required[1:]) or ", …"
            return f"{{{required[0]}: {flow_list([str(name)])}{others}}}"
    return ""


def of_text(model: type[BaseModel], path: Path, text: str) -> str | None:
    """Return the remedy for a text in a field; "" if the field takes it, None if it does not and there is no remedy."""
    hints = list(_form_hints(model, path, text))
    return None if not hints else next((hint for hint in hints if hint is not None), None)


def _form_hints(model: type[BaseModel], path: Path, text: str) -> Iterator[str | None]:
    for annotation in introspect.annotations_at(model, path):
        try:
            TypeAdapter(annotation).validate_python(text)
        except ValidationError as error:
            yield (error.errors(include_url=False)[0].get("ctx") or {}).get("hint") or None
        else:
            yield ""


def fitting_text(pattern: str, value: Any) -> str:
    """Return the text that a slip of form probably meant, by the pattern of its field; "" if that is unclear."""
    if not isinstance(value, str):
        return ""
    words = (value.strip(), value.lower(), value[:1].upper() + value[1:], "/" + value.replace(".", "/").strip("/"))
    return next((each for each in words if re.search(pattern, each)), "")


def number_remedy(model: type[BaseModel], path: Path, value: Any) -> str:
    """Return the remedy for another value in place of a number: `25%` of a percentage, or what the number means."""
    if isinstance(value, str) and re.search(r"\$\{|\$\(|\{\{", value):
        return "variables are not substituted in specs; write the number"
    if isinstance(value, str) and (kilo := _KILO_FORM(value.strip())) and "tokens" in _description(model, path):
        return f"write `{int(kilo[1]) * 1024}`"
    text = next((found for key in _fields_at(model, path) if (found := key.description)), "")
    bare = _PERCENT_FORM(value.strip()) if isinstance(value, str) else None
    if bare and "percent" in text.lower():
        return f"write `{bare[1]}`"
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    return f"write {'the' if text.startswith('number of ') else 'a number:'} {text.rstrip('.')}" if text else ""


def _description(model: type[BaseModel], path: Path) -> str:
    return " ".join(field.description or "" for field in _fields_at(model, path))


_KILO_FORM = re.compile(r"([0-9]{1,6}) ?[kK]i?").fullmatch
_PERCENT_FORM = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?%").fullmatch


def _fields_at(model: type[BaseModel], path: Path) -> Iterator[FieldInfo]:
    for parent in introspect.models_at(model, path[:-1]) if path else ():
        field = introspect.fields_by_key(parent).get(str(path[-1]))
        if field is not None:
            yield field


def percentage_remedy(model: type[BaseModel], path: Path, value: Any) -> str:
    """Return the percentage that a fraction means where the greatest value is 100; "" elsewhere."""
    if not isinstance(value, float) or not 0 < value < 1 or (value * 100) % 1:
        return ""
    for annotation in introspect.annotations_at(model, path):
        try:
            TypeAdapter(annotation).validate_python(100)
            TypeAdapter(annotation).validate_python(101)
        except ValidationError as error:
            limits = (each.get("ctx") or {} for each in error.errors(include_url=False))
            if any(limit.get("le") == 100 for limit in limits):
                return f"write it in percent: `{value * 100:.0f}`"
    return ""


def its_keys(models: Models) -> str:
    """Return the remedy that lists the keys of a mapping; "" without keys."""
    known = keys_of(models)
    return f"write a mapping; its keys: {one_of(known)}" if known else ""


def _is_flag(model: type[BaseModel], key: str) -> bool:
    annotation: Any = introspect.fields_by_key(model)[key].annotation
    return bool in introspect.branches(annotation)


def _takes_value(model: type[BaseModel], key: str, value: Any) -> bool:
    field = introspect.fields_by_key(model)[key]
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    branches = introspect.branches(annotation)
    if type(value) not in (str, int) or not any(
        each is type(value) or get_origin(each) is Literal for each in branches
    ):
        return False
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True
