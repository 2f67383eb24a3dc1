"""The balanced channel of asyncio with real servers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import avactl_client
import avactl_client.aio
import grpc
import grpc.aio
import pytest
from avactl_client.aio import Channel

from tests.client.servers import PATIENCE, Servers
from tools.waiting import wait_until_async

LONG = 30.0
"""Deadline that no call reaches."""


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = Servers()
    yield found
    found.close()


def run(servers: Servers, test: Callable[[Channel], Awaitable[None]], **more: Any) -> None:
    """Run a test with a channel to the servers."""

    async def main() -> None:
        async with avactl_client.aio.channel("test:1", addresses=servers.known, interval=0.2, **more) as channel:
            await asyncio.wait_for(test(channel), PATIENCE)

    asyncio.run(main())


async def connected(channel: Channel, count: int) -> None:
    await wait_until_async(lambda: sum(channel.servers().values()) == count)


async def one(channel: Channel) -> str:
    return bytes(await channel.unary_unary("/test/One")(b"", timeout=LONG)).decode()


async def letters(text: str) -> AsyncIterator[bytes]:
    for letter in text:
        yield letter.encode()


def test_calls_of_each_kind(servers: Servers) -> None:
    servers.start("a")

    async def test(channel: Channel) -> None:
        call = channel.unary_unary("/test/One")(b"", timeout=LONG)
        assert await call == b"a"
        assert (await call.code(), call.done()) == (grpc.StatusCode.OK, True)
        assert (await call.trailing_metadata())["server"] == "a"
        many = channel.unary_stream("/test/Many")
        assert [each async for each in many(b"3")] == [b"a 0", b"a 1", b"a 2"]
        reads = many(b"1")
        assert [await reads.read(), await reads.read()] == [b"a 0", grpc.aio.EOF]
        text = "abcdefghijklmnopqrstuvwxyz"
        assert await channel.stream_unary("/test/Count")(letters(text)) == f"a {text}".encode()
        echo = channel.stream_stream("/test/Echo")
        assert [each async for each in echo([b"x", b"y"])] == [b"a x", b"a y"]
        writes = echo()
        await writes.write(b"x")
        assert await writes.read() == b"a x"
        await writes.done_writing()
        assert await writes.read() is grpc.aio.EOF
        used = channel._pool.ledger.balancer.servers
        await wait_until_async(lambda: not any(each.calls or each.waiting for each in used.values()))

    run(servers, test)


def test_errors_of_a_server_are_the_callers(servers: Servers) -> None:
    servers.start("a")

    async def test(channel: Channel) -> None:
        call = channel.unary_unary("/test/One")(b"bad", timeout=LONG)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await call.details() == "a bad request"
        assert all(channel.servers().values())

    run(servers, test)


@pytest.mark.parametrize(
    ("kind", "method", "expected"),
    [
        ("unary_unary", "One", b"b"),
        ("unary_stream", "Many", [b"b 0", b"b 1"]),
        ("stream_unary", "Count", b"b xy"),
        ("stream_stream", "Echo", [b"b x", b"b y"]),
    ],
)
def test_calls_that_were_never_sent_go_elsewhere(servers: Servers, kind: str, method: str, expected: Any) -> None:
    servers.start("a")
    servers.start("b")

    async def test(channel: Channel) -> None:
        await connected(channel, 2)
        servers.kill("a")
        await asyncio.sleep(0.5)  # the connection is closed, without a call
        known = channel._pool.ledger.balancer.servers
        known[servers.addresses["b"]].connected = False  # so that the call goes to `a` first
        request: Any = b"2" if kind.startswith("unary") else letters("xy")
        call = getattr(channel, kind)(f"/test/{method}")(request, timeout=LONG)
        assert (await call if kind.endswith("unary") else [each async for each in call]) == expected
        assert known[servers.addresses["a"]].failures
        assert {await one(channel) for _ in range(20)} == {"b"}

    run(servers, test)


def test_a_server_that_dies_with_a_call(servers: Servers) -> None:
    servers.start("a", "die")

    async def test(channel: Channel) -> None:
        await connected(channel, 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await one(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        servers.start("b")
        await connected(channel, 1)
        assert {await one(channel) for _ in range(20)} == {"b"}

    run(servers, test)


def test_idempotent_calls_are_repeated_although_a_server_had_begun(servers: Servers) -> None:
    servers.start("a", "die")
    servers.start("b")

    async def test(channel: Channel) -> None:
        await connected(channel, 2)
        assert set(await asyncio.gather(*(one(channel) for _ in range(20)))) == {"b"}

    run(servers, test, idempotent=True)


def test_servers_come_and_go(servers: Servers) -> None:
    servers.start("a")

    async def test(channel: Channel) -> None:
        await channel.channel_ready()
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        assert await one(channel) == "a"
        servers.start("b")
        await connected(channel, 2)
        address = servers.addresses.pop("a")
        await wait_until_async(lambda: address not in channel.servers())
        assert {await one(channel) for _ in range(20)} == {"b"}
        servers.kill("b")
        with pytest.raises(grpc.aio.AioRpcError):
            await one(channel)
        waits = channel.unary_unary("/test/One")(b"", timeout=LONG, wait_for_ready=True)
        servers.start("b")
        assert await waits == b"b"

    run(servers, test)


def test_no_server(servers: Servers) -> None:
    async def test(channel: Channel) -> None:
        call = channel.unary_unary("/test/One")(b"", timeout=LONG)
        with pytest.raises(avactl_client.NoServerError, match="no server of test is known"):
            await call
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "no server of test is known"

    run(servers, test)


def test_deadlines_and_cancellation(servers: Servers) -> None:
    servers.start("a", "hang")

    async def test(channel: Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test/One")(b"", timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        call = channel.unary_unary("/test/One")(b"", timeout=LONG)
        told: list[Any] = []
        call.add_done_callback(told.append)
        used = channel._pool.ledger.balancer.servers
        await wait_until_async(lambda: any(each.calls for each in used.values()))
        assert call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (call.cancelled(), await call.code()) == (True, grpc.StatusCode.CANCELLED)
        # A caller that is cancelled cancels its call.
        waits = asyncio.ensure_future(channel.unary_unary("/test/One")(b"").response())
        await wait_until_async(lambda: any(each.calls for each in used.values()))
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await wait_until_async(lambda: not any(each.calls for each in used.values()))
        assert told == [call]

    run(servers, test)


def test_a_channel_ends_when_it_is_closed_or_forgotten(servers: Servers) -> None:
    servers.start("a")

    async def main() -> None:
        before = asyncio.all_tasks()
        channel = avactl_client.aio.channel("test:1", addresses=servers.known)
        assert await one(channel) == "a"
        assert asyncio.all_tasks() > before
        await channel.close()
        with pytest.raises(ValueError, match="closed channel"):
            await one(channel)
        method = avactl_client.aio.channel("test:1", addresses=servers.known).unary_unary("/test/One")
        gc.collect()
        assert await method(b"", timeout=LONG) == b"a"
        del method, channel
        await wait_until_async(lambda: (gc.collect(), asyncio.all_tasks())[1] == before)

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
