"""URLs of objects in stores, as specs, manifests and dataset commands write them."""

from __future__ import annotations

SCHEMES = ("s3", "gs", "oss", "cos", "kodo", "hdfs")
BUCKET = rf"({'|'.join(SCHEMES)})://[a-z0-9][a-z0-9._-]*(:[0-9]{{1,5}})?"
"""Pattern of the part before the path."""


def shared_directory(directory: str, url: str) -> str:
    """Return the directory, with a slash at its end, that contains another one and an object; "" if there is none."""
    while not url.startswith(directory):
        directory = directory[:-1].rpartition("/")[0] + "/"
        if directory.endswith("://"):
            return ""
    return directory
