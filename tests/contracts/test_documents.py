"""Every contract: what one side dumps the other loads, and everything else is refused as that document."""

from __future__ import annotations

import functools
import importlib
import json
import math
import pkgutil
import re
import time
import typing
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from avactl import contracts
from avactl.contracts.cache import DatasetConfig, PushConfig, StoreConfig, TierConfig
from avactl.contracts.document import Contract, ContractPart, DocumentError, RootContract, dump, load
from avactl.contracts.scheduling import MachineFacts, PcieSwitchFacts
from avactl.contracts.serving import RolloutConfig

for module in pkgutil.iter_modules(contracts.__path__):
    importlib.import_module(f"{contracts.__name__}.{module.name}")


def _documents(base: type[Contract]) -> list[type[Contract]]:
    found = []
    for each in base.__subclasses__():
        if "[" not in each.__name__ and each is not RootContract:
            found.append(each)
        found += _documents(each)
    return found


Fields = dict[str, Any]
DOCUMENTS = sorted(set(_documents(Contract)), key=lambda each: each.__name__)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
WORDS = (
    "0123456789abcdef",
    "",
    "a",
    "web-1",
    "v1.2",
    "/a",
    "/mnt/avactl/x",
    "host:80",
    "a" * 40,
    "0" * 64,
    "sha256:" + "0" * 64,
    "images",
    "commits",
    "kubeflow.org/v1",
    "TFJob",
    "spec.tfReplicaSpecs.*.replicas",
)
"""Texts of which each pattern matches some."""
EXAMPLES = {
    "_validate_schedule": st.sampled_from(["once", "admitted", "0 3 * * 1-5", "*/5 * * * *"]),
    "_validate_levels": st.sampled_from(["/a", "/a/b-c/d.e", "/" + "/".join("a" * 16)]),
    "_validate_flushed": st.sampled_from(["/a", "tier:/a/b"]),
    "_clean_name": st.text(st.characters(codec="utf-8"), max_size=80),
    "_validate_time": st.sampled_from(["", "2026-01-31T09:30:00Z"]),
    "_validate_numbers": st.dictionaries(st.text(max_size=8), JSON, max_size=3),
}


def _machine(given: Fields) -> Fields:
    gpus = given.get("gpus")
    switches = tuple(PcieSwitchFacts(socket=0, gpus=(gpu,), nics=()) for gpu in range(gpus.count if gpus else 0))
    links = given.get("nvlink") if switches else None
    return {**given, "switches": switches, "nvlink": links and links.replace(pairs=((0, 0, 1),))}


def _push(given: Fields) -> Fields:
    return {**given, "low": min(given.get("low", 0.5), given.get("high", 0.8))}


def _tier(given: Fields) -> Fields:
    stores = (*given["stores"], StoreConfig(mount="/b", url="s3://b"), StoreConfig(mount="/c", url="s3://c"))
    back = given.get("write_back")
    return {**given, "stores": stores, "write_back": back and back.replace(targets={"/b": "/c"})}


def _dataset(given: Fields) -> Fields:
    return {**given, "versions": tuple({each.name: each for each in given["versions"]}.values())}


def _rollout(given: Fields) -> Fields:
    steps = {each.percent: each for each in given["steps"]}
    found = {**given, "steps": tuple(steps[percent] for percent in sorted(steps)), "ports": {"http": 80, "grpc": 90}}
    if given["traffic"] == "gateway" and given.get("pools"):
        return {**found, "route": "web", "grpc_route": None, "pools": ("web", "web-alt")}
    if given["traffic"] == "gateway":
        return {**found, "grpc_route": given.get("grpc_route") or "web"}
    return {**found, "route": None, "grpc_route": None, "pools": ()}


RULES: dict[type[ContractPart], Callable[[Fields], Fields]] = {
    MachineFacts: _machine,
    PushConfig: _push,
    TierConfig: _tier,
    DatasetConfig: _dataset,
    RolloutConfig: _rollout,
}
"""What a model's validators want of its fields together."""


def values(form: Any) -> st.SearchStrategy[Any]:
    """Values of a type by its annotations."""
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin is typing.Annotated:
        return _constrained(arguments[0], arguments[1:])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if isinstance(form, type) and issubclass(form, ContractPart):
        return models(form)
    if len(arguments) == 2 and type(None) in arguments:
        return st.none() | values(next(each for each in arguments if each is not type(None)))
    return _constrained(form, ())


def _constrained(form: Any, metadata: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    bounds: dict[str, Any] = {}
    for each in _flat(metadata):
        if isinstance(each, AfterValidator):
            return EXAMPLES[getattr(each.func, "__name__", "")]
        for key in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern"):
            if getattr(each, key, None) is not None:
                bounds[key] = getattr(each, key)
    least, most, pattern = bounds.get("ge"), bounds.get("le"), bounds.get("pattern")
    least = math.nextafter(bounds["gt"], math.inf) if "gt" in bounds else least
    most = bounds["lt"] - 1 if "lt" in bounds else most
    shortest, longest = int(bounds.get("min_length", 0)), int(bounds.get("max_length", 8))
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if form is bool:
        return st.booleans()
    if form is int:
        return st.integers(bounds.get("ge"), None if most is None else int(most))
    if form is float:
        return st.floats(least, most, allow_nan=False, allow_infinity=False)
    if form is str and pattern is not None:
        return st.sampled_from([word for word in WORDS if re.match(pattern, word)])
    if form is str:
        characters = st.characters(codec="utf-8")
        return st.text(characters, min_size=shortest, max_size=min(longest, 12))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(values, arguments))
    longest = max(shortest, min(3, longest))
    if origin in (tuple, list):
        return st.lists(values(arguments[0]), min_size=shortest, max_size=longest).map(origin)
    assert len(arguments) == 2, form
    return st.dictionaries(values(arguments[0]), values(arguments[1]), min_size=shortest, max_size=longest)


def _flat(metadata: tuple[Any, ...]) -> list[Any]:
    return [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else (each,))]


@functools.cache
def models(model: type[ContractPart]) -> st.SearchStrategy[Any]:
    """Models with random fields."""
    fields = {name: _constrained_field(field) for name, field in model.model_fields.items()}

    @st.composite
    def draw_model(draw: st.DrawFn) -> Any:
        given = {
            name: draw(strategy)
            for name, strategy in fields.items()
            if model.model_fields[name].is_required() or draw(st.booleans())
        }
        given = RULES.get(model, dict)(given)
        return model.model_validate(given.get("root", given))

    return draw_model()


def _constrained_field(field: FieldInfo) -> st.SearchStrategy[Any]:
    form = field.annotation
    return values(typing.Annotated[form, *field.metadata] if field.metadata else form)


@pytest.mark.parametrize("model", DOCUMENTS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_dumped_is_loaded(model: type[Contract], data: st.DataObject) -> None:
    document = data.draw(models(model))
    for indent in (False, True):
        assert load(model, dump(document, indent=indent)) == document
    # A newer release writes keys that this one does not know.
    found = orjson.loads(dump(document))
    if isinstance(found, dict) and not issubclass(model, RootContract):
        assert load(model, orjson.dumps({**found, "keyOfANewerRelease": {"a": [1]}})) == document


JUNK: list[Any] = [
    None,
    7,
    b"",
    "",
    "{",
    "[]",
    "null",
    "{}",
    "NaN",
    '{"a": NaN}',
    "[" * 100_000,
    '{"a":' * 5_000,
    "\ud800",
    b"\xff{}",
    '{"name": 1e999}',
    '{"version": ' + "9" * 10_000 + "}",
    '"' + "x" * 1000,
    "\x00",
]


@pytest.mark.parametrize("model", DOCUMENTS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_junk_is_refused(model: type[Contract], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(JUNK) | JSON.map(json.dumps) | st.binary(max_size=40))
    refused(model, text)
    # One wrong value somewhere in a document that is right otherwise.
    found = orjson.loads(dump(data.draw(models(model))))
    place = found
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()) or not isinstance(place[key], dict | list):
            place[key] = data.draw(JSON | st.sampled_from([float("nan"), -1, 1e300, 10**400, "x" * 10_000]))
            break
        place = place[key]
    refused(model, json.dumps(found))


def refused(model: type[Contract], text: Any) -> None:
    """Load a text: it is either a document, which can be dumped again, or refused in one short line."""
    try:
        document = load(model, text)
    except DocumentError as error:
        said = str(error)
    else:
        assert load(model, dump(document)) == document
        return
    assert 5 < len(said) <= 310
    assert said.isprintable()


@pytest.mark.parametrize("model", DOCUMENTS)
def test_the_size_comes_before_the_parser(model: type[Contract]) -> None:
    began = time.process_time()
    for text in ("[" + "0," * model.MAX_BYTES, b"{" + b" " * model.MAX_BYTES):
        with pytest.raises(DocumentError, match="it has more than"):
            load(model, text)
    assert time.process_time() - began < 0.5
    with pytest.raises(DocumentError):  # many errors are not many times the work
        load(model, "[" + "0," * (model.MAX_BYTES // 2 - 2) + "0]")
    assert time.process_time() - began < 5


def test_all_documents_are_here() -> None:
    assert {"PlacementPolicy", "PoolFacts", "TeamLeaf", "TierConfig", "PipelineState"} <= {
        each.__name__ for each in DOCUMENTS
    }
