"""`spec.llm.prefill`: pods of their own that read prompts, and the program that sends requests to both kinds."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from avactl.kinds.base import Model
from avactl.kinds.fields.compute import Compute
from avactl.kinds.fields.values import Bytes, Count, Image, PodCpu, bad

Arguments = Annotated[list[str], Field(max_length=64)]


class Router(Model):
    """Router of vLLM (`vllm-router`) or SGLang (`sglang_router`): a Deployment, to which the service's requests go."""

    image: Image = Field(description="Its image.")
    replicas: Count = Field(1, description="Number of pods.")
    cpu: PodCpu = Field("2", description="CPU cores per pod.")
    memory: Bytes = Field("4Gi", description="Memory per pod, in bytes.")
    args: Arguments = Field(default_factory=list, description="Arguments appended to avactl's own.")


class RoutingSidecar(Model):
    """llm-d's routing sidecar, in the pods that generate tokens: with `endpointPicker`, which chooses both pods."""

    image: Image = Field(description="Its image.")
    cpu: PodCpu = Field("1", description="CPU cores per pod.")
    memory: Bytes = Field("1Gi", description="Memory per pod, in bytes.")
    args: Arguments = Field(default_factory=list, description="Arguments appended to avactl's own.")


class Prefill(Model):
    """Pods that read prompts; the service's others generate tokens. Set one of `router` and `sidecar`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in ("router", "sidecar")]})

    replicas: Count = Field(1, description="Number of replicas that read prompts.")
    machines: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Machines that each of them is split over. Default: `machines` of `llm`."
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="GPUs that each layer is split over. Default: those of a replica."
    )
    pipeline_parallel: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Stages that the layers are divided into. Default: 1, or what `tensorParallel` leaves."
    )
    resources: Compute | None = Field(
        None, description="CPU, memory and GPUs per pod. Default: `resources` of the service."
    )
    args: Arguments = Field(
        default_factory=list, description="Arguments of the server appended to those of `runtime`, in these pods only."
    )
    router: Router | None = Field(None, description="Router of the runtime, which requests of clients go to.")
    sidecar: RoutingSidecar | None = Field(None, description="llm-d's routing sidecar, with `endpointPicker`.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.router is None) == (self.sidecar is None):
            raise bad("`prefill` has either `router` or `sidecar`", "write `router: {image: …}`")
        return self
