"""What the compiler writes for the daemon is what the daemon reads."""

from __future__ import annotations

import pytest

from avactl.daemons.cache.config import Dataset, Tier, parse_dataset, parse_tier
from tests.kinds.compiling import compiled
from tests.kinds.test_cache_daemon import ASYNC, CLIPS, CLUSTER, PUSH, READ


def documents(text: str) -> tuple[dict[str, Tier], dict[str, Dataset]]:
    tiers, datasets = {}, {}
    for manifest in compiled(text).manifests:
        kind = (manifest.body["metadata"].get("labels") or {}).get("avactl.dev/config")
        if kind == "cache-tier":
            tier = parse_tier(manifest.body["data"]["tier.json"])
            tiers[tier.name] = tier
        elif kind == "cache-dataset":
            dataset = parse_dataset(manifest.body["data"]["dataset.json"])
            datasets[dataset.name] = dataset
    return tiers, datasets


@pytest.mark.parametrize("write", [ASYNC, ASYNC.replace("async", "through"), PUSH])
def test_tiers(write: str) -> None:
    tiers, _ = documents(CLUSTER + READ + write)
    assert tiers["read"].write_back is None
    back = tiers["write"].write_back
    assert back is not None
    if write == PUSH:
        assert dict(back.targets) == {"/results": "/results.pushed"}
        assert (back.high, back.low, back.delay, back.capacity) == (0.8, 0.5, 600, 10 * 2**40)
    else:
        assert dict(back.targets) == {"/results": "/results"}


def test_a_dataset() -> None:
    _, datasets = documents(CLUSTER + READ + CLIPS)
    clips = datasets["clips"]
    assert clips.prewarm is not None
    loaded = [version.name for version in clips.versions if clips.prewarm.loads(version.name)]
    assert loaded == ["v2"]
