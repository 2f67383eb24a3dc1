"""Which tier a flush is for."""

from __future__ import annotations

import time

import pytest

from avactl.contracts.cache import TierConfig
from avactl.daemons.cache.daemon import CacheDaemon, CacheOptions
from avactl.daemons.cache.writeback.push import Flush
from tests.kube.recording_client import RecordingClient

WRITE = TierConfig(
    name="write",
    engine="alluxio",
    role="write",
    masters=("127.0.0.1:9",),
    fuse_directory="/mnt/avactl/write",
    stores=(),
)
TIERS = [
    WRITE,
    WRITE.model_copy(update={"name": "write2", "fuse_directory": "/mnt/avactl/write2"}),
    WRITE.model_copy(update={"fuse_directory": None}),
]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("write:/results/a", ["/results/a", None, "/results/a"]),
        ("write2:/results", [None, "/results", None]),
        ("/mnt/avactl/write/results/a", ["/results/a", None, None]),
        ("/mnt/avactl/write", ["/", None, None]),
        # A tier that answered for another would say at once that all of it is in the store.
        ("/mnt/avactl/write2/results", [None, "/results", None]),
        ("/mnt/avactl", [None, None, None]),
        ("/home/ann", [None, None, None]),
    ],
)
def test_a_path_is_that_of_one_tier(path: str, found: list[str | None]) -> None:
    daemon = CacheDaemon(RecordingClient(), CacheOptions())
    daemon.configs.flushes["ns/flush-1"] = path, time.time()
    assert [daemon.flushes(tier) for tier in TIERS] == [
        [] if inside is None else [Flush("flush-1", inside)] for inside in found
    ]


def test_one_whose_command_has_died_is_forgotten() -> None:
    daemon = CacheDaemon(RecordingClient(), CacheOptions())
    daemon.configs.flushes["ns/flush-1"] = "write:/results", time.time() - 2 * 86_400
    assert daemon.flushes(WRITE) == []
