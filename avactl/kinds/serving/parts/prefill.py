"""`spec.llm.prefill`: prefill pods, and the router or sidecar that assigns requests to prefill and decode pods."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from avactl.spec.schema.base import Model
from avactl.spec.schema.compute import Compute
from avactl.spec.schema.values import Bytes, Count, Image, PodCpu, value_error

PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)
"""Roles of the pods of a service with `prefill`."""
Arguments = Annotated[list[str], Field(max_length=64)]


class Router(Model):
    """Router of the runtime: a Deployment behind the Service and the route."""

    image: Image = Field(description="Container image.")
    replicas: Count = Field(1, description="Number of pods.")
    cpu: PodCpu = Field("2", description="CPU cores per pod.")
    memory: Bytes = Field("4Gi", description="Memory per pod, in bytes.")
    args: Arguments = Field(default_factory=list, description="Arguments appended to avactl's own.")


class RoutingSidecar(Model):
    """llm-d's routing sidecar in the decode pods; needs `endpointPicker`, which chooses a pod of each role."""

    image: Image = Field(description="Container image.")
    cpu: PodCpu = Field("1", description="CPU cores per pod.")
    memory: Bytes = Field("1Gi", description="Memory per pod, in bytes.")
    args: Arguments = Field(default_factory=list, description="Arguments appended to avactl's own.")


class Prefill(Model):
    """Prefill pods, which process prompts; the service's other pods decode. Set one of `router` and `sidecar`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in ("router", "sidecar")]})

    replicas: Count = Field(1, description="Number of prefill replicas.")
    machines: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Machines of each prefill replica. Default: `machines` of `llm`."
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="GPUs that each layer is split over. Default: those of a replica."
    )
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Stages that the layers are divided into. Default: 1, or what `tensorParallel` leaves."
    )
    resources: Compute | None = Field(
        None, description="CPU, memory and GPUs per prefill pod. Default: `resources` of the service."
    )
    args: Arguments = Field(
        default_factory=list, description="Server arguments of the prefill pods, appended to those of `runtime`."
    )
    router: Router | None = Field(None, description="Router of the runtime, which receives the requests of clients.")
    sidecar: RoutingSidecar | None = Field(None, description="llm-d's routing sidecar; needs `endpointPicker`.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.router is not None and self.sidecar is not None:
            raise value_error(
                "`router` and `sidecar` exclude each other", "keep one of them; `sidecar` needs `endpointPicker`"
            )
        if self.router is None and self.sidecar is None:
            raise value_error("`prefill` has either `router` or `sidecar`", "write `router: {image: …}`")
        return self
