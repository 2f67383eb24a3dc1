"""Machines whose clocks are wrong: the API server's counts, by which objects are stamped."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from avactl.contracts.cache import DatasetConfig, DatasetStatus, DatasetVersionConfig, TierConfig, WriteBackConfig
from avactl.contracts.delivery import PipelineState
from avactl.contracts.names import TIMED_OUT
from avactl.daemons.cache.daemon import CacheDaemon, CacheOptions
from avactl.daemons.cache.prewarm import Prewarmer
from avactl.daemons.cache.writeback.push import Dirty, WriteBackTask
from avactl.daemons.delivery.pipelines import Pipelines
from avactl.kube import leader as leader_module
from avactl.kube.client import Client, Rate
from avactl.kube.leader import Leader
from avactl.kube.server_clock import ServerClock
from avactl.kube.timestamps import timestamp, unix_time
from avactl.scheduler.cache.tables import ClusterTables
from avactl.scheduler.objects.pod_info import PodInfo
from avactl.scheduler.writers.run_timeouts import RunTimeouts
from tests.fake_clock import FakeClock
from tests.kube.fake_api_server import server
from tests.kube.recording_client import RecordingClient

NOW = unix_time("2026-11-24T02:05:00Z")
SKEWS = pytest.mark.parametrize("skew", [-600.0, 0.0, 600.0])


@pytest.fixture
def wrong(skew: float, monkeypatch: pytest.MonkeyPatch) -> RecordingClient:
    """A client on a machine with a wrong clock that has heard from the API server."""
    monkeypatch.setattr(time, "time", lambda: NOW + skew)
    client = RecordingClient()
    client.clock.observe(formatdate(NOW, usegmt=True))
    return client


@SKEWS
def test_every_response_tells_the_time(skew: float) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({}, headers={"Date": formatdate(time.time() - skew, usegmt=True)})

    async def run() -> float:
        async with server(answer) as client:
            await client.request("GET", "/api/v1/pods")
            return client.clock.now()

    assert asyncio.run(run()) == pytest.approx(time.time() - skew, abs=30)


@pytest.mark.parametrize("date", ["", "yesterday", "Tue, 99 Nov 2026 00:00:00 GMT", "Tue, 24 Nov 99999 02:05:00 GMT"])
def test_what_is_no_date_changes_nothing(date: str) -> None:
    clock = ServerClock()
    clock.observe(date)
    assert clock.now() == pytest.approx(time.time(), abs=30)


@pytest.mark.parametrize("wrong_by", [-(10**9), -600, 600, 10**9])
def test_one_answer_with_another_time_changes_nothing(wrong_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy answers for an API server that it cannot reach, with a clock of its own."""
    own = FakeClock(NOW)
    monkeypatch.setattr(time, "time", own)
    clock = ServerClock()
    for skew in (0, wrong_by, 0, wrong_by, 0):
        own.now += 2
        clock.observe(formatdate(own.now + skew, usegmt=True))
        assert clock.now() == own.now
    for _ in range(2):
        own.now += 2
        clock.observe(formatdate(own.now + wrong_by, usegmt=True))
    assert clock.now() == pytest.approx(own.now + wrong_by, abs=1)


@SKEWS
def test_a_pod_has_its_whole_timeout_and_no_more(wrong: RecordingClient) -> None:
    timeouts = RunTimeouts(
        wrong, Rate(0, 0), cast(ClusterTables, SimpleNamespace(subscribe=lambda _: None)), lambda: True
    )
    for name, ago in (("runs", 200), ("over", 400)):
        fields = {"uid": name, "name": name, "namespace": "a", "key": f"a/{name}", "timeout": 300}
        state = {"started": timestamp(NOW - ago), "timed_out": False, "ended": False, "deleting": False}
        timeouts.pod_added(cast(PodInfo, SimpleNamespace(**fields, **state)), "n0")

    async def run() -> None:
        timeouts.tick()
        await asyncio.gather(*timeouts._tasks.values())

    asyncio.run(run())
    marked = [(path, body["status"]["conditions"][0]["type"]) for _, path, body in wrong.sent]
    assert marked == [("/api/v1/namespaces/a/pods/over/status", TIMED_OUT)]


def pipelines(client: Client, trigger: dict[str, Any]) -> Any:
    delivery = Pipelines(client, cast(Any, None), cast(Any, None), None, lambda: True, 60.0)
    pipeline = cast(Any, SimpleNamespace(trigger=SimpleNamespace(**trigger)))
    return lambda handled: asyncio.run(delivery._find_cause(pipeline, PipelineState(primed=True, handled=handled)))


TRIGGERS = pytest.mark.parametrize(
    ("trigger", "due", "earlier", "later"),
    [
        (
            {"kind": "schedule", "cron": "0 * * * *", "time_zone": ""},
            "2026-11-24T02:00Z",
            "2026-11-24T01:00Z",
            "2026-11-24T03:00Z",
        ),
        ({"kind": "checkpoint", "every": 3600}, "2026-11-24T02:00:00Z", "2026-11-24T01:00:00Z", "2026-11-24T03:00:00Z"),
    ],
    ids=["schedule", "checkpoint"],
)


@SKEWS
@TRIGGERS
def test_a_pipeline_runs_once_at_the_api_server_s_time(
    wrong: RecordingClient, trigger: dict[str, Any], due: str, earlier: str, later: str
) -> None:
    cause = pipelines(wrong, trigger)
    assert [cause(earlier), cause(due)] == [due, due]


@TRIGGERS
def test_a_clock_that_is_set_back_repeats_no_run(
    trigger: dict[str, Any], due: str, earlier: str, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    cause = pipelines(RecordingClient(), trigger)
    assert cause(later) == later, "the last leader's clock was ahead"
    assert cause("2099-11-24T03:00:00Z") == due, "a run of 2099 holds up none of today"
    assert [cause(other) for other in ("", "never", "v3", "9" * 40)] == [due] * 4


@SKEWS
def test_a_flush_is_kept_for_a_day(wrong: RecordingClient) -> None:
    daemon = CacheDaemon(wrong, CacheOptions())
    daemon.configs.flushes["ns/recent"] = "write:/results", NOW - 86_400 + 300
    daemon.configs.flushes["ns/forgotten"] = "write:/results", NOW - 86_400 - 300
    tier = cast(TierConfig, SimpleNamespace(name="write", fuse_directory=None))
    assert [each.name for each in daemon.flushes(tier)] == ["recent"]


@pytest.mark.parametrize(
    ("since", "due", "kept"),
    [
        ("02:03:00", True, "02:05:00"),
        ("02:04:00", False, "02:05:00"),
        # The last leader's clock was ahead, and it has started what is due at 02:04.
        ("02:14:00", False, "02:14:00"),
        ("23:00:00", False, "02:05:00"),
    ],
)
def test_a_prewarm_is_started_once(since: str, due: bool, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    prewarmer = Prewarmer(cast(Any, None), tuple, set, str, cast(Any, None), {})
    prewarm = SimpleNamespace(when="4 2 * * *", loads=lambda _: True)
    dataset = cast(DatasetConfig, SimpleNamespace(prewarm=prewarm))
    version = cast(DatasetVersionConfig, SimpleNamespace(name="v1"))
    entry = DatasetStatus(path="/a", percent=0.0, since=int(unix_time(f"2026-11-24T{since}Z")))
    assert prewarmer._is_due("a", dataset, version, entry) is due
    assert timestamp(entry.since) == f"2026-11-24T{kept}Z"


def test_a_file_of_the_future_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    settings = SimpleNamespace(
        settle_seconds=60, capacity=1 << 30, push=SimpleNamespace(delay_seconds=300, high=0.8, low=0.5)
    )
    facts = SimpleNamespace(capacity_bytes=0)
    task = WriteBackTask(
        cast(Any, None), cast(Any, None), cast(WriteBackConfig, settings), cast(Any, facts), tuple, lambda: True
    )
    ages = {"/young": 10.0, "/old": 400.0, "/ahead": -600.0, "/2099": -2e9}
    dirty = [
        Dirty(cast(Any, SimpleNamespace(path=path, created=NOW - age, size=1, persisted=True)), "/", "/")
        for path, age in ages.items()
    ]
    assert {each.file.path for each in task._due_files(dirty, [])} == {"/old", "/ahead", "/2099"}


@pytest.mark.parametrize("ahead", [-600.0, 600.0, 1e9])
def test_a_lease_is_judged_by_its_changes_and_not_by_its_times(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock().set_in(monkeypatch, leader_module)
    lease: dict[str, Any] = {"metadata": {"name": "lease"}, "spec": {"holderIdentity": "other", "leaseTransitions": 1}}

    def renew() -> None:
        lease["spec"] |= {"renewTime": timestamp(time.time() + ahead + clock.now), "leaseDurationSeconds": 15}

    async def answer(request: web.Request) -> web.Response:
        if request.method == "PUT":
            lease.update(await request.json())
        return web.json_response(lease)

    async def run() -> None:
        async with server(answer) as client:
            standby = Leader(client, "system", "lease", "mine")
            for _ in range(20):
                renew()
                assert not await standby._try(), "it is renewed"
                clock.advance(2)
            clock.advance(12)
            assert not await standby._try()
            clock.advance(2)
            assert await standby._try(), "it was not renewed for 15 s"
            assert lease["spec"]["holderIdentity"] == "mine"

    asyncio.run(run())
