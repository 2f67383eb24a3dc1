"""The ProcessingJob kind: a version of a dataset is made from another one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.training.spec import Priority, Workers
from avactl.spec.schema.base import Env, Model, Resource
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.processing import Steps
from avactl.spec.schema.values import ClusterRef, Image, Name, PositiveDuration


class ProcessingJobSpec(Model):
    """A version of a dataset that is made from another one."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's only cluster.")
    dataset: Name = Field(description="Dataset of the team.")
    from_version: Name = Field(alias="from", description="Version that is read.")
    to: Name = Field(description="Version that is made. It has a `url`, and comes after the other one.")
    steps: Steps = Field(description="What is done to each object, in this order.")
    image: Image = Field(description="Image with avactl and its extras `cluster`, `dataset` and `video`.")
    workers: Workers = Field(
        default_factory=lambda: Workers(min=1, max=4, cpu="1", memory="2Gi"),
        description="Pods that process objects: as many as are free, from `min` to `max`. Default: 1 to 4 with a core "
        "each.",
    )
    skip_invalid: Annotated[int, Field(ge=0, le=10**9)] = Field(
        0, description="Objects that may be left out because they cannot be processed. Default: each is an error."
    )
    env: Env = Field(default_factory=dict)
    pod: PodSettings | None = Field(None, description="Settings of the pods, with Kubernetes' key names.")
    priority: Priority = Field("normal", description="Scheduling priority within the team.")
    retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        3, description="Restarts of failed pods before the job fails."
    )
    timeout: PositiveDuration | None = Field(None, description="Longest run.")
    suspended: bool = Field(False, description="Create the job without starting it.")


class ProcessingJob(Resource):
    """A job that makes a version of a dataset from another one: resize, crop, convert, take frames, call a function.

    Compiles to an elastic job over the objects of the version. Its last step checks the new version and writes the
    manifest; jobs of the team that read the version start after it.
    """

    KIND: ClassVar[str] = "ProcessingJob"
    SCOPE: ClassVar[Literal["team"]] = "team"
    kind: Literal["ProcessingJob"] = Field("ProcessingJob", description="`ProcessingJob`.")
    spec: ProcessingJobSpec = Field(description="The processing.")
