"""The CacheTier kind: a cache between object stores and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from avactl.spec.platform.engine_names import DEFAULT, engine_names
from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.values import (
    AbsPath,
    Bytes,
    ClusterRef,
    Count,
    Duration,
    HostPath,
    Name,
    NodePoolRef,
    ObjectUrl,
    Percent,
    PodCpu,
    TeamRef,
    value_error,
)

if TYPE_CHECKING:
    EngineName = str
else:
    EngineName = Literal[tuple(engine_names())]


class StorageTier(Model):
    """One level of a worker's storage."""

    medium: Literal["MEM", "SSD", "HDD"] = Field(description="Storage medium.")
    quota: Bytes = Field(description="Capacity per worker, in bytes; each of several disks has an equal part of it.")
    path: HostPath | None = Field(
        None,
        description="Directory on the machine for SSD and HDD, in the cluster's `hostDirectories`; the tier creates a "
        "subdirectory named after itself. MEM uses an emptyDir. Default: `/mnt/ssd`, `/mnt/hdd`.",
    )
    paths: list[HostPath] = Field(
        default_factory=list,
        max_length=32,
        description="Directories on several disks of the machine, in place of `path`: `[/mnt/ssd0, /mnt/ssd1]`.",
    )

    @model_validator(mode="after")
    def _one_form(self) -> StorageTier:
        if self.path is not None and self.paths:
            raise value_error("`path` and `paths` are two forms of one setting", "write `paths` only")
        return self


class Masters(Model):
    """Alluxio masters, which hold the namespace."""

    replicas: Annotated[int, Field(ge=1, le=7)] = Field(
        3, description="Number of masters: 1, or an odd number for a quorum."
    )
    cpu: PodCpu = Field("4", description="CPU cores per master.")
    memory: Bytes = Field(
        "16Gi",
        description="Memory per master, in bytes; a quarter is for the job master. About 1 GiB per million files. "
        "Default: 16Gi, or more if the datasets of the tier declare more `files`.",
    )
    journal: Bytes = Field(
        "50Gi", description="Size of each master's journal volume, in bytes. The journal holds data."
    )


class Workers(Model):
    """Alluxio workers, which hold the data."""

    replicas: Count | None = Field(
        None, description="Number of workers. Default: one per machine of the pools (a DaemonSet)."
    )
    pools: list[NodePoolRef] = Field(default_factory=list, description="Node pools to run on. Default: all machines.")
    cpu: PodCpu = Field("2", description="CPU cores per worker.")
    memory: Bytes = Field(
        "4Gi", description="Memory per worker, excluding the MEM tier, in bytes; a quarter is for the job worker."
    )
    tiers: list[StorageTier] = Field(min_length=1, max_length=3, description="Storage tiers per worker, fastest first.")


class UnderStore(Model):
    """An object store mounted into the cache's namespace."""

    mount: AbsPath = Field(description="Directory in the cache's namespace, such as `/imagenet`.")
    url: Annotated[ObjectUrl, Field(max_length=500)] = Field(description="URL of the store: `s3://bucket/prefix`.")
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = Field(
        None, description="Endpoint of the store; required for `oss://`, `kodo://` and S3-compatible stores."
    )
    secret: Name | None = Field(
        None, description="Secret in namespace `avactl-cache` with keys `accessKeyId` and `secretAccessKey`."
    )
    teams: list[TeamRef] | None = Field(
        None,
        description="Teams whose buckets and datasets may be in the store. Default: all. `[]`: platform datasets only.",
    )
    read_only: bool = Field(False, description="Reject writes under this mount. Always true for read tiers.")
    options: dict[str, str] = Field(
        default_factory=dict,
        description="Additional Alluxio mount options, such as `fs.cos.region`. No credentials.",
    )


class Fuse(Model):
    """FUSE mount of the tier on each machine."""

    enabled: bool = Field(True, description="Run FUSE on each machine, which exposes buckets as directories.")
    cpu: PodCpu = Field("1", description="CPU cores per FUSE pod.")
    memory: Bytes = Field("4Gi", description="Memory per FUSE pod, in bytes.")
    path: HostPath = Field("/mnt/avactl", description="Directory on the machine under which tiers are mounted.")


class Durable(Model):
    """The store that a write returns after, such as Ceph. Set one of `url` and `claim`."""

    url: Annotated[ObjectUrl, Field(max_length=500)] | None = Field(
        None, description="URL of an object store, such as a bucket of Ceph's S3 gateway."
    )
    endpoint: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = Field(
        None, description="Endpoint of the store; required for S3-compatible stores."
    )
    secret: Name | None = Field(
        None, description="Secret in namespace `avactl-cache` with keys `accessKeyId` and `secretAccessKey`."
    )
    options: dict[str, str] = Field(default_factory=dict, description="Additional Alluxio mount options.")
    claim: Name | None = Field(
        None, description="PersistentVolumeClaim in namespace `avactl-cache` of a shared file system, such as CephFS."
    )
    capacity: Bytes | None = Field(
        None, description="Bytes that written data may use there; `push.high` and `push.low` are shares of it."
    )


class Push(Model):
    """When data is copied from the durable store to the under-store."""

    high: Percent = Field(
        "80%",
        description="Once files that are not copied yet are this share of `durable.capacity`, copy the oldest at once.",
    )
    low: Percent = Field("50%", description="Stop at this share.")
    delay: Duration = Field("10m", description="Copy each file this long after it was written, whatever the share.")


class WriteBack(Model):
    """Persistence of a write tier's data to the under-store."""

    mode: Literal["through", "async", "push"] = Field(
        "through",
        description="`through`: a write returns once it is in the under-store. `async`: once it is in the cache. "
        "`push`: once it is in `durable`; the cache daemon then copies it to the under-store.",
    )
    durable: Durable | None = Field(None, description="Store that a write returns after, in mode `push`.")
    push: Push = Field(default_factory=Push, description="When data moves to the under-store, in mode `push`.")
    evict: bool = Field(
        False,
        description="In mode `push`. `false`: a file that was copied stays at its path, in the durable store, until "
        "it is deleted there. `true`: once the copy is verified by size and checksum, the file leaves its path, and "
        "is then below `MOUNT.pushed`; refused in tiers with buckets of teams.",
    )
    replicas: Annotated[int, Field(ge=1, le=10)] = Field(
        2, description="Replicas of data not yet persisted to the store, in mode `async`."
    )
    delay: Duration = Field("0s", description="Delay before persisting, in mode `async`.")
    settle: Duration = Field(
        "15m",
        description="Time in which a worker ends an upload that failed or was interrupted. Until then it can harm the "
        "file's next copy in the under-store, so that one is verified again before its source is released. Modes "
        "`async` and `push`.",
    )


class Volume(Model):
    """A JuiceFS volume, formatted or to be formatted by its CSI driver."""

    secret: Name = Field(
        description="Secret in namespace `avactl-cache` for the CSI driver: `name`, `metaurl` (Redis, PostgreSQL, "
        "TiKV, …), `storage`, `bucket`, `access-key`, `secret-key`."
    )


class CacheTierSpec(Model):
    """A cache in front of object stores."""

    cluster: ClusterRef = Field(description="Cluster to run on.")
    engine: EngineName = Field(
        DEFAULT,
        description="Cache engine. `alluxio`: Alluxio 2.9, one cache of all workers. `juicefs`: JuiceFS Community "
        "Edition 1.4, a cache on each machine; read tiers only.",
    )
    role: Literal["read", "write"] = Field(description="`read`: caches reads. `write`: buffers writes.")
    masters: Masters = Field(default_factory=Masters, description="Alluxio masters.")
    workers: Workers = Field(description="Alluxio workers and their storage.")
    under_stores: list[UnderStore] = Field(
        min_length=1,
        description="Object stores, by mount directory. Engine `juicefs` imports dataset versions from them.",
    )
    volume: Volume | None = Field(None, description="JuiceFS volume; required by engine `juicefs`.")
    fuse: Fuse = Field(default_factory=Fuse, description="FUSE mount on each machine.")
    write_back: WriteBack = Field(default_factory=WriteBack, description="Persistence of written data to the store.")
    ttl: Duration | None = Field(
        None,
        description="Free data this long after it was first cached, even if it is still read. The next read caches it "
        "again, until space is needed. The store is never modified.",
    )
    refresh: Duration | None = Field(
        None,
        description="Maximum age of cached store metadata, and so the delay until external changes are visible. "
        "Default: unlimited for read tiers, because datasets do not change; 5m for write tiers.",
    )
    properties: dict[str, str] = Field(
        default_factory=dict,
        description="Additional properties of the engine: Alluxio properties, or JuiceFS mount options (flags have "
        "the value `"
        "`). Unknown and dangerous ones are rejected.",
    )
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What happens to the masters' journals when the spec is deleted."
    )


class CacheTier(Resource):
    """A cache of object stores in memory and on SSD; a read tier or a write tier.

    Engine `alluxio` compiles to a master StatefulSet, workers as a DaemonSet or StatefulSet, a FUSE DaemonSet,
    Services, a ConfigMap, a Job that mounts the under-stores and a PodDisruptionBudget; engine `juicefs` to volumes of
    its CSI driver and a ConfigMap.
    """

    KIND: ClassVar[str] = "CacheTier"
    SCOPE: ClassVar[Literal["platform"]] = "platform"
    kind: Literal["CacheTier"] = Field("CacheTier", description="`CacheTier`.")
    spec: CacheTierSpec = Field(description="Cache tier configuration.")
