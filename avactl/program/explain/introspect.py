"""Introspection of the typed models: the model, field or reference at a path."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from avactl.spec.schema.values import Ref, is_quantity


def fields_by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Fields of a model, by YAML key."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


@cache
def branches(annotation: Any) -> tuple[Any, ...]:
    """Return the alternatives of an annotation, with Annotated, Optional and unions unwrapped; None is omitted."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return branches(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return tuple(b for arg in get_args(annotation) if arg is not type(None) for b in branches(arg))
    return (annotation,)


def is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def models_at(annotation: Any, path: tuple[str | int, ...]) -> list[type[BaseModel]]:
    """Return the models that may occur at `path` below a value of this type."""
    found: list[type[BaseModel]] = []
    for branch in branches(annotation):
        if is_model(branch):
            if not path:
                found.append(branch)
                continue
            field = fields_by_key(branch).get(str(path[0]))
            if field is not None:
                found += models_at(field.annotation, path[1:])
        elif path and get_origin(branch) in (list, tuple):
            found += models_at(get_args(branch)[0], path[1:])
        elif path and get_origin(branch) is dict:
            found += models_at(get_args(branch)[1], path[1:])
    return found


def annotations_at(model: type[BaseModel], path: tuple[str | int, ...]) -> list[Any]:
    """Return the types that the value at `path` may have: a field's, or those of its entries."""
    entries = 0
    while path and isinstance(path[-1], int):
        path, entries = path[:-1], entries + 1
    found: list[Any] = []
    for parent in models_at(model, path[:-1]) if path else []:
        field = fields_by_key(parent).get(str(path[-1]))
        if field is not None:
            found.append(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
    for _ in range(entries):
        found = [get_args(each)[0] for annotation in found for each in branches(annotation) if get_origin(each) is list]
    return found


def is_quantity_at(annotation: Any, path: Sequence[str]) -> bool:
    """Return whether a value at `path` below a value of this type is a resource quantity. Entries of lists have any
    step."""
    found = list(_scalars_at(annotation, tuple(path)))
    return bool(found) and all(map(is_quantity, found))


def _scalars_at(annotation: Any, path: tuple[str, ...]) -> Iterator[Any]:
    """Yield the types that the value at a path may have; None is omitted."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated and (path or not is_quantity(annotation)):
        yield from _scalars_at(args[0], path)
    elif origin in (Union, types.UnionType):
        for branch in args:
            yield from _scalars_at(branch, path) if branch is not type(None) else ()
    elif not path:
        yield annotation
    elif is_model(annotation):
        field = fields_by_key(annotation).get(path[0])
        if field is not None:
            whole = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield from _scalars_at(whole, path[1:])
    elif origin in (list, tuple, dict):
        yield from _scalars_at(args[-1] if origin is dict else args[0], path[1:])


def paths_of_key(model: type[BaseModel], key: str, depth: int = 3) -> Iterator[tuple[str, ...]]:
    """Yield other paths below a model where a key is valid, nearest first."""
    if depth == 0:
        return
    inner: list[tuple[str, type[BaseModel]]] = []
    for name, field in fields_by_key(model).items():
        annotation: Any = field.annotation
        for branch in branches(annotation):
            if is_model(branch):
                if key in fields_by_key(branch):
                    yield (name, key)
                inner.append((name, branch))
    for name, branch in inner:
        for path in paths_of_key(branch, key, depth - 1):
            yield (name, *path)


class RefPlan(NamedTuple):
    """Plan for finding the references below a model instance: attribute, key, target."""

    attribute: str
    key: str
    ref: str | None
    """Kind that the field's text refers to."""
    inner: tuple[RefPlan, ...]
    """Plans of the nested model."""


def _annotated_ref(annotation: Any) -> str | None:
    """Return the kind that text of this type refers to, through Optional and list."""
    if get_origin(annotation) is Annotated:
        for mark in get_args(annotation)[1:]:
            if isinstance(mark, Ref):
                return mark.kind
    for arg in get_args(annotation):
        if not isinstance(arg, str | int) and (kind := _annotated_ref(arg)):
            return kind
    return None


def _item_models(annotation: Any) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    for branch in branches(annotation):
        if is_model(branch):
            found.append(branch)
        elif get_origin(branch) is list:
            found += _item_models(get_args(branch)[0])
    return found


@cache
def ref_plan(model: type[BaseModel]) -> tuple[RefPlan, ...]:
    """Return the reference plan of a model, computed once per model."""
    plans = []
    for name, field in model.model_fields.items():
        ref = next((mark.kind for mark in field.metadata if isinstance(mark, Ref)), None)
        ref = ref or _annotated_ref(field.annotation)
        inner = tuple(plan for sub in _item_models(field.annotation) for plan in ref_plan(sub))
        if ref or inner:
            plans.append(RefPlan(name, field.alias or name, ref, inner))
    return tuple(plans)


class SpecReference(NamedTuple):
    """A name in a spec that refers to another spec."""

    kind: str
    name: str
    path: tuple[str | int, ...]


def references(model: BaseModel, path: tuple[str | int, ...] = ()) -> Iterator[SpecReference]:
    """Yield all references below a model instance, with their paths in the document."""
    return _walk(model, ref_plan(type(model)), path)


def _walk(model: Any, plans: tuple[RefPlan, ...], path: tuple[str | int, ...]) -> Iterator[SpecReference]:
    for plan in plans:
        value = getattr(model, plan.attribute, None)
        if value is None:
            continue
        here = (*path, plan.key)
        entries = [(here, value)] if not isinstance(value, list) else [((*here, i), v) for i, v in enumerate(value)]
        for where, entry in entries:
            if plan.ref and isinstance(entry, str):
                yield SpecReference(plan.ref, entry, where)
            elif plan.inner and isinstance(entry, BaseModel):
                yield from _walk(entry, plan.inner, where)
