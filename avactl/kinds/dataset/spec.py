"""The Dataset kind: data in object stores, by version."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Model, Resource
from avactl.kinds.values import Bytes, CacheTierRef, ClusterRef, Duration, Name, ObjectUrl, RelPath, TeamRef


class Version(Model):
    """An immutable snapshot. One of `url` and `manifest` says what is in it."""

    name: Name = Field(description="Name of the version, e.g. `v3`.")
    url: ObjectUrl | None = Field(None, description="Prefix in an object store that holds this version.")
    manifest: RelPath | None = Field(
        None,
        description='JSON-lines file in the repository: one object a line, `{"url": …, "labels": {…}}`; beside the spec.',
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the manifest file; a changed file is then refused."
    )


class Prewarm(Model):
    """Load the data into the cache before jobs ask for it."""

    versions: list[Name] = Field(default_factory=list, description="Which versions. Default: the newest.")
    replicas: Annotated[int, Field(ge=1, le=100)] = Field(1, description="Copies in the cache.")
    parallelism: Annotated[int, Field(ge=1, le=1000)] = Field(4, description="Files loaded at once by a worker.")


class DatasetSpec(Model):
    """Data that jobs read."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: those of the team, or all.")
    description: str = Field("", max_length=1000, description="What it is, for people.")
    format: str = Field("files", max_length=40, description="How it is stored, e.g. `recordio`, `tfrecord`, `lmdb`.")
    versions: list[Version] = Field(min_length=1, description="Snapshots, oldest first; the last one is the newest.")
    size: Bytes | None = Field(None, description="Size of the newest version, bytes; checked against the cache tier.")
    tier: CacheTierRef | None = Field(
        None, description="Read tier that it is read through. Without one, pods read the object store itself."
    )
    secret: Name | None = Field(None, description="Secret with the store's credentials, where there is no tier.")
    prewarm: Prewarm | None = Field(None, description="Load it into the cache ahead of jobs.")
    shared_with: list[TeamRef] = Field(default_factory=list, description="Teams beside the owner that may read it.")
    keep: Duration | None = Field(None, description="Evict from the cache what nobody has read for so long.")
    deletion_policy: Literal["retain", "delete"] = Field(
        "retain", description="What becomes of its volumes when the spec is deleted. The object store is never touched."
    )


class Dataset(Resource):
    """Data in object stores, in immutable versions, read through a cache tier.

    Compiles to a read-only volume and claim per version and namespace, a ConfigMap of its metadata, and a prewarm
    Job.
    """

    KIND: ClassVar[str] = "Dataset"
    SCOPE: ClassVar[Literal["either"]] = "either"
    kind: Literal["Dataset"] = Field("Dataset", description="`Dataset`.")
    spec: DatasetSpec = Field(description="The data.")
