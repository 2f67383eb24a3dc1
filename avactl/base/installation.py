"""How this avactl was installed: the requirement that installs it again, with further extras.

An installer records the file, directory or git commit in `direct_url.json`
(https://packaging.python.org/en/latest/specifications/direct-url/). avactl never names itself alone to pip, because a
public index may have another package of that name.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any, NamedTuple


class InstallationOrigin(NamedTuple):
    """Source of an installation. All fields are empty if it came from an index."""

    url: str = ""
    """URL for pip: of a wheel, a source archive or a directory, or `git+URL@COMMIT`."""
    sha256: str = ""
    """Hash of an archive, if the installer recorded it."""
    editable: bool = False


def installed_from() -> InstallationOrigin:
    """Return the source of the running avactl."""
    try:
        text = metadata.distribution("avactl").read_text("direct_url.json")
        return parse_origin(json.loads(text)) if text else InstallationOrigin()
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return InstallationOrigin()


def parse_origin(record: dict[str, Any]) -> InstallationOrigin:
    """Return the source that a `direct_url.json` describes. Raises KeyError, TypeError and AttributeError."""
    url = str(record["url"])
    if (vcs := record.get("vcs_info")) is not None:
        return InstallationOrigin(f"{vcs['vcs']}+{url}@{vcs['commit_id']}")
    hashes = record.get("archive_info", {}).get("hashes", {})
    return InstallationOrigin(url, str(hashes.get("sha256", "")), bool(record.get("dir_info", {}).get("editable")))


def install_command(extra: str) -> str:
    """Return the command that adds an extra to the running avactl."""
    try:
        metadata.version("avactl")
    except metadata.PackageNotFoundError:  # copied, not installed
        return f"install avactl with its extra `{extra}`"
    found = installed_from()
    if found.editable:
        return f"pip install --editable '{found.url.removeprefix('file://')}[{extra}]'"
    return f"pip install '{requirement_text((extra,), found)}'"


def requirement_text(extras: tuple[str, ...], source: InstallationOrigin) -> str:
    """Return avactl with extras, as a line of a requirements file without hashes."""
    name = f"avactl[{','.join(extras)}]" if extras else "avactl"
    return f"{name} @ {source.url}" if source.url else f"{name}=={metadata.version('avactl')}"
