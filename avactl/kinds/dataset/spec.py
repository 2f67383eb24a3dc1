"""The Dataset kind: data in object stores, by version."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from avactl.kinds.base import Model, Resource
from avactl.kinds.fields.values import (
    Bytes,
    CacheTierRef,
    ClusterRef,
    Duration,
    Name,
    ObjectUrl,
    RepositoryFile,
    TeamRef,
)


class Version(Model):
    """An immutable snapshot. One of `url` and `manifest` says what is in it."""

    name: Name = Field(description="Name of the version, e.g. `v3`.")
    url: ObjectUrl | None = Field(None, description="Prefix in an object store that holds this version.")
    manifest: RepositoryFile | None = Field(
        None,
        description='JSON-lines file in the repository, one object a line: `{"url": …, "labels": {…}}`; its path is '
        "relative to the spec file. Pods see the directory that all its objects are in, and the list itself.",
    )
    manifest_url: ObjectUrl | None = Field(
        None, description="The same list in the object store; needed where it is too long for a ConfigMap."
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the manifest file; a changed file is then refused."
    )


class Prewarm(Model):
    """Load the data into the cache before jobs ask for it."""

    versions: list[Name] = Field(default_factory=list, description="Which versions. Default: the newest.")
    replicas: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="Copies in the cache, each on another worker. More than one are pinned until they are freed."
    )
    bandwidth: Bytes | None = Field(
        None, description="What one worker reads from the store at the most, bytes per second. Default: no limit."
    )


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
    keep: Duration | None = Field(
        None,
        description="Free a version from the cache when none of its files was read for so long, at least 2d. It is "
        "looked at once a day. The object store is never touched.",
    )


class Dataset(Resource):
    """Data in object stores, in immutable versions, read through a cache tier.

    Compiles to a read-only volume and claim per version and namespace that reads it, a ConfigMap of its metadata, a
    prewarm Job, and a CronJob that frees what nobody reads. None of these holds data: deleting them loses none.
    """

    KIND: ClassVar[str] = "Dataset"
    SCOPE: ClassVar[Literal["either"]] = "either"
    kind: Literal["Dataset"] = Field("Dataset", description="`Dataset`.")
    spec: DatasetSpec = Field(description="The data.")
