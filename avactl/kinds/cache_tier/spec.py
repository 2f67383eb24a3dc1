"""The CacheTier kind: an Alluxio cluster between object stores and jobs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Model, Resource
from avactl.kinds.fields.values import AbsPath, Bytes, ClusterRef, Count, Cpu, Duration, Name, NodePoolRef, ObjectUrl


class StorageTier(Model):
    """One level of a worker's storage, fastest first."""

    medium: Literal["MEM", "SSD", "HDD"] = Field(description="What it is made of.")
    quota: Bytes = Field(description="Space on one worker, bytes.")
    path: AbsPath | None = Field(
        None,
        description="Directory on the machine, for SSD and HDD, in which the tier makes one of its own name; memory is "
        "an emptyDir. Default: `/mnt/ssd`, `/mnt/hdd`.",
    )


class Masters(Model):
    """Alluxio's masters, which hold the namespace."""

    replicas: Annotated[int, Field(ge=1, le=7)] = Field(3, description="1, or an odd number for a quorum.")
    cpu: Cpu = Field("4", description="CPU cores of one master.")
    memory: Bytes = Field(
        "16Gi", description="Memory of one master, bytes; a quarter is the job master's. About 1 GiB a million files."
    )
    journal: Bytes = Field("50Gi", description="Volume of one master's journal, bytes. It holds data.")


class Workers(Model):
    """Alluxio's workers, which hold the data."""

    replicas: Count | None = Field(
        None, description="How many. Default: one on each machine of the pools (a DaemonSet)."
    )
    pools: list[NodePoolRef] = Field(default_factory=list, description="Pools they run on. Default: all machines.")
    cpu: Cpu = Field("2", description="CPU cores of one worker.")
    memory: Bytes = Field(
        "4Gi", description="Memory of one worker beside the MEM tier, bytes; a quarter is the job worker's."
    )
    tiers: list[StorageTier] = Field(min_length=1, max_length=3, description="Storage of one worker, fastest first.")


class UnderStore(Model):
    """A store below the cache, mounted at a directory."""

    mount: AbsPath = Field(description="Directory in the cache's namespace, e.g. `/imagenet`.")
    url: Annotated[ObjectUrl, Field(max_length=500)] = Field(description="The store: `s3://bucket/prefix`.")
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = Field(
        None, description="Endpoint of the store; needed by `oss://` and `kodo://`, and by S3-compatible stores."
    )
    secret: Name | None = Field(
        None, description="Secret in namespace `avactl-cache` with keys `accessKeyId` and `secretAccessKey`."
    )
    read_only: bool = Field(False, description="Refuse writes below this mount. Read tiers always do.")
    options: dict[str, str] = Field(
        default_factory=dict,
        description="Further options of the mount, by Alluxio's names, e.g. `fs.cos.region`. No credentials.",
    )


class Fuse(Model):
    """The mount that pods see."""

    enabled: bool = Field(True, description="Run FUSE on each machine, so that a bucket is a directory.")
    cpu: Cpu = Field("1", description="CPU cores of one FUSE pod.")
    memory: Bytes = Field("4Gi", description="Memory of one FUSE pod, bytes.")
    path: AbsPath = Field("/mnt/avactl", description="Directory on the machine below which tiers are mounted.")


class WriteBack(Model):
    """When a write tier pushes to the store below."""

    mode: Literal["through", "async"] = Field(
        "through", description="`through`: a write returns when the store has it. `async`: when the cache has it."
    )
    replicas: Annotated[int, Field(ge=1, le=10)] = Field(
        2, description="Copies of data that the store does not have yet, in mode `async`."
    )
    delay: Duration = Field("0s", description="Wait so long before pushing, in mode `async`.")


class CacheTierSpec(Model):
    """A cache in front of stores."""

    cluster: ClusterRef = Field(description="Cluster it runs on.")
    engine: Literal["alluxio"] = Field("alluxio", description="The engine: Alluxio 2.9.")
    role: Literal["read", "write"] = Field(description="`read`: caches what is read. `write`: takes what is written.")
    masters: Masters = Field(default_factory=Masters, description="The masters.")
    workers: Workers = Field(description="The workers and their storage.")
    under_stores: list[UnderStore] = Field(min_length=1, description="The stores below, by directory.")
    fuse: Fuse = Field(default_factory=Fuse, description="The mount that pods see.")
    write_back: WriteBack = Field(default_factory=WriteBack, description="How a write tier pushes to the store.")
    ttl: Duration | None = Field(
        None,
        description="Free data so long after it was first seen, whether it is read or not. It comes back when it is "
        "read, and stays until space is needed. The store is never touched.",
    )
    refresh: Duration | None = Field(
        None,
        description="How old what is known of the stores may be: what others wrote there is seen so much later. "
        "Default: read tiers keep what they know, as datasets do not change; write tiers ask after 5m.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="Further Alluxio properties, by their own names. Dangerous ones are refused."
    )
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What becomes of the masters' journals when the spec is deleted."
    )


class CacheTier(Resource):
    """An Alluxio cluster: RAM, then SSD, in front of object stores; a read tier or a write tier.

    Compiles to a master StatefulSet, workers as DaemonSet or StatefulSet, a FUSE DaemonSet, Services, a ConfigMap,
    a job that mounts the under-stores and a PodDisruptionBudget.
    """

    KIND: ClassVar[str] = "CacheTier"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["CacheTier"] = Field("CacheTier", description="`CacheTier`.")
    spec: CacheTierSpec = Field(description="The tier.")
