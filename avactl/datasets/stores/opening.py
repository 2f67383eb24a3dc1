"""Opening of a location: a directory or a prefix of an object store."""

from __future__ import annotations

from avactl.datasets.errors import ArgumentError
from avactl.datasets.stores.local import LocalStore
from avactl.datasets.stores.locations import StoreLocation, parse_location
from avactl.datasets.stores.store import Store


def open_store(location: StoreLocation | str, endpoint: str = "", follow: bool = False) -> Store:
    """Open a location. `endpoint`: URL of an S3 service; `follow`: follow symbolic links of directories.

    Raises ArgumentError, StoreError.
    """
    where = parse_location(location) if isinstance(location, str) else location
    if where.scheme == "file":
        if endpoint:
            raise ArgumentError(f"`--endpoint` has no effect on {where}", "remove it, or name a URL: `s3://…`")
        return LocalStore(where, follow)
    from avactl.datasets.stores.remote import RemoteStore

    return RemoteStore(where, endpoint)
