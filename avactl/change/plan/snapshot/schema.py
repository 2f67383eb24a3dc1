"""Validate the objects of a snapshot: files are truncated, merged and edited by hand."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import NotRequired, TypedDict  # noqa: UP035 - pydantic requires it below Python 3.12

from avactl.base.quantity import parse_quantity

_STRICT = ConfigDict(strict=True)


@lru_cache(maxsize=10_000)
def _check_amount(value: str | int) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"`{value}` is not a quantity")
    if not -(2**63) < parse_quantity(value) < 2**63:
        raise ValueError(f"`{value}` is not a plausible quantity")
    return value


_Amounts = dict[str, Annotated[str | int, AfterValidator(_check_amount)]]


@with_config(_STRICT)
class _Metadata(TypedDict):
    name: str
    namespace: NotRequired[str]
    uid: NotRequired[str]
    creationTimestamp: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, str]]
    ownerReferences: NotRequired[list[dict[str, Any]]]


@with_config(_STRICT)
class _Status(TypedDict):
    phase: NotRequired[str]
    allocatable: NotRequired[_Amounts]
    capacity: NotRequired[_Amounts]
    conditions: NotRequired[list[dict[str, Any]]]


@with_config(_STRICT)
class _Object(TypedDict):
    metadata: _Metadata
    spec: NotRequired[dict[str, Any]]
    status: NotRequired[_Status]
    data: NotRequired[dict[str, str]]


@with_config(_STRICT)
class _Resources(TypedDict):
    requests: NotRequired[_Amounts]
    limits: NotRequired[_Amounts]


@with_config(_STRICT)
class _Container(TypedDict):
    resources: NotRequired[_Resources]


@with_config(_STRICT)
class _PodSpec(TypedDict):
    containers: list[_Container]
    initContainers: NotRequired[list[_Container]]
    nodeName: NotRequired[str]
    volumes: NotRequired[list[dict[str, Any]]]
    tolerations: NotRequired[list[dict[str, Any]]]
    nodeSelector: NotRequired[dict[str, str]]
    affinity: NotRequired[dict[str, Any]]


MAX_DEPTH = 32
"""Deepest nesting of an object; selectors and affinities need about twelve levels."""
_MAX_OBJECTS = 2_000_000
"""Maximum number of objects and pod specs of a snapshot: ten times the largest clusters."""
_MAX_TEXT_LENGTH = 1 << 20
"""Longest string: 1 MiB, the limit of a ConfigMap."""
_AMOUNT_FIELDS = frozenset(
    {"requests", "limits", "overhead", "capacity", "allocatable", "maximumVolumeSize", "counters"}
)
"""Keys whose values are quantities, or mappings of quantities."""
_MAX_CPUS = 2**40
"""Largest number of CPUs: sums are in thousandths and must fit 63 bits."""
_FREE_FIELDS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels", "data", "attributes"})


def _want_bounded(value: Any, place: str) -> None:
    """Raise ValueError for an object beyond the API server's limits: nesting, string lengths, quantities."""
    ahead: list[tuple[Any, str, int, bool]] = [(value, place, 0, False)]
    while ahead:
        value, place, depth, amount = ahead.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"{place[:200]}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            for key, inner in value.items():
                if key in _FREE_FIELDS and isinstance(inner, dict):
                    inner = list(inner.values())  # keys chosen by users: a label may be named `capacity`
                counted = key in _AMOUNT_FIELDS or amount
                # In DRA, `requests` is a list, and `capacity` maps names to `{value: …}`.
                ahead.append((inner, f"{place}.{key[:60]}", depth + 1, counted))
        elif isinstance(value, list):
            ahead += [(inner, f"{place}.{index}", depth + 1, False) for index, inner in enumerate(value)]
        elif isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH:
            raise ValueError(f"{place[:200]}: string of {len(value):,} characters")
        elif amount and value is not None:
            try:
                _check_amount(value)
                if place.endswith(".cpu") and parse_quantity(value) >= _MAX_CPUS:
                    raise ValueError(f"`{value}` is not a plausible number of CPUs")
            except (ValueError, TypeError) as error:
                raise ValueError(f"{place[:200]}: {error}") from None


_OBJECTS = TypeAdapter(dict[str, list[_Object]])
_POD_SPECS = TypeAdapter(list[_PodSpec])


def want_objects(objects: dict[str, Any], pod_specs: Any) -> None:
    """Raise ValueError at the first place that does not match the schema of a Kubernetes object."""
    for form, value, name in ((_OBJECTS, objects, "objects"), (_POD_SPECS, pod_specs, "podSpecs")):
        try:
            form.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, (name, *first["loc"])))
            raise ValueError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None
    if sum(map(len, objects.values())) + len(pod_specs) > _MAX_OBJECTS:
        raise ValueError(f"objects: more than {_MAX_OBJECTS:,}")
    for name, items in (*objects.items(), ("podSpecs", pod_specs)):
        known = set()
        for number, item in enumerate(items):
            _want_bounded(item, f"{name}.{number}")
            if name != "podSpecs":
                key = (item["metadata"].get("namespace", ""), item["metadata"]["name"])
                if key in known:
                    raise ValueError(f"{name}.{number}: `{'/'.join(filter(None, key))[:200]}` is a duplicate")
                known.add(key)
