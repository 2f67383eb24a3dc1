"""`spec.llm.endpointPicker`: the program that chooses a pod for each request."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Name, Port, label_key, label_value

_Key = Annotated[str, AfterValidator(label_key), Field(max_length=317)]
_Value = Annotated[str, AfterValidator(label_value), Field(max_length=63)]


class EndpointPicker(Model):
    """Program that the gateway asks for a pod per request, such as that of llm-d; the platform installs it."""

    service: Name = Field(description="Its Service, in the namespace of the service.")
    port: Port = Field(9002, description="Port of its Service and pods at which the gateway asks it.")
    pods: dict[_Key, _Value] = Field(
        min_length=1, max_length=16, description="Labels of its pods, which the gateway's connections are let in to."
    )
    fail_open: bool = Field(
        False,
        description="If it does not answer, the gateway sends requests to any pod. Default: it refuses them.",
    )
