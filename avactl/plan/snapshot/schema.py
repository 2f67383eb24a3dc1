"""Whether what a snapshot holds are objects at all: files are cut, merged and edited by hand."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import NotRequired, TypedDict  # noqa: UP035 - pydantic asks for it below Python 3.12

from avactl.kinds.fields.values import quantity

_STRICT = ConfigDict(strict=True)


@lru_cache(maxsize=10_000)
def _amount(value: str | int) -> str | int:
    if not -(2**63) < quantity(value) < 2**63:
        raise ValueError(f"`{value}` is no amount that a machine has")
    return value


_Amounts = dict[str, Annotated[str | int, AfterValidator(_amount)]]


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


_OBJECTS = TypeAdapter(dict[str, list[_Object]])
_POD_SPECS = TypeAdapter(list[_PodSpec])


def want_objects(objects: dict[str, Any], pod_specs: Any) -> None:
    """Raises ValueError, with the first place that is not as an object of Kubernetes is."""
    for form, value, name in ((_OBJECTS, objects, "objects"), (_POD_SPECS, pod_specs, "podSpecs")):
        try:
            form.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, (name, *first["loc"])))
            raise ValueError(f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None
