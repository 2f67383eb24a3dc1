"""Evaluate a Python spec file in a child process and record its constructor calls with their locations.

Constructors accept any arguments here, so that the compiler's own passes report all problems of a file at once,
each at the line of its call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import isfinite
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from avactl.program.explain import introspect
from avactl.spec.documents.document import Path
from avactl.spec.python_files import traces
from avactl.spec.python_files.calls import CallPlace, instruction_place
from avactl.spec.python_files.sandbox import enter
from avactl.spec.schema.base import API_VERSION, Model, Resource

_MAX_DEPTH = 64
_MAX_DIGITS = 64
_MODULE_NAME = "avactl_specs"
"""Module name under which a spec file runs."""


class _Call(NamedTuple):
    """One constructor call: its arguments as given, as plain data, and the locations of the call and nested calls."""

    given: dict[str, Any]
    value: dict[str, Any]
    places: dict[Path, CallPlace]


class Recorder:
    """Replaces the constructors of all spec parts and records their calls."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") + "/"
        self._calls: dict[int, tuple[Model, _Call]] = {}

    def install(self) -> None:
        """Patch the models: from here on every part of a spec accepts any arguments."""
        recorder, construct = self, BaseModel.__init__

        def __init__(self: Model, /, **data: Any) -> None:  # noqa: N807
            try:
                construct(self, **data)
            except ValidationError:
                _fill_defaults(self, data)
            recorder._calls[id(self)] = (self, recorder._record(type(self), data, recorder.place(sys._getframe(1))))

        def model_validate(cls: type[Model], /, obj: Any, **options: Any) -> Model:
            if isinstance(obj, cls):
                return obj
            if not isinstance(obj, Mapping):
                raise TypeError(f"{cls.__name__}: expected a mapping, got {type(obj).__name__}")
            return cls(**{str(key): value for key, value in obj.items()})

        def model_construct(cls: type[Model], /, _fields_set: set[str] | None = None, **values: Any) -> Model:
            return cls(**values)

        def model_copy(self: Model, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Model:
            return type(self)(**{**recorder.given(self), **(update or {})})

        changes = {
            "__init__": __init__,
            "model_validate": classmethod(model_validate),
            "model_construct": classmethod(model_construct),
            "model_copy": model_copy,
        }
        for name, value in changes.items():
            setattr(Model, name, value)

    def given(self, model: Model) -> dict[str, Any]:
        """Return the arguments that a model was constructed from."""
        call = self._calls.get(id(model))
        return call[1].given if call else {name: getattr(model, name) for name in model.model_fields_set}

    def document(self, resource: Resource) -> tuple[dict[str, Any], dict[Path, CallPlace]]:
        """Return a spec as it would appear in YAML, and the locations of its constructor calls."""
        call = self._calls[id(resource)][1]
        return {"apiVersion": API_VERSION, "kind": resource.KIND, **call.value}, call.places

    def place(self, frame: FrameType | None) -> CallPlace:
        """Return the location of the innermost frame in a file of the repository."""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.root):
                return instruction_place(self.root, frame.f_code, frame.f_lasti)
            frame = frame.f_back
        return CallPlace("", 1, 0, 1, 0)

    def _record(self, model: type[Model], data: dict[str, Any], place: CallPlace) -> _Call:
        value: dict[str, Any] = {}
        places: dict[Path, CallPlace] = {(): place}
        for name, given in data.items():
            field = model.model_fields.get(name)
            key = (field.alias or name) if field else name
            value[key] = self._plain(given, _field_annotation(model, key), (key,), places)
        return _Call(data, value, places)

    def _plain(self, value: Any, annotation: Any, path: Path, places: dict[Path, CallPlace]) -> Any:
        """Return a value as JSON data, with mapping keys as in YAML. Raises TypeError."""
        if len(path) > _MAX_DEPTH:
            raise TypeError(f"values are nested more than {_MAX_DEPTH} deep")
        if isinstance(value, Model):
            call = self._calls.get(id(value))
            if call is None:
                return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
            places.update((path + inner, place) for inner, place in call[1].places.items())
            return call[1].value
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, float) and not isfinite(value):
            raise TypeError(f"{'.'.join(str(step) for step in path)}: {value} is not a valid number in a spec")
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            # Same limit as the YAML reader: no field needs more digits.
            return int(value) if abs(value) < 10**_MAX_DIGITS else hex(value)
        if isinstance(value, str):
            return str.__str__(value).encode("utf-8", "replace").decode()
        if isinstance(value, Mapping):
            result = {}
            for key, item in value.items():
                name = _yaml_key(annotation, str(key))
                result[name] = self._plain(item, _inner_type(annotation, name), (*path, name), places)
            return result
        if isinstance(value, list | tuple):
            return [self._plain(v, _inner_type(annotation, i), (*path, i), places) for i, v in enumerate(value)]
        where = ".".join(str(step) for step in path)
        raise TypeError(f"{where}: a {type(value).__name__} is not plain data: use a string, number, list or dict")


def _field_annotation(model: type[BaseModel], key: str) -> Any:
    field = introspect.fields_by_key(model).get(key)
    return field.annotation if field else None


def _nested_models(annotation: Any) -> list[type[BaseModel]]:
    return [branch for branch in introspect.branches(annotation) if introspect.is_model(branch)]


def _yaml_key(annotation: Any, name: str) -> str:
    """Return the YAML key for a dict key that stands for a model field: `max_surge` is accepted there too."""
    for model in _nested_models(annotation):
        field = model.model_fields.get(name)
        if field is not None:
            return field.alias or name
    return name


def _inner_type(annotation: Any, step: str | int) -> Any:
    """Return the type at a key or an index of a value of this type; None if no model is nested there."""
    for model in _nested_models(annotation):
        found = _field_annotation(model, str(step))
        if found is not None:
            return found
    for branch in introspect.branches(annotation):
        arguments = getattr(branch, "__args__", ())
        if arguments:
            return arguments[-1]
    return None


def _fill_defaults(model: Model, data: dict[str, Any]) -> None:
    """Fill a model from an invalid call, with defaults for the rest, so that the file runs to its end."""
    values = {}
    for name, field in type(model).model_fields.items():
        given = data.get(name, data.get(field.alias or name))
        values[name] = (
            field.get_default(call_default_factory=True) if given is None and not field.is_required() else given
        )
    object.__setattr__(model, "__dict__", values)
    object.__setattr__(model, "__pydantic_fields_set__", set(data))
    object.__setattr__(model, "__pydantic_extra__", None)
    object.__setattr__(model, "__pydantic_private__", None)


def evaluate_file(root: str, path: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Run a file of the repository at `root`; return its documents and its error. Imports: see `execute_file`."""
    recorder = Recorder(root)
    recorder.install()
    documents: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"documents": documents, "error": None}
    try:
        module = traces.execute_file(recorder.root, path, packages, _MODULE_NAME)
        for index, spec in enumerate(_module_specs(module)):
            if not isinstance(spec, Resource):
                raise _NoSpecsError(f"`specs` must hold specs, but entry {index} is a {type(spec).__name__}")
            value, places = recorder.document(spec)
            documents.append({"value": value, "places": [[list(p), *place] for p, place in places.items()]})
    except _NoSpecsError as error:
        answer["error"] = traces.describe(recorder.root, error, path) | {
            "message": f"TypeError: {error}",
            "cause": "specs",
        }
    except BaseException as error:
        answer["error"] = traces.describe(recorder.root, error, path)
    return answer


class _NoSpecsError(TypeError):
    """`specs` is not a list of specs."""


def _module_specs(module: ModuleType) -> Iterable[Any]:
    """Return the specs that a module defines: a list, or the result of a function; none for a helper module."""
    specs = getattr(module, "specs", ())
    if callable(specs):
        specs = specs()
    if isinstance(specs, Resource) or not isinstance(specs, Iterable):
        message = f"`specs` must be a list of specs or a function that returns one, got {type(specs).__name__}"
        raise _NoSpecsError(message)
    return specs


def main(request: dict[str, Any]) -> None:
    """Run the child's main program: `request` names the file, readable paths, time limit and answer descriptor."""
    import os

    os.environ.clear()
    os.chdir(request["root"])
    enter(request)
    answer = evaluate_file(request["root"], request["path"], request["import"])
    try:
        text = json.dumps(answer, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        about = traces.describe(f"{request['root']}/", error, request["path"])
        text = json.dumps({"documents": [], "error": about}, ensure_ascii=False)
    with open(request["answer"], "wb") as out:  # noqa: PTH123 - a descriptor
        out.write(text.encode("utf-8", "replace"))
