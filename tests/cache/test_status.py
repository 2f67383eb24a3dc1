"""The text of a status that is too long: what it keeps."""

from __future__ import annotations

from avactl.contracts.cache import CacheStatus, DatasetStatus
from avactl.contracts.document import dump, load
from avactl.daemons.cache.status import bound_status


def build_status(count: int, holders: int) -> CacheStatus:
    """Return a status of datasets of which a larger and larger part is cached."""
    return CacheStatus(
        datasets={
            f"team/set-{number:06}/v1": DatasetStatus(
                path=f"/data/{number}",
                percent=100 * number / count,
                holders={f"node-{node}": 0.5 for node in range(holders)},
            )
            for number in range(count)
        }
    )


def test_a_short_status_is_whole() -> None:
    status = build_status(100, 10)
    assert bound_status(status) == dump(status)


def test_holders_go_first() -> None:
    kept = load(CacheStatus, bound_status(build_status(1_000, 100)))
    assert len(kept.datasets) == 1_000
    assert not any(value.holders for value in kept.datasets.values())


def test_as_many_datasets_are_kept_as_fit() -> None:
    text = bound_status(build_status(40_000, 0))
    assert CacheStatus.MAX_BYTES * 0.99 < len(text) <= CacheStatus.MAX_BYTES
    names = list(load(CacheStatus, text).datasets)
    assert names == [f"team/set-{number:06}/v1" for number in range(len(names))]
