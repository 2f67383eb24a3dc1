"""An API server that is in a bad way, and a lease that is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiohttp import web

from avactl.kube import client as client_module
from avactl.kube.client import ApiError, UnreachableError, list_all
from avactl.kube.leader import HeldError, Leader
from avactl.kube.object_client import ObjectClient
from avactl.kube.reflector import Reflector
from avactl.kube.replica import process_identity
from tests.kube.fake_api_server import OneLease, server
from tools.waiting import wait_until_async


class Nothing:
    def put(self, item: dict[str, Any]) -> None:
        raise AssertionError(item)

    def remove(self, key: str) -> None:
        raise AssertionError(key)

    def keys(self) -> Iterable[str]:
        return ()


def test_watches_that_end_at_once_are_not_begun_again_without_a_pause() -> None:
    asked = failed = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if "watch" in request.query:
            return web.Response()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    def note() -> None:
        nonlocal failed
        failed += 1

    async def run() -> None:
        async with server(answer) as client:
            following = asyncio.ensure_future(Reflector(client, "/api/v1/pods", Nothing(), failed=note).run())
            await wait_until_async(lambda: failed or asked >= 100)
            await asyncio.sleep(0.05)
            following.cancel()

    asyncio.run(run())
    assert asked == 2  # a list, and one watch


def test_who_gives_the_lease_up_leads_no_more() -> None:
    lease: dict[str, Any] = {}
    led: list[bool] = []

    async def run() -> None:
        async def answer(request: web.Request) -> web.Response:
            nonlocal lease
            if request.method == "GET":
                return web.json_response(lease) if lease else web.json_response({}, status=404)
            led.append(leader.leading())
            lease = await request.json()
            return web.json_response(lease)

        async with server(answer) as client:
            leader = Leader(client, "system", "lease", "me")
            running = asyncio.ensure_future(leader.run())
            await leader.won.wait()
            assert leader.leading()
            running.cancel()
            led.clear()
            await leader.release()

    asyncio.run(run())
    assert lease["spec"]["holderIdentity"] == ""
    assert led == [False]  # before the lease was given up


def test_a_list_whose_pages_expire_is_read_again_at_once() -> None:
    asked: list[dict[str, str]] = []

    async def page(query: dict[str, str]) -> Any:
        asked.append(query)
        if "continue" in query:
            raise ApiError(410, "Expired", "the continue token is too old")
        if "limit" in query:
            return {"items": [1, 2], "metadata": {"continue": "next"}}
        return {"items": [1, 2, 3], "metadata": {}}

    assert asyncio.run(list_all(page, {"limit": "2", "labelSelector": "a"})) == [1, 2, 3]
    assert asked[1] == {"limit": "2", "labelSelector": "a", "continue": "next"}
    assert asked[2] == {"labelSelector": "a"}


def test_a_page_that_is_too_long_is_asked_for_in_parts() -> None:
    """Of objects that tenants fill, a page of the usual number would not fit into memory once it is parsed."""
    limits: list[int] = []
    seen: list[str] = []

    class Seen(Nothing):
        def put(self, item: dict[str, Any]) -> None:
            seen.append(item["metadata"]["name"])

    async def answer(request: web.Request) -> web.Response:
        limit, begin = int(request.query["limit"]), int(request.query.get("continue", "0"))
        limits.append(limit)
        end = min(begin + limit, 30)
        items = [
            {"metadata": {"name": f"p{number}", "namespace": "a"}, "x": "x" * 1000} for number in range(begin, end)
        ]
        more = {"continue": str(end)} if end < 30 else {}
        return web.json_response({"metadata": {"resourceVersion": "1", **more}, "items": items})

    async def run() -> None:
        async with server(answer) as client:
            await Reflector(client, "/api/v1/pods", Seen(), page=20, most=5000).load()
            parsed: list[int] = []
            path = "/apis/apps/v1/replicasets"
            await list_all(
                lambda query: client.page(path, query, most=5000),
                {"limit": "20"},
                lambda page: parsed.append(len(page)) or [],  # type: ignore[func-returns-value]
            )
            assert max(parsed) <= 4  # those bytes of it
            assert sum(parsed) == 30

    asyncio.run(run())
    assert seen == [f"p{number}" for number in range(30)]
    assert set(limits) == {20, 2}


def test_a_response_that_is_too_long_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MAX_RESPONSE_BYTES", 1000)

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"data": "x" * 2000})

    async def run() -> None:
        async with server(answer) as client:
            await client.request("GET", "/api/v1/pods")

    with pytest.raises(UnreachableError, match="more than 1000 bytes"):
        asyncio.run(run())


def test_an_event_that_is_too_long_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MAX_EVENT_BYTES", 1000)
    seen: list[bytes] = []

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=b"\n".join([b"{}"] * 1000) + b"\n" + b"x" * 2000)

    async def run() -> None:
        async with server(answer) as client:
            async for lines in client.watch("/api/v1/pods", {"watch": "1"}):
                seen.extend(lines)

    with pytest.raises(UnreachableError, match="an event has more than 1000 bytes"):
        asyncio.run(run())
    assert seen == [b"{}"] * 1000


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_refusal_is_retried(status: int) -> None:
    answers = iter([status, status, 200])

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=next(answers))

    async def run() -> None:
        async with server(answer) as client:
            assert await ObjectClient(client, patience=30.0).read("/api/v1/namespaces/a") == {}

    asyncio.run(run())


def test_retries_end_and_later_requests_are_sent_once() -> None:
    asked = 0

    async def answer(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({}, status=503)

    async def run() -> None:
        async with server(answer) as client:
            objects = ObjectClient(client, patience=0.3)
            with pytest.raises(ApiError, match="503"):
                await objects.read("/api/v1/namespaces/a")
            assert asked > 1
            before = asked
            with pytest.raises(ApiError, match="503"):
                await objects.read("/api/v1/namespaces/a")
            assert asked == before + 1

    asyncio.run(run())


def test_the_lease_of_a_dead_process_is_taken_at_once() -> None:
    head, _, tail = process_identity().rsplit("_", 2)
    lease = OneLease(f"{head}_1_{tail}")  # the same number, but another start time

    async def run() -> None:
        async with server(lease.answer) as client, asyncio.timeout(10):
            leader = Leader(client, "system", "lease", "mine")
            async with leader.hold(patience=5.0):
                assert leader.leading()
                assert lease.lease["spec"]["holderIdentity"] == "mine"

    asyncio.run(run())
    assert lease.lease["spec"]["holderIdentity"] == ""


def test_a_living_holder_is_asked_to_give_way_but_keeps_its_lease() -> None:
    lease, waiting = OneLease("elsewhere_1"), list[str]()

    async def run() -> None:
        async with (
            server(lease.answer) as client,
            Leader(client, "system", "lease", "mine").hold(2.0, waiting.append),
        ):
            raise AssertionError

    with pytest.raises(HeldError, match="another run holds the lease lease"):
        asyncio.run(run())
    assert waiting == ["elsewhere_1"]
    assert lease.lease["metadata"]["annotations"] == {"avactl.dev/requested-by": "mine"}
    assert lease.lease["spec"]["holderIdentity"] == "elsewhere_1"
