"""The paths of object-store URLs in a cache tier."""

from __future__ import annotations

import pytest

from avactl.compiler import compile_tree
from avactl.program import dataset_access
from avactl.program.checks.tier_urls import url_in_tier
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE

TIER = b"""
apiVersion: avactl.dev/v1
kind: CacheTier
metadata: {name: deep}
spec:
  cluster: main
  role: read
  workers: {tiers: [{medium: SSD, quota: 1Ti}]}
  fuse: {path: /mnt/caches/}
  underStores:
    - {mount: /cats, url: "s3://animals/cats/"}
    - {mount: /dogs/, url: "s3://animals/dogs"}
"""


@pytest.fixture(scope="module")
def tier() -> Item[CacheTierSpec]:
    return compile_tree(MemoryTree({**BASE, "tier.yaml": TIER})).program.tier("deep")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://animals/cats", "/cats"),
        ("s3://animals/cats/", "/cats"),
        ("s3://animals/cats/v1/big/", "/cats/v1/big"),
        ("s3://animals/dogs/v1", "/dogs/v1"),
        ("s3://animals/catsanddogs", None),
        ("s3://animals", None),
        ("gs://animals/cats", None),
    ],
)
def test_a_url_is_below_the_mount_of_its_store(tier: Item[CacheTierSpec], url: str, path: str | None) -> None:
    assert dataset_access.tier_path(tier, url) == path


def test_the_directory_on_the_machine(tier: Item[CacheTierSpec]) -> None:
    assert dataset_access.host_path(tier, "/cats/v1") == "/mnt/caches/deep/cats/v1"
    assert dataset_access.host_path(tier, "/") == "/mnt/caches/deep"


def test_a_url_outside_of_the_tier_is_told_once_with_its_stores() -> None:
    program = compile_tree(MemoryTree({**BASE, "tier.yaml": TIER})).program
    team = program.get("Team", "vision")
    assert url_in_tier(team, program, "deep", "s3://animals/cats/x", ("spec",)) == []
    [problem] = url_in_tier(team, program, "deep", "s3://plants", ("spec",))
    assert "`s3://animals/cats/` or `s3://animals/dogs`" in problem.hint
    assert url_in_tier(team, program, "no-such-tier", "s3://plants", ("spec",)) == []
