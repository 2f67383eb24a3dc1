"""The command that adds an extra names the same source as the installation."""

from __future__ import annotations

from typing import Any

import pytest

from avactl import __version__
from avactl.base.installation import InstallationOrigin, parse_origin, requirement_text

WHEEL = "https://files.example.com/avactl-0.1.0-py3-none-any.whl"
GIT = {"vcs": "git", "requested_revision": "v0.1.0", "commit_id": "1f2e3d"}


@pytest.mark.parametrize(
    ("record", "origin", "line"),
    [
        (
            {"url": WHEEL, "archive_info": {"hash": "sha256=ab12", "hashes": {"sha256": "ab12"}}},
            InstallationOrigin(WHEEL, "ab12"),
            f"avactl[ci,cluster] @ {WHEEL}",
        ),
        (
            {"url": "ssh://git@git.example.com/avactl.git", "vcs_info": GIT},
            InstallationOrigin("git+ssh://git@git.example.com/avactl.git@1f2e3d"),
            "avactl[ci,cluster] @ git+ssh://git@git.example.com/avactl.git@1f2e3d",
        ),
        (
            {"url": "file:///src/avactl", "dir_info": {"editable": True}},
            InstallationOrigin("file:///src/avactl", editable=True),
            "avactl[ci,cluster] @ file:///src/avactl",
        ),
    ],
)
def test_sources(record: dict[str, Any], origin: InstallationOrigin, line: str) -> None:
    assert parse_origin(record) == origin
    assert requirement_text(("ci", "cluster"), origin) == line


def test_from_an_index_the_version_is_named() -> None:
    assert requirement_text(("ci",), InstallationOrigin()) == f"avactl[ci]=={__version__}"
