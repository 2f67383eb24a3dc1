"""The Dataset kind: versioned data in object stores."""

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
    """An immutable snapshot. Set one of `url` and `manifest`."""

    name: Name = Field(description="Name of the version, such as `v3`.")
    url: ObjectUrl | None = Field(None, description="Object-store prefix of this version.")
    manifest: RepositoryFile | None = Field(
        None,
        description='JSON-lines file in the repository, one object per line: `{"url": …, "labels": {…}}`; its path is '
        "relative to the spec file. Pods see the common directory of its objects, and the list itself.",
    )
    manifest_url: ObjectUrl | None = Field(
        None, description="Copy of the manifest in the object store; required if it is too large for a ConfigMap."
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the manifest file; a file with another digest is rejected."
    )


class Prewarm(Model):
    """Load data into the cache before jobs read it."""

    versions: list[Name] = Field(default_factory=list, description="Versions to load. Default: the newest.")
    replicas: Annotated[int, Field(ge=1, le=100)] = Field(
        1, description="Replicas in the cache, each on a different worker. Several replicas stay pinned until freed."
    )
    bandwidth: Bytes | None = Field(
        None, description="Maximum read rate of one worker from the store, in bytes per second. Default: no limit."
    )


class DatasetSpec(Model):
    """Versioned data in object stores."""

    cluster: ClusterRef | None = Field(None, description="Cluster. Default: the team's clusters, or all.")
    description: str = Field("", max_length=1000, description="Human-readable description.")
    format: str = Field("files", max_length=40, description="Storage format, such as `recordio`, `tfrecord` or `lmdb`.")
    versions: list[Version] = Field(min_length=1, description="Versions, oldest first.")
    size: Bytes | None = Field(
        None, description="Size of the newest version, in bytes; checked against the cache tier."
    )
    tier: CacheTierRef | None = Field(
        None, description="Read tier to read through. Without one, pods read from the object store."
    )
    secret: Name | None = Field(None, description="Secret with the store's credentials, for datasets without a tier.")
    prewarm: Prewarm | None = Field(None, description="Load versions into the cache before jobs read them.")
    shared_with: list[TeamRef] = Field(default_factory=list, description="Other teams that may read it.")
    keep: Duration | None = Field(
        None,
        description="Free a version from the cache when none of its files has been read for this long, at least 2d; "
        "checked once a day. The object store is never modified.",
    )


class Dataset(Resource):
    """Versioned, immutable data in object stores, read through a cache tier.

    Compiles to a read-only volume and claim per version and reading namespace, a ConfigMap of its metadata, a
    prewarm Job, and a CronJob that frees unused versions. None of these holds data: deleting them is safe.
    """

    KIND: ClassVar[str] = "Dataset"
    SCOPE: ClassVar[Literal["either"]] = "either"
    kind: Literal["Dataset"] = Field("Dataset", description="`Dataset`.")
    spec: DatasetSpec = Field(description="The data.")
