"""Versions of a bucket: a team writes it, and others list it."""

from __future__ import annotations

from pathlib import Path

import pytest

from avactl.contracts.delivery import MAX_LINEAGE_BYTES, VersionLineage
from avactl.daemons.delivery import models
from avactl.daemons.delivery.models import published_versions


def write(folder: Path, version: str, content: bytes) -> None:
    (folder / version).mkdir(parents=True)
    (folder / version / "lineage.json").write_bytes(content)


def test_what_is_no_version(tmp_path: Path) -> None:
    write(tmp_path, "1", b'{"commit": "honest"}')
    write(tmp_path, "01", b'{"commit": "forged"}')
    write(tmp_path, "0", b"{}")
    write(tmp_path, "1234567890", b"{}")
    write(tmp_path, "\u0661", b"{}")
    write(tmp_path, "2", b"{}" + b" " * MAX_LINEAGE_BYTES)
    write(tmp_path, "3/4", b"{}")
    assert published_versions(str(tmp_path)) == {1: VersionLineage(commit="honest")}


@pytest.mark.parametrize("content", [b"[]", b"nonsense", b'{"a":' * 100_000, b"\xff", b"", b'{"commit": 7}'])
def test_lineage_that_is_none(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "1", content[:MAX_LINEAGE_BYTES])
    assert published_versions(str(tmp_path)) == {1: VersionLineage()}


def test_as_much_is_read_as_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(1, 11):
        write(tmp_path, str(version), b'{"commit": "%d"}' % version)
    monkeypatch.setattr(models, "MAX_READ", 3 * len('{"commit": "1"}'))
    found = published_versions(str(tmp_path))
    assert list(found) == list(range(1, 11))
    # The newest ones, of which the tenth has a digit more.
    assert [version for version, lineage in found.items() if lineage.commit] == [9, 10]
