"""Evaluating a Python spec file: what its constructors were called with, and where. Runs in a child process.

Constructors take anything here, right or wrong, so that the compiler's own passes tell all problems of a file at once,
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

from avactl.kinds.base import API_VERSION, Model, Resource
from avactl.kinds.reference import introspect
from avactl.source import traces
from avactl.source.calls import Place
from avactl.source.document import Path
from avactl.source.sandbox import enter

_DEEPEST = 64
_MOST_DIGITS = 64
_MODULE = "avactl_specs"
"""Name of the module that a spec file is run as."""


class _Call(NamedTuple):
    """One constructor's call: the arguments as given, as plain data, and where it and those within it stand."""

    given: dict[str, Any]
    value: dict[str, Any]
    places: dict[Path, Place]


class Recorder:
    """Replaces the constructors of all specs' parts and remembers their calls."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") + "/"
        self._calls: dict[int, tuple[Model, _Call]] = {}

    def install(self) -> None:
        """From here on every part of a spec takes any arguments."""
        recorder, construct = self, BaseModel.__init__

        def __init__(self: Model, /, **data: Any) -> None:  # noqa: N807
            try:
                construct(self, **data)
            except ValidationError:
                _fill(self, data)
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
        """The arguments that a model was made from."""
        call = self._calls.get(id(model))
        return call[1].given if call else {name: getattr(model, name) for name in model.model_fields_set}

    def document(self, resource: Resource) -> tuple[dict[str, Any], dict[Path, Place]]:
        """A spec as it would stand in YAML, and where its constructors were called."""
        call = self._calls[id(resource)][1]
        return {"apiVersion": API_VERSION, "kind": resource.KIND, **call.value}, call.places

    def place(self, frame: FrameType | None) -> Place:
        """Where the innermost frame of a file of the repository is."""
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.root):
                return traces.position(self.root, frame.f_code, frame.f_lasti)
            frame = frame.f_back
        return Place("", 1, 0, 1, 0)

    def _record(self, model: type[Model], data: dict[str, Any], place: Place) -> _Call:
        value: dict[str, Any] = {}
        places: dict[Path, Place] = {(): place}
        for name, given in data.items():
            field = model.model_fields.get(name)
            key = (field.alias or name) if field else name
            value[key] = self._plain(given, _annotation(model, key), (key,), places)
        return _Call(data, value, places)

    def _plain(self, value: Any, annotation: Any, path: Path, places: dict[Path, Place]) -> Any:
        """A value as JSON has it; keys of mappings as YAML has them. Raises TypeError."""
        if len(path) > _DEEPEST:
            raise TypeError(f"values are nested more than {_DEEPEST} deep")
        if isinstance(value, Model):
            call = self._calls.get(id(value))
            if call is None:
                return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
            places.update((path + inner, place) for inner, place in call[1].places.items())
            return call[1].value
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, float) and not isfinite(value):
            raise TypeError(f"{'.'.join(str(step) for step in path)}: {value} is not a number that a spec can hold")
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            # As the reader of YAML does: no field needs a longer one.
            return int(value) if abs(value) < 10**_MOST_DIGITS else hex(value)
        if isinstance(value, str):
            return str.__str__(value).encode("utf-8", "replace").decode()
        if isinstance(value, Mapping):
            result = {}
            for key, item in value.items():
                name = _key(annotation, str(key))
                result[name] = self._plain(item, _inner(annotation, name), (*path, name), places)
            return result
        if isinstance(value, list | tuple):
            return [self._plain(v, _inner(annotation, i), (*path, i), places) for i, v in enumerate(value)]
        where = ".".join(str(step) for step in path)
        raise TypeError(f"{where}: a {type(value).__name__} is not plain data: write text, a number, a list or a dict")


def _annotation(model: type[BaseModel], key: str) -> Any:
    field = introspect.fields_by_key(model).get(key)
    return field.annotation if field else None


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [branch for branch in introspect.branches(annotation) if introspect.is_model(branch)]


def _key(annotation: Any, name: str) -> str:
    """The key of YAML for a key of a dict that stands for a model: there `max_surge` is taken too."""
    for model in _models(annotation):
        field = model.model_fields.get(name)
        if field is not None:
            return field.alias or name
    return name


def _inner(annotation: Any, step: str | int) -> Any:
    """The type of what stands at a key or an index of a value of this type; None where there is no model below."""
    for model in _models(annotation):
        found = _annotation(model, str(step))
        if found is not None:
            return found
    for branch in introspect.branches(annotation):
        arguments = getattr(branch, "__args__", ())
        if arguments:
            return arguments[-1]
    return None


def _fill(model: Model, data: dict[str, Any]) -> None:
    """What a wrong call gave, with defaults for the rest, so that the file goes on to its end."""
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


def evaluate(root: str, path: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Run a file of the repository at `root` and answer with its documents and what went wrong.

    It imports from the standard library first, then from beside it and from the root, then from `packages`: a file
    of the repository that is called like a module of Python takes nothing away from avactl.
    """
    recorder = Recorder(root)
    recorder.install()
    documents: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"documents": documents, "error": None}
    file = f"{recorder.root}{path}"
    module = ModuleType(_MODULE)
    module.__file__ = file
    sys.modules[_MODULE] = module
    library = [entry for entry in sys.path if entry not in packages]
    sys.path[:] = dict.fromkeys([*library, file.rpartition("/")[0], root, *packages])
    try:
        with open(file, "rb") as source:  # noqa: PTH123 - pathlib is not loaded yet
            code = compile(source.read(), file, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - what this process is for
        for index, spec in enumerate(_specs(module)):
            if not isinstance(spec, Resource):
                raise TypeError(f"`specs` holds specs, and entry {index} is a {type(spec).__name__}")
            value, places = recorder.document(spec)
            documents.append({"value": value, "places": [[list(p), *place] for p, place in places.items()]})
    except BaseException as error:
        answer["error"] = traces.describe(recorder.root, error, path)
    return answer


def _specs(module: ModuleType) -> Iterable[Any]:
    """The specs that a module defines: a list, or what a function returns or yields; none of a module of helpers."""
    specs = getattr(module, "specs", ())
    if callable(specs):
        specs = specs()
    if isinstance(specs, Resource) or not isinstance(specs, Iterable):
        raise TypeError(f"`specs` is a list of specs or a function that returns one, got {type(specs).__name__}")
    return specs


def main(request: dict[str, Any]) -> None:
    """The child's main program: `request` names the file, what may be read, the time and the answer's descriptor."""
    import os

    os.environ.clear()
    os.chdir(request["root"])
    enter(request)
    answer = evaluate(request["root"], request["path"], request["import"])
    try:
        text = json.dumps(answer, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        about = traces.describe(f"{request['root']}/", error, request["path"])
        text = json.dumps({"documents": [], "error": about}, ensure_ascii=False)
    with open(request["answer"], "wb") as out:  # noqa: PTH123 - a descriptor
        out.write(text.encode("utf-8", "replace"))
