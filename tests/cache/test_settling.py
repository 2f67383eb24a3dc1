"""Copies that follow a failed upload, without an engine."""

from __future__ import annotations

from dataclasses import replace

from avactl.daemons.cache.engine import CachedFile
from avactl.daemons.cache.writeback.settling import Settling
from tests.fake_clock import FakeClock

FILE = CachedFile(1, "/a", 10, True, True, False, 0, 0.0, 0.0, 0.0, b"", "s3://of/a", 1, 64, ())


def test_a_copy_after_a_failed_upload_waits() -> None:
    clock = FakeClock(0.0)
    settling = Settling(60, clock)
    assert settling.settled(FILE, "sum")
    settling.suspect("/a")
    clock.now = 30
    settling.found("/a")  # of the same failed upload: it does not count from now
    assert not settling.settled(FILE, "sum")
    assert (settling.waits(FILE), settling.uploaded(FILE), len(settling)) == (True, "sum", 1)
    # A writer has replaced the file: its copy is another, and what has failed before can hit that too.
    other = replace(FILE, id=2)
    assert (settling.waits(other), settling.uploaded(other)) == (False, None)
    assert not settling.settled(other, "other")
    clock.now = 60
    assert not settling.waits(other)
    assert settling.settled(other, "other")
    assert len(settling) == 0


def test_an_upload_of_an_earlier_daemon_counts_from_its_discovery() -> None:
    clock = FakeClock(100.0)
    settling = Settling(60, clock)
    settling.found("/a")
    clock.now = 159
    assert not settling.settled(FILE, "sum")
    clock.now = 160
    assert settling.settled(FILE, "sum")


def test_what_is_not_dirty_is_forgotten_when_it_has_settled() -> None:
    clock = FakeClock(0.0)
    settling = Settling(60, clock)
    settling.suspect("/a")
    settling.settled(FILE, "sum")
    settling.forget(set())
    assert len(settling) == 0
    assert not settling.settled(FILE, "sum")  # deleted and written again at once
    clock.now = 60
    settling.forget(set())
    settling.found("/a")
    assert not settling.settled(FILE, "sum")
