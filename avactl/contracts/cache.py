"""Input and status of the cache daemon: tiers and datasets from the compiler, and requests of users to flush."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from avactl.base.cron import parse_cron
from avactl.contracts.document import (
    LIMIT_ERROR,
    OBJECT_NAME_PATTERN,
    Amount,
    Bytes,
    Contract,
    ContractPart,
    Count,
    ObjectName,
    Seconds,
    UnixSeconds,
    absent,
)

TIER_KEY, DATASET_KEY, STATUS_KEY, FLUSH_KEY = "tier.json", "dataset.json", "status.json", "flush.json"
"""Keys of the ConfigMaps."""
MAX_CLAIMS = 500
"""Namespaces in the status of one version."""
MAX_HOLDERS = 500
"""Nodes in the status of one version."""
_MAX_VERSIONS, _MAX_STORES = 1_000, 200
MAX_STATUS_ENTRIES = 100_000
_MAX_LEVELS, _MAX_LEVEL_CHARACTERS = 32, 255
_PATH = r"(/(?!\.{1,2}(/|\Z))[^/\x00-\x1f\x7f]+)+"
_CRON = re.compile(r"[\d*,/ -]{9,100}").fullmatch
_FLUSHED = re.compile(f"({OBJECT_NAME_PATTERN}:)?{_PATH}").fullmatch


def _validate_schedule(when: str) -> str:
    if when not in ("once", "admitted"):
        try:
            if not _CRON(when):
                raise ValueError
            parse_cron(when)
        except ValueError:
            raise ValueError("is not `once`, `admitted` or a schedule") from None
    return when


def _validate_flushed(path: str) -> str:
    if not _FLUSHED(path):
        raise ValueError("is neither TIER:/path nor an absolute path")
    return _validate_levels(path)


def _validate_levels(path: str) -> str:
    _, *levels = path.split("/")
    if len(levels) > _MAX_LEVELS:
        raise PydanticCustomError(LIMIT_ERROR, f"has more than {_MAX_LEVELS} levels")
    if max(map(len, levels)) > _MAX_LEVEL_CHARACTERS:
        raise PydanticCustomError(LIMIT_ERROR, f"has a level with more than {_MAX_LEVEL_CHARACTERS} characters")
    return path


TierPath = Annotated[str, StringConstraints(pattern=rf"^{_PATH}\Z"), AfterValidator(_validate_levels)]
"""Absolute path without `.` and `..`."""
Address = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]{1,253}:\d{1,5}\Z")]
Share = Annotated[float, Field(gt=0, le=1)]
VersionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")]
_Message = Annotated[str, Field(max_length=4096)]
_Key = Annotated[str, Field(max_length=600)]


class StoreConfig(ContractPart):
    """An under-store of a tier."""

    mount: TierPath
    url: Annotated[str, Field(min_length=1, max_length=1024)]
    read_only: bool = False


class PushConfig(ContractPart):
    """When files of a write tier are pushed."""

    high: Share = 0.8
    """Dirty share of the capacity at which files are pushed."""
    low: Share = 0.5
    """Dirty share at which pushing stops."""
    delay_seconds: Seconds = 600
    """Age at which a file is pushed in any case."""

    @model_validator(mode="after")
    def _validate_marks(self) -> PushConfig:
        if self.low > self.high:
            raise ValueError("has `low` above `high`")
        return self


class WriteBackConfig(ContractPart):
    """How a write tier's data reaches the object store."""

    evict: bool = False
    """Delete the durable copy of what the object store is verified to have. It is then at another path."""
    settle_seconds: Seconds = 900
    """Time for which a copy must stay intact after an upload that failed or was interrupted."""
    push: PushConfig = PushConfig()
    capacity: Bytes = 0
    """Size of the durable store, of which the marks of `push` are shares; 0: of the workers' storage."""
    targets: Annotated[Mapping[TierPath, TierPath], Field(max_length=_MAX_STORES)] = {}
    """Directory that is written → directory of the object store."""
    mounted_by_pods: bool | None = absent(None)
    """False if no pods mount the directories. Compilers before this key ask for `evict` whatever pods mount."""

    @property
    def evicts(self) -> bool:
        """True if files leave their path: pods that mount it would not find them."""
        return self.evict and self.mounted_by_pods is False

    @property
    def evict_refused(self) -> bool:
        """True if the document asks for `evict`, and does not say that no pods mount the directories."""
        return self.evict and self.mounted_by_pods is not False


class TierConfig(Contract):
    """`tier.json`: a cache tier."""

    name: ObjectName
    engine: Literal["alluxio"]
    role: Literal["read", "write"]
    masters: Annotated[tuple[Address, ...], Field(min_length=1, max_length=9)]
    fuse_directory: TierPath | None = None
    volume_directory: TierPath | None = None
    """Directory of pods' volumes on each machine; None without FUSE."""
    stores: Annotated[tuple[StoreConfig, ...], Field(max_length=_MAX_STORES)]
    write_back: WriteBackConfig | None = None

    @model_validator(mode="after")
    def _validate_targets(self) -> TierConfig:
        mounts = {store.mount for store in self.stores}
        for source, target in self.write_back.targets.items() if self.write_back is not None else ():
            if source not in mounts or target not in mounts or source == target:
                raise ValueError("has `writeBack.targets` with a directory that is no mount, or its own target")
        return self

    @property
    def push_targets(self) -> Mapping[str, str]:
        """Directory that is written → directory of the object store. Without any, a directory is its own target."""
        targets = {} if self.write_back is None else self.write_back.targets
        return targets or {store.mount: store.mount for store in self.stores if not store.read_only}


class DatasetVersionConfig(ContractPart):
    """One version of a dataset."""

    name: VersionName
    path: TierPath
    """Directory in the tier."""
    bytes: Bytes | None = None
    """None if the spec does not say."""
    files: Count | None = None
    claims: Annotated[tuple[ObjectName, ...], Field(max_length=1_000)] = ()
    """Namespaces with a claim for it."""


class PrewarmConfig(ContractPart):
    """When a dataset is loaded."""

    versions: Annotated[tuple[VersionName, ...], Field(max_length=_MAX_VERSIONS)] | None = None
    """Names of the versions that are loaded; None: all."""
    pin: bool = False
    when: Annotated[str, AfterValidator(_validate_schedule)] = "once"
    """`once`, `admitted`, or five fields of cron."""
    throttle: Bytes | None = None
    """Bytes a second; None: no limit."""

    def loads(self, version: str) -> bool:
        """Return True if a version is one of those that are loaded."""
        return self.versions is None or version in self.versions


class DatasetConfig(Contract):
    """`dataset.json`: a dataset in a tier."""

    namespace: ObjectName
    name: ObjectName
    tier: ObjectName
    versions: Annotated[tuple[DatasetVersionConfig, ...], Field(max_length=_MAX_VERSIONS)]
    prewarm: PrewarmConfig | None = None

    @model_validator(mode="after")
    def _validate_versions(self) -> DatasetConfig:
        if len({version.name for version in self.versions}) != len(self.versions):
            raise ValueError("has `versions` with one name twice")
        return self


class FlushRequest(Contract):
    """`flush.json`: a request to push what is below a path to the object store."""

    path: Annotated[str, Field(max_length=10_000), AfterValidator(_validate_flushed)]
    """`TIER:/path`, or a path below a tier's FUSE directory."""


# -- status ----------------------------------------------------------------------------------------------------------


class DatasetStatus(ContractPart, frozen=False):
    """How much of a dataset version is cached. The daemon counts in it."""

    path: TierPath | None = None
    """Directory in the tier."""
    percent: Annotated[float, Field(ge=0, le=100)] = 0.0
    since: UnixSeconds = 0
    """Time up to which the schedule was followed."""
    claims: Annotated[tuple[ObjectName, ...], Field(max_length=MAX_CLAIMS)] = ()
    """Namespaces whose pods may wait for it."""
    loading: bool = absent(False)
    warmed: UnixSeconds = absent(0)
    """When all of it was loaded."""
    bytes: Bytes = 0
    total_bytes: Bytes = 0
    files: Count = 0
    total_files: Count = 0
    rate: Bytes = 0
    """Bytes a second."""
    eta_seconds: Count | None = None
    """Time until all of it is cached; None: unknown."""
    holders: Annotated[Mapping[_Key, Annotated[float, Field(ge=0, le=1)]], Field(max_length=MAX_HOLDERS)] = {}
    """Share of the version in the cache of each node."""
    updated: UnixSeconds = 0
    error: _Message = absent("")


class TierStatus(ContractPart, frozen=False):
    """The state of a tier. The daemon's tasks write their fields."""

    role: Literal["read", "write"] | None = absent(None)
    workers: Count = 0
    capacity_bytes: Bytes = 0
    used_bytes: Bytes = 0
    fill: Amount = 0.0
    read_bytes: Bytes = 0
    store_read_bytes: Bytes = 0
    updated: UnixSeconds = 0
    mounts: Count = 0
    mounts_lost: Count = 0
    dirty_bytes: Bytes = 0
    dirty_files: Count = 0
    oldest_dirty_seconds: Count = 0
    pushing: bool = False
    unreachable_files: Count = 0
    settling_files: Count = 0
    push_error: _Message = absent("")
    error: _Message = absent("")


class FlushStatus(ContractPart):
    """Files of a flush that are not in the object store."""

    dirty_files: Count
    dirty_bytes: Bytes


class CacheStatus(Contract):
    """`status.json`: tiers and datasets, for the scheduler, `avactl cache` and the next leader."""

    MAX_BYTES = 900_000
    datasets: Annotated[Mapping[_Key, DatasetStatus], Field(max_length=MAX_STATUS_ENTRIES)] = {}
    """By `NAMESPACE/NAME/VERSION`."""
    tiers: Annotated[Mapping[_Key, TierStatus], Field(max_length=MAX_STATUS_ENTRIES)] = {}
    flushes: Annotated[Mapping[_Key, FlushStatus], Field(max_length=MAX_STATUS_ENTRIES)] = {}
    errors: Annotated[Mapping[_Key, _Message], Field(max_length=MAX_STATUS_ENTRIES)] = {}
    """Why a ConfigMap is not used, by its `NAMESPACE/NAME`."""
