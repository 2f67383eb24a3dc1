"""The Dataset kind: versioned data in object stores."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.spec.schema.base import Model, Resource
from avactl.spec.schema.schedules import check_cron
from avactl.spec.schema.values import (
    Bytes,
    CacheTierRef,
    ClusterRef,
    Duration,
    Name,
    ObjectUrl,
    RepositoryFile,
    Says,
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


def _check_condition(value: str) -> str:
    return value if value in ("once", "admitted") else check_cron(value)


When = Annotated[
    str,
    AfterValidator(_check_condition),
    WithJsonSchema({"type": "string", "pattern": r"^(once|admitted|\S+ \S+ \S+ \S+ \S+)$"}),
    Says("`once`, `admitted` or a cron schedule"),
]


class Prewarm(Model):
    """Load data into the cache before jobs read it."""

    versions: list[Name] = Field(default_factory=list, description="Versions to load. Default: the newest.")
    when: When = Field(
        "once",
        description="`once`: when the version is new. A cron schedule in UTC, such as `0 3 * * *`: again at these "
        "times. `admitted`: when pods of a job wait for it. The latter two need the cache daemon.",
    )
    pin: bool = Field(False, description="Never evict the loaded versions. Needs the cache daemon.")
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
    format: str = Field(
        "files",
        max_length=40,
        description="Storage format: `files`, or a packed one such as `webdataset`, `tfrecord`, `recordio`, `lmdb`.",
    )
    versions: list[Version] = Field(min_length=1, description="Versions, oldest first.")
    size: Bytes | None = Field(
        None, description="Size of the newest version, in bytes; checked against the cache tier."
    )
    files: Annotated[int, Field(ge=1, le=10**12)] | None = Field(
        None,
        description="Number of files of the newest version. The memory of the tier's masters, unless set, follows it: "
        "about 1 GiB per million files.",
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
