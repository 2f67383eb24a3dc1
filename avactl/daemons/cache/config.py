"""The daemon's input: `tier.json` and `dataset.json` of the compiled ConfigMaps, parsed with bounds.

Anybody who may write ConfigMaps in the namespace can write anything here, so every value has a length or a magnitude.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson

from avactl.base.cron import parse_cron

TIER_KEY, DATASET_KEY, STATUS_KEY, FLUSH_KEY = "tier.json", "dataset.json", "status.json", "flush.json"
"""Keys of the daemon's ConfigMaps."""
MAX_TEXT = 512 * 1024
"""Bytes of one document."""
MAX_VERSIONS = 1_000
MAX_STORES = 200
MAX_MASTERS = 9
MAX_CLAIMS = 1_000
MAX_BYTES = 1 << 60
"""Bytes of anything: an exbibyte."""
MAX_SECONDS = 366 * 86_400
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?").fullmatch
_VERSION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?").fullmatch
_ADDRESS = re.compile(r"[A-Za-z0-9.-]{1,253}:\d{1,5}").fullmatch
_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]{1,255}){1,32}").fullmatch
_CRON = re.compile(r"[\d*,/ -]{9,100}").fullmatch

T = TypeVar("T")


class ConfigError(ValueError):
    """A document is not what the compiler writes; the message names the key."""


class Store(NamedTuple):
    """An under-store of a tier."""

    mount: str
    url: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class WriteBack:
    """How a write tier's data reaches the object store."""

    targets: Mapping[str, str]
    """Directory that is written → directory of the object store. Without `durable`, a directory is its own target."""
    high: float
    """Dirty share of the capacity at which files are pushed, fraction."""
    low: float
    """Dirty share at which pushing stops."""
    delay: float
    """Age at which a file is pushed in any case, seconds."""
    evict: bool
    """Delete the durable copy of what the object store is verified to have. It is then at another path."""
    settle: float = 900.0
    """Time for which a copy must stay intact after an upload that failed or was interrupted, seconds."""
    capacity: int = 0
    """Bytes of the durable store, of which `high` and `low` are shares; 0: of the workers' storage."""
    evict_refused: bool = False
    """True if the document asks for `evict`, and does not say that no pods mount the directories."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One `tier.json`."""

    name: str
    engine: str
    role: str
    masters: tuple[str, ...]
    fuse_directory: str
    volume_directory: str
    """Directory of pods' volumes on each machine; "" without FUSE."""
    stores: tuple[Store, ...]
    write_back: WriteBack | None


class Version(NamedTuple):
    """One version of a dataset."""

    name: str
    path: str
    """Directory in the tier."""
    size: int
    """Bytes; 0 if the spec does not say."""
    files: int
    claims: frozenset[str]
    """Namespaces with a claim for it."""


class Prewarm(NamedTuple):
    """When a dataset is loaded."""

    pin: bool
    when: str
    """`once`, `admitted`, or five fields of cron."""
    throttle: int
    """Bytes a second; 0: no limit."""
    versions: frozenset[str] | None = None
    """Names of the versions that are loaded; None: all."""

    def loads(self, version: str) -> bool:
        """Return True if a version is one of those that are loaded."""
        return self.versions is None or version in self.versions


@dataclass(frozen=True, slots=True)
class Dataset:
    """One `dataset.json`."""

    namespace: str
    name: str
    tier: str
    versions: tuple[Version, ...]
    prewarm: Prewarm | None


def parse_tier(text: Any) -> Tier:
    """Parse `tier.json`. Raises ConfigError."""
    data = _document(text)
    stores = _list(data, "stores", MAX_STORES, _store)
    mounts = {store.mount for store in stores}
    return Tier(
        name=_matching(data, "name", _NAME),
        engine=_one_of(data, "engine", ("alluxio",)),
        role=_one_of(data, "role", ("read", "write")),
        masters=_list(data, "masters", MAX_MASTERS, _address, least=1),
        fuse_directory=_matching(data, "fuseDirectory", _PATH) if data.get("fuseDirectory") else "",
        volume_directory=_matching(data, "volumeDirectory", _PATH) if data.get("volumeDirectory") else "",
        stores=stores,
        write_back=_write_back(data["writeBack"], mounts, stores) if data.get("writeBack") else None,
    )


def parse_dataset(text: Any) -> Dataset:
    """Parse `dataset.json`. Raises ConfigError."""
    data = _document(text)
    versions = _list(data, "versions", MAX_VERSIONS, _version)
    if len({version.name for version in versions}) != len(versions):
        raise ConfigError("`versions` has one name twice")
    return Dataset(
        namespace=_matching(data, "namespace", _NAME),
        name=_matching(data, "name", _NAME),
        tier=_matching(data, "tier", _NAME),
        versions=versions,
        prewarm=_prewarm(data["prewarm"]) if data.get("prewarm") else None,
    )


def parse_flush(text: Any) -> str:
    """Parse `flush.json`; return the path: `TIER:/path`, or one below a tier's FUSE directory. Raises ConfigError."""
    path = _document(text).get("path")
    tier, colon, rest = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not _PATH(rest if colon else tier) or (colon and not _NAME(tier)):
        raise ConfigError("`path` is neither TIER:/path nor an absolute path")
    return f"{tier}{colon}{rest}"


def _store(value: Any) -> Store:
    mount, url = _matching(value, "mount", _PATH), value.get("url")
    if not isinstance(url, str) or not 0 < len(url) <= 1024:
        raise ConfigError("`stores[].url` is not a URL")
    return Store(mount, url, value.get("readOnly") is True)


def _write_back(data: Any, mounts: set[str], stores: tuple[Store, ...]) -> WriteBack:
    if not isinstance(data, dict):
        raise ConfigError("`writeBack` is not an object")
    push = _mapping(data, "push") if data.get("push") else {}
    targets = data.get("targets") or {}
    if not isinstance(targets, dict) or len(targets) > MAX_STORES:
        raise ConfigError("`writeBack.targets` is not a map")
    for source, target in targets.items():
        if source not in mounts or target not in mounts or source == target:
            raise ConfigError("`writeBack.targets` names a directory that is no mount")
    high, low = _fraction(push, "high", 0.8), _fraction(push, "low", 0.5)
    if low > high:
        raise ConfigError("`writeBack.push.low` is above `high`")
    # Compilers before `mountedByPods` ask for it whatever pods mount, and pods would not find what was evicted.
    evict, unmounted = data.get("evict") is True, data.get("mountedByPods") is False
    return WriteBack(
        targets=targets or {store.mount: store.mount for store in stores if not store.read_only},
        high=high,
        low=low,
        delay=_number(push, "delaySeconds", MAX_SECONDS, default=600),
        evict=evict and unmounted,
        settle=_number(data, "settleSeconds", MAX_SECONDS, default=900),
        capacity=int(_number(data, "capacity", MAX_BYTES, default=0)),
        evict_refused=evict and not unmounted,
    )


def _version(value: Any) -> Version:
    claims = value.get("claims") or []
    if not isinstance(claims, list) or len(claims) > MAX_CLAIMS:
        raise ConfigError("`versions[].claims` is not a list")
    return Version(
        _matching(value, "name", _VERSION),
        _matching(value, "path", _PATH),
        int(_number(value, "bytes", MAX_BYTES, default=0)),
        int(_number(value, "files", MAX_BYTES, default=0)),
        frozenset(claim for claim in claims if isinstance(claim, str) and _NAME(claim)),
    )


def _prewarm(data: Any) -> Prewarm:
    if not isinstance(data, dict):
        raise ConfigError("`prewarm` is not an object")
    when = data.get("when", "once")
    if when not in ("once", "admitted"):
        try:
            if not isinstance(when, str) or not _CRON(when):
                raise ValueError
            parse_cron(when)
        except ValueError:
            raise ConfigError("`prewarm.when` is not `once`, `admitted` or a schedule") from None
    versions = data.get("versions")
    if versions is not None and (not isinstance(versions, list) or len(versions) > MAX_VERSIONS):
        raise ConfigError("`prewarm.versions` is not a list")
    return Prewarm(
        data.get("pin") is True,
        when,
        int(_number(data, "throttle", MAX_BYTES, default=0)),
        None if versions is None else frozenset(map(str, versions)),
    )


# -- values ----------------------------------------------------------------------------------------------------------


def _document(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise ConfigError("the document is missing or too long")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ConfigError("the document is not JSON") from None
    if not isinstance(data, dict):
        raise ConfigError("the document is not an object")
    return data


def _matching(data: Any, key: str, pattern: Callable[[str], Any]) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not pattern(value):
        raise ConfigError(f"`{key}` is missing or not valid")
    return value


def _address(value: Any) -> str:
    if not isinstance(value, str) or not _ADDRESS(value):
        raise ConfigError("`masters` has what is not HOST:PORT")
    return value


def _one_of(data: Any, key: str, values: tuple[str, ...]) -> str:
    value = data.get(key)
    if value not in values:
        raise ConfigError(f"`{key}` is not one of {', '.join(values)}")
    return str(value)


def _mapping(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise ConfigError(f"`{key}` is not an object")
    return value


def _list(data: Any, key: str, most: int, parse: Callable[[Any], T], least: int = 0) -> tuple[T, ...]:
    value = data.get(key)
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ConfigError(f"`{key}` is not a list of {least} to {most}")
    if parse is not _address and not all(isinstance(each, dict) for each in value):
        raise ConfigError(f"`{key}` has what is not an object")
    return tuple(parse(each) for each in value)


def _number(data: Any, key: str, most: int, default: int | None = None) -> int:
    value = data.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"`{key}` is not a number")
    if not 0 <= value <= most:
        raise ConfigError(f"`{key}` is not between 0 and {most}")
    return int(value)


def _fraction(data: Any, key: str, default: float) -> float:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError(f"`{key}` is not a fraction")
    return float(value)
