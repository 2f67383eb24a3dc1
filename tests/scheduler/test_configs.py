"""ConfigMaps of pools and quotas that somebody has edited: what is wrong is left out, and says why."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from avactl.contracts.document import DocumentError, load
from avactl.contracts.scheduling import PoolFacts, TeamLeaf
from avactl.scheduler.cache.cluster import ClusterCache
from avactl.scheduler.cache.team_usage import StartRequest
from avactl.scheduler.handlers import resources
from avactl.scheduler.objects.config import ConfiguredPool, TeamQuota
from tests.kinds.compiling import body, compiled
from tests.scheduler import offline

QUOTA: dict[str, Any] = {
    "team": "vision",
    "namespaces": ["vision"],
    "gpus": [{"gpu": "A100", "guaranteed": 4, "borrow": 4, "weight": 1}],
    "shapes": [{"machines": 1, "gpus": 8, "gpu": "A100"}],
    "cpu": 8.5,
    "memoryBytes": 1 << 40,
}
JUNK: tuple[Any, ...] = (..., None, "x", "", -1, 0, 99, 1.5, True, [], {}, [["x"]])


def pool() -> dict[str, Any]:
    specs = offline.SPECS.replace("a100-sxm-8", "dgx1-v100")
    found: dict[str, Any] = orjson.loads(
        body(compiled(specs), "ConfigMap", "avactl-pool-big", "avactl-system")["data"]["pool.json"]
    )
    return found


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from places(data[key], (*path, key))


def edited(data: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    data = copy.deepcopy(data)
    inside: Any = data
    for key in path[:-1]:
        inside = inside[key]
    if junk is ...:
        del inside[path[-1]]
    else:
        inside[path[-1]] = junk
    return data


def quota() -> dict[str, Any]:
    return QUOTA


@pytest.mark.parametrize("given", [quota, pool])
def test_whatever_is_read_can_be_scheduled_with(given: Callable[[], dict[str, Any]]) -> None:
    refused, original = 0, given()
    for path in places(original):
        for junk in JUNK:
            text = orjson.dumps(edited(original, path, junk))
            try:
                read = load(TeamLeaf, text) if given is quota else load(PoolFacts, text)
            except DocumentError:
                refused += 1
                continue
            made = offline.cache([offline.node("a")], [offline.pod("runs", 2, "a", "0,1")])
            if isinstance(read, TeamLeaf):
                made.quotas.put_quota("vision", TeamQuota.from_leaf(read))
            else:
                made.put_pool(ConfiguredPool.from_facts(read))
            made.rebuild()
            waits = made.put_pod(offline.pod("waits", 1, link="socket"))
            assert waits is not None
            request = made.requests.request(waits.shape)
            made.quotas.admit([StartRequest(request, [waits])])
            made.choose(waits, request, None)
    assert refused > 100


def test_what_was_known_before_is_kept_and_what_is_wrong_is_told() -> None:
    cache = ClusterCache(())
    leaves: dict[str, TeamQuota | None] = {}
    configs = resources.ConfigMapHandler(cache, leaves.__setitem__)

    def put(data: object) -> None:
        metadata = {"name": "q", "namespace": "s", "labels": {"avactl.dev/config": "quota"}}
        configs.put({"metadata": metadata, "data": {"quota.json": orjson.dumps(data).decode()}})

    put(QUOTA)
    known = leaves["vision"]
    put(edited(QUOTA, ("gpus", 0, "guaranteed"), "16"))
    assert leaves == {"vision": known}
    assert configs.broken == {"s/q": "`gpus[0].guaranteed` is not an integer"}
    put({**QUOTA, "team": "speech"})
    assert leaves["vision"] is None
    assert leaves["speech"] is not None
    assert configs.broken == {}
    configs.remove("s/q")
    assert leaves == {"vision": None, "speech": None}
