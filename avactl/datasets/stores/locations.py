"""Locations of data: directories, and prefixes of object stores."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from avactl.base import object_urls
from avactl.datasets.errors import ArgumentError

SCHEMES = tuple(scheme for scheme in object_urls.SCHEMES if scheme != "hdfs")
"""Schemes of object stores. All but `gs` are reached by the S3 protocol."""
MAX_KEY = 1024
"""Longest key in bytes. Source: Amazon S3 and Google Cloud Storage, "at most 1,024 bytes long" in UTF-8."""
MAX_URL = 4096
"""Longest URL in characters, as in specs."""

_FIND_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]").search
_IS_URL = re.compile(
    rf"(?:{object_urls.BUCKET}|file://)(?:/(?!\.{{0,2}}(?:/|$))[^/\x00-\x1f\x7f-\x9f\u2028\u2029]+)+"
).fullmatch
_IS_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*").fullmatch


class StoreLocation(NamedTuple):
    """A directory, or a prefix of a bucket."""

    scheme: str
    """`file`, or one of `SCHEMES`."""
    bucket: str
    """Empty for directories."""
    path: str
    """Absolute path of a directory; prefix of a bucket without a slash at either end, "" for all of it."""

    def __str__(self) -> str:
        return self.path if self.scheme == "file" else self.url

    @property
    def url(self) -> str:
        """Return the URL without a slash at its end."""
        path = self.path if self.scheme == "file" else f"/{self.path}" if self.path else ""
        return f"{self.scheme}://{self.bucket}{path.rstrip('/')}"

    def contains(self, other: StoreLocation) -> bool:
        """Return True for the same place, or one below; symbolic links of directories are resolved."""
        places = (
            each._replace(path=os.path.realpath(each.path)) if not each.bucket else each for each in (self, other)
        )
        outer, inner = (f"{each.url}/" for each in places)
        return inner.startswith(outer)


def parse_location(text: str) -> StoreLocation:
    """Parse a URL or the path of a directory. Raises ArgumentError."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return StoreLocation("file", "", os.path.abspath(text))
    if scheme == "file":
        if not rest.startswith("/"):
            raise ArgumentError(f"`{text}` is not a file URL", "write `file:///path`, or the path alone")
        return StoreLocation("file", "", os.path.abspath(rest))
    bucket, _, prefix = rest.partition("/")
    if scheme not in SCHEMES:
        hint = f"use a directory, or one of {', '.join(f'{each}://' for each in SCHEMES)}"
        raise ArgumentError(f"`{scheme}://` is not an object store that avactl can read", hint)
    if "@" in bucket:
        raise ArgumentError("the URL contains credentials", "set them in the environment: AWS_ACCESS_KEY_ID, …")
    if not _IS_BUCKET(bucket):
        hint = "write the bucket in lowercase: `s3://bucket/prefix`; the endpoint is `--endpoint`"
        raise ArgumentError(f"`{bucket}` is not the name of a bucket", hint)
    prefix = prefix.rstrip("/")
    if prefix and (problem := key_problem(prefix)):
        raise ArgumentError(f"the prefix of `{text}` {problem}", "write the prefix as in the store")
    return StoreLocation(scheme, bucket, prefix)


def key_problem(key: str) -> str:
    """Return why a key cannot be a file of a dataset, e.g. "contains `..`"; "" if it can."""
    parts = key.split("/")
    if ".." in parts or "." in parts:
        return "contains `..`" if ".." in parts else "contains `.` as a directory"
    if "" in parts:
        return "contains an empty directory name (`//`)" if key.strip("/") else "is empty"
    if _FIND_CONTROL(key):
        return "contains a control character"
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    return f"has {length:,} bytes; object stores allow {MAX_KEY:,}" if length > MAX_KEY else ""


def url_problem(url: str) -> str:
    """Return why a text is not the URL of an object; "" if it is one."""
    if len(url) > MAX_URL:
        return f"has {len(url):,} characters; the limit is {MAX_URL:,}"
    right = _IS_URL(url)
    if right and len(url) <= MAX_KEY // 4:
        return ""
    _, separator, rest = url.partition("://")
    _, slash, key = rest.partition("/")
    problem = key_problem(key) if separator and slash and key else ""
    return problem or ("" if right else "is not an object-store URL")
