"""The arguments of components as annotated classes, made from the models: what the package's schema is inferred from.

Pulumi knows no unions, so a value that may be of several types is `Any` there; the compiler checks it anyway.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Literal, Optional, get_args, get_origin

from pydantic import BaseModel

from avactl.program.explain import introspect
from avactl.spec.schema.base import Resource


@cache
def arguments_of(model: type[Resource]) -> type:
    """The arguments of a kind's component."""
    fields = model.model_fields
    spec = _class(_model_of(fields["spec"].annotation), model.KIND)
    annotations: dict[str, Any] = {
        "metadata": Optional[_class(_model_of(fields["metadata"].annotation), "")],  # noqa: UP045 - see `_class`
        "spec": spec,
        "platform": Optional[str],  # noqa: UP045
        "documents": Optional[list[dict[str, Any]]],  # noqa: UP045
        "cluster": Optional[str],  # noqa: UP045
    }
    if not fields["spec"].is_required():
        annotations["spec"] = Optional[spec]  # noqa: UP045
    doc = (
        f"A {model.KIND}.\n\n"
        "* `metadata`: who it is; `name` is the component's name if it is left out.\n"
        "* `spec`: what is declared.\n"
        "* `platform`: directory of a spec repository with what the spec refers to: cluster, team, datasets.\n"
        "* `documents`: further specs that it refers to, as they stand in YAML.\n"
        "* `cluster`: whose objects to register, where the spec goes to several clusters.\n"
    )
    return _make(f"{model.KIND}Args", annotations, doc)


@cache
def _class(model: type[BaseModel], kind: str) -> type:
    """A model as a class with annotations. The names of its parts are those of YAML, so nothing is translated."""
    annotations: dict[str, Any] = {}
    notes: list[str] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        annotation = _annotation(field.annotation, kind)
        if model.__name__ == "Metadata" and name == "name":
            annotation = Optional[annotation]  # noqa: UP045 - a component has a name already
        elif not field.is_required():
            # `X | None` would not do: Pulumi reads the typing module's form, also around classes made here.
            annotation = Optional[annotation]  # noqa: UP045
        annotations[key] = annotation
        notes.append(f"* `{key}`: {field.description or ''}".rstrip(": "))
    doc = "\n".join([inspect.cleandoc(model.__doc__ or ""), "", *notes])
    # Two kinds may have parts of one name (Workers): those of a kind's own module carry the kind's name.
    own = kind if kind and not model.__name__.startswith(kind) and model.__module__.startswith(_own(kind)) else ""
    return _make(f"{own}{model.__name__}", annotations, doc)


def _own(kind: str) -> str:
    from avactl.program import registry

    return registry.get_kind(kind).model.__module__.removesuffix(".spec")


def _annotation(annotation: Any, kind: str) -> Any:
    branches = introspect.branches(annotation)
    if len(branches) != 1:
        return float if set(branches) == {int, float} else Any
    (branch,) = branches
    origin = get_origin(branch)
    if introspect.is_model(branch):
        return _class(branch, kind)
    if origin is list:
        return list[_annotation(get_args(branch)[0], kind)]  # type: ignore[misc]
    if origin is dict:
        return dict[str, _annotation(get_args(branch)[1], kind)]  # type: ignore[misc]
    if origin is Literal:
        return str if all(isinstance(value, str) for value in get_args(branch)) else Any
    return branch if branch in (str, int, float, bool) else Any


def _model_of(annotation: Any) -> type[BaseModel]:
    found: type[BaseModel] = next(b for b in introspect.branches(annotation) if introspect.is_model(b))
    return found


def _make(name: str, annotations: dict[str, Any], doc: str) -> type:
    return type(name, (), {"__annotations__": annotations, "__doc__": doc, "__module__": __name__})
