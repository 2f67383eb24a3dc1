"""`spec.llm.endpointPicker`: the program that chooses a pod for each request."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from avactl.kinds.serving.parts.prefill import Arguments
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Bytes, Image, Name, PodCpu, Port, label_key, label_value, value_error

_Key = Annotated[str, AfterValidator(label_key), Field(max_length=317)]
_Value = Annotated[str, AfterValidator(label_value), Field(max_length=63)]
_OF_IMAGE = {"args": "args", "config": "config", "cpu": "cpu", "memory": "memory"}
_OF_SERVICE = {"port": "port", "pods": "pods"}


class EndpointPicker(Model):
    """Program that the gateway asks for a pod per request, such as that of llm-d. Set one of `image` and `service`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in ("image", "service")]})

    image: Image | None = Field(
        None, description="Its image: avactl runs it, with the options of llm-d's and only the rights that it needs."
    )
    config: Annotated[dict[str, Any], Field(max_length=64)] | None = Field(
        None, description="Its EndpointPickerConfig, with `image`. Default: the picker's own."
    )
    args: Arguments = Field(
        default_factory=list, description="Arguments appended to those that avactl sets, with `image`."
    )
    cpu: PodCpu = Field("2", description="CPU cores of each picker, with `image`.")
    memory: Bytes = Field("4Gi", description="Memory of each picker, in bytes, with `image`.")
    service: Name | None = Field(
        None, description="Service of a picker that the platform installs, in the namespace of the service."
    )
    port: Port = Field(9002, description="Port of that Service and its pods at which the gateway asks it.")
    pods: dict[_Key, _Value] = Field(
        default_factory=dict,
        max_length=16,
        description="Labels of its pods, which the gateway's connections are let in to; with `service`.",
    )
    fail_open: bool = Field(
        False,
        description="If it does not answer, the gateway sends requests to any pod. Default: it refuses them.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.image is None) == (self.service is None):
            raise value_error(
                "`endpointPicker` has either `image` or `service`",
                "write `image: …`, with which avactl runs the picker, or the `service` and `pods` of one that runs",
            )
        if self.service is not None and not self.pods:
            raise value_error("`service` needs `pods`", "add the labels of the picker's pods: `pods: {app: …}`")
        given = "image" if self.image is not None else "service"
        for field, key in (_OF_SERVICE if self.image is not None else _OF_IMAGE).items():
            if field in self.model_fields_set:
                raise value_error(f"`{key}` has no effect with `{given}`", "remove it")
        return self
