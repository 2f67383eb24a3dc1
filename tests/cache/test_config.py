"""The daemon's input, and what a tenant may write instead of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.contracts.cache import DatasetConfig, TierConfig
from avactl.contracts.document import DocumentError, load

TIER: dict[str, Any] = {
    "name": "write",
    "engine": "alluxio",
    "role": "write",
    "masters": ["write-master-0.write-master:19998"],
    "fuseDirectory": "/mnt/avactl/write",
    "stores": [
        {"mount": "/ceph", "url": "cephfs://ceph/", "readOnly": False},
        {"mount": "/results", "url": "s3://results", "readOnly": False},
    ],
    "writeBack": {
        "push": {"high": 0.8, "low": 0.5, "delaySeconds": 600},
        "targets": {"/ceph": "/results"},
        "evict": True,
        "mountedByPods": False,
        "settleSeconds": 1200,
    },
}
DATASET: dict[str, Any] = {
    "namespace": "vision",
    "name": "imagenet",
    "tier": "read",
    "versions": [{"name": "v3", "path": "/imagenet/v3", "bytes": 1, "files": 2, "claims": ["vision"]}],
    "prewarm": {"pin": True, "when": "0 3 * * 1-5", "throttle": 1000},
}


def changed(document: dict[str, Any], path: str, value: Any) -> str:
    copy = json.loads(json.dumps(document))
    *above, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place = copy
    for part in above:
        place = place[part]
    place[last] = value
    return json.dumps(copy)


def test_files_leave_their_path_only_if_no_pods_mount_it() -> None:
    """Compilers before `mountedByPods` wrote `evict` for tiers with buckets of teams."""
    back = {key: value for key, value in TIER["writeBack"].items() if key != "mountedByPods"}
    values: list[Any] = [True, None]
    for held in (back, *({**back, "mountedByPods": value} for value in values)):
        parsed = load(TierConfig, changed(TIER, "writeBack", held)).write_back
        assert parsed is not None
        assert (parsed.evicts, parsed.evict_refused) == (False, True)
    kept = load(TierConfig, changed(TIER, "writeBack", {**back, "evict": False})).write_back
    assert kept is not None
    assert (kept.evicts, kept.evict_refused) == (False, False)


def test_without_a_durable_directory_each_store_is_its_own_target() -> None:
    tier = load(TierConfig, changed(TIER, "writeBack", {"evict": False}))
    assert tier.push_targets == {"/ceph": "/ceph", "/results": "/results"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "../x"),
        ("name", None),
        ("engine", "other"),
        ("role", []),
        ("masters", []),
        ("masters", ["x"] * 10),
        ("masters", ["http://x:1"]),
        ("masters", [7]),
        ("stores", {}),
        ("stores", [1]),
        ("stores.0.mount", "/a/../b"),
        ("stores.0.url", "x" * 2000),
        ("writeBack", 3),
        ("writeBack.settleSeconds", -1),
        ("writeBack.push", 3),
        ("writeBack.targets", {"/x": "/results"}),
        ("writeBack.targets", {"/ceph": "/ceph"}),
        ("writeBack.push.high", 2),
        ("writeBack.push.low", 0.9),
        ("writeBack.push.delaySeconds", 1e300),
        ("writeBack.push.delaySeconds", "1"),
    ],
)
def test_a_wrong_tier_is_refused(path: str, value: Any) -> None:
    with pytest.raises(DocumentError):
        load(TierConfig, changed(TIER, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("namespace", "A"),
        ("versions", None),
        ("versions.0.name", "../.."),
        ("versions.0.path", "relative"),
        ("versions.0.bytes", 1e40),
        ("versions.0.claims", "all"),
        ("prewarm", "now"),
        ("prewarm.when", "x" * 200),
        ("prewarm.throttle", -1),
        ("prewarm.versions", "all"),
        ("versions", [DATASET["versions"][0]] * 2),
    ],
)
def test_a_wrong_dataset_is_refused(path: str, value: Any) -> None:
    with pytest.raises(DocumentError):
        load(DatasetConfig, changed(DATASET, path, value))
