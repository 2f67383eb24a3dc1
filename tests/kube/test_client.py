"""An API server that is in a bad way, and a lease that is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from avactl.kube.access import Access
from avactl.kube.client import ApiError, Client, list_all
from avactl.kube.leader import Leader
from avactl.kube.reflector import Reflector
from tools.waiting import wait_until_async

Handler = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Access(f"http://127.0.0.1:{runner.addresses[0][1]}", None, lambda: "")) as client:
            yield client
    finally:
        await runner.cleanup()


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
