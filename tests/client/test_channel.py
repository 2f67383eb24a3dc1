"""The balanced channel with real servers: calls of each kind, failures, and servers that come and go."""

from __future__ import annotations

import gc
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avactl_client
import grpc
import pytest
from avactl_client import Channel
from avactl_client.names import TargetError, WeightsFile, resolve, split

from tests.client.servers import Servers, connected
from tools.controlplane.process import free_port
from tools.waiting import wait_until

LONG = 30.0
"""Deadline that no call reaches."""


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = Servers()
    yield found
    found.close()


@pytest.fixture
def channel(servers: Servers) -> Iterator[Channel]:
    """A channel to the servers, of which `a` is there from the start."""
    servers.start("a")
    with avactl_client.channel("test:1", addresses=servers.known, interval=0.2) as found:
        yield found


def one(channel: Channel) -> str:
    return bytes(channel.unary_unary("/test/One")(b"", timeout=LONG)).decode()


def test_calls_of_each_kind(servers: Servers, channel: Channel) -> None:
    assert channel.unary_unary("/test/One")(b"", timeout=LONG) == b"a"
    response, call = channel.unary_unary("/test/One").with_call(b"", timeout=LONG)
    assert (response, call.code(), dict(call.trailing_metadata())["server"]) == (b"a", grpc.StatusCode.OK, "a")
    future = channel.unary_unary("/test/One").future(b"", timeout=LONG)
    assert (future.result(LONG), future.exception(), future.code()) == (b"a", None, grpc.StatusCode.OK)
    stream = channel.unary_stream("/test/Many")(b"3", timeout=LONG)
    assert list(stream) == [b"a 0", b"a 1", b"a 2"]
    assert (stream.code(), stream.done(), stream.is_active()) == (grpc.StatusCode.OK, True, False)
    letters = [letter.encode() for letter in "abcdefghijklmnopqrstuvwxyz"]
    assert channel.stream_unary("/test/Count")(iter(letters), timeout=LONG) == b"a abcdefghijklmnopqrstuvwxyz"
    assert list(channel.stream_stream("/test/Echo")(iter(letters))) == [b"a " + each for each in letters]
    # The measurements are complete: no call is outstanding.
    wait_until(lambda: all(each.calls == each.waiting == 0 for each in channel._pool._ledger.balancer.servers.values()))


def test_serializers_and_interceptors(servers: Servers, channel: Channel) -> None:
    class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc,unused-ignore]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            seen.append(details.method)
            return continuation(details, request)

    seen: list[str] = []
    method = grpc.intercept_channel(channel, Interceptor()).unary_unary("/test/One", str.encode, bytes.decode)
    assert (method("", timeout=LONG), seen) == ("a", ["/test/One"])


def test_errors_of_a_server_are_the_callers(servers: Servers, channel: Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/test/One")(b"bad", timeout=LONG)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    future = channel.unary_unary("/test/One").future(b"bad", timeout=LONG)
    assert future.exception(LONG).details() == "a bad request"
    assert all(channel.servers().values())


def test_a_server_that_dies_with_a_call_gets_no_more_and_others_answer(servers: Servers, channel: Channel) -> None:
    connected(channel, 1)
    servers.restart("a", "die")
    with pytest.raises(grpc.RpcError) as caught:  # the server had begun: once is safe, twice is not
        one(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    servers.start("b")
    connected(channel, 1)
    assert {one(channel) for _ in range(30)} == {"b"}


def test_idempotent_calls_are_repeated_although_a_server_had_begun(servers: Servers) -> None:
    servers.start("a", "die")
    servers.start("b")
    with avactl_client.channel("test:1", addresses=servers.known, idempotent=True) as channel:
        connected(channel, 2)
        futures = [channel.unary_unary("/test/One").future(b"", timeout=LONG) for _ in range(20)]
        assert {each.result(LONG) for each in futures} == {b"b"}
        assert {one(channel) for _ in range(20)} == {"b"}


def test_a_stream_that_breaks_after_a_response_is_not_repeated(servers: Servers) -> None:
    servers.start("a")
    with avactl_client.channel("test:1", addresses=servers.known, idempotent=True, interval=0.2) as channel:
        requests: queue.Queue[bytes] = queue.Queue()
        stream = channel.stream_stream("/test/Echo")(iter(requests.get, b""), timeout=LONG)
        requests.put(b"x")
        assert next(stream) == b"a x"
        servers.start("b")
        connected(channel, 2)
        requests.put(b"die")
        with pytest.raises(grpc.RpcError):
            next(stream)
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        requests.put(b"")
        assert {one(channel) for _ in range(10)} == {"b"}


def test_calls_that_were_never_sent_go_elsewhere(servers: Servers) -> None:
    """The client does not know yet that a server is away: no call fails."""
    servers.start("a")
    servers.start("b")
    with avactl_client.channel("test:1", addresses=servers.known) as channel:
        connected(channel, 2)
        servers.kill("a")
        time.sleep(0.5)  # the connection is closed, without a call
        assert sum(channel.servers().values()) == 2
        balancer = channel._pool._ledger.balancer
        balancer.servers[servers.addresses["b"]].connected = False  # so that each kind of call goes to `a` first
        method = channel.unary_unary("/test/One")
        assert method.future(b"", timeout=LONG).result(LONG) == b"b"
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            _only(channel, servers.addresses["a"])
            request: Any = b"2" if kind.startswith("unary") else iter([b"x", b"y"])
            name = {"unary_unary": "One", "unary_stream": "Many", "stream_unary": "Count", "stream_stream": "Echo"}
            found = getattr(channel, kind)(f"/test/{name[kind]}")(request, timeout=LONG)
            expected = {
                "unary_unary": b"b",
                "unary_stream": [b"b 0", b"b 1"],
                "stream_unary": b"b xy",
                "stream_stream": [b"b x", b"b y"],
            }
            assert (found if kind.endswith("unary") else list(found)) == expected[kind]
            assert balancer.servers[servers.addresses["a"]].failures


def _only(channel: Channel, address: str) -> None:
    """Make the client believe that one server gets calls, and no other."""
    for server in channel._pool._ledger.balancer.servers.values():
        server.connected, server.failures, server.retry_at = server.address == address, 0, 0.0


def test_a_server_that_refuses_is_out_and_comes_back(servers: Servers, channel: Channel) -> None:
    servers.restart("a", "unavailable")
    servers.start("b")
    connected(channel, 2)
    calls = [channel.unary_unary("/test/One").future(b"", timeout=LONG) for _ in range(200)]
    failed = [each for each in calls if each.exception(LONG) is not None]
    assert {each.details() for each in failed} <= {"the queue is full"}
    assert len(failed) < 100
    assert {one(channel) for _ in range(50)} == {"b"}
    servers.kill("a")
    servers.start("a")
    wait_until(lambda: {one(channel) for _ in range(20)} == {"a", "b"})


def test_all_servers_away_and_back(servers: Servers, channel: Channel) -> None:
    assert one(channel) == "a"
    servers.kill("a")
    with pytest.raises(grpc.RpcError) as caught:
        one(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    found: list[Any] = []
    waits = threading.Thread(
        target=lambda: found.append(channel.unary_unary("/test/One")(b"", timeout=LONG, wait_for_ready=True))
    )
    waits.start()
    servers.start("a")
    waits.join()
    assert found == [b"a"]


def test_servers_come_and_go_with_dns(servers: Servers, channel: Channel) -> None:
    assert one(channel) == "a"
    servers.start("b")
    wait_until(lambda: {one(channel) for _ in range(10)} == {"a", "b"})
    address = servers.addresses.pop("a")
    wait_until(lambda: list(channel.servers()) == list(servers.addresses.values()))
    assert {one(channel) for _ in range(20)} == {"b"}
    assert address not in channel.servers()
    # Without an answer of DNS, the known servers stay.
    servers.addresses.clear()
    time.sleep(0.5)
    assert one(channel) == "b"


def test_no_server() -> None:
    refused = f"127.0.0.1:{free_port()}"
    none: list[str] = []
    for addresses, problem in ((none, "no server of test is known"), ([refused], "failed to connect")):
        with avactl_client.channel("test:1", addresses=addresses.copy) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                one(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert str(caught.value.details()).startswith(problem)
    with (
        avactl_client.channel("does-not-exist.invalid:1") as channel,
        pytest.raises(avactl_client.NoServerError, match=r"^does-not-exist\.invalid: "),
    ):
        one(channel)


def test_deadlines_and_cancellation(servers: Servers) -> None:
    servers.start("a", "hang")
    with avactl_client.channel("test:1", addresses=servers.known) as channel:
        connected(channel, 1)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/test/One")(b"", timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        future = channel.unary_unary("/test/One").future(b"", timeout=LONG)
        told: list[Any] = []
        future.add_done_callback(told.append)
        with pytest.raises(grpc.FutureTimeoutError):
            future.result(0.1)
        assert future.cancel()
        with pytest.raises(grpc.FutureCancelledError):
            future.result(LONG)
        wait_until(lambda: told == [future])
        assert future.cancelled()


def test_an_address_that_does_not_answer_delays_no_call(servers: Servers) -> None:
    """A machine that is gone: no connection, and no refusal either."""
    servers.start("b")
    gone = "192.0.2.1:1"  # RFC 5737: for documentation, routed nowhere
    with avactl_client.channel("test:1", addresses=lambda: [gone, *servers.known()]) as channel:
        assert {one(channel) for _ in range(20)} == {"b"}
        assert channel.servers()[gone] is False


def test_connectivity_is_reported(servers: Servers, channel: Channel) -> None:
    states: list[Any] = []
    channel.subscribe(states.append)
    wait_until(lambda: states and states[-1] is grpc.ChannelConnectivity.READY)
    grpc.channel_ready_future(channel).result(LONG)
    channel.unsubscribe(states.append)


def test_a_channel_ends_when_it_is_closed_or_forgotten(servers: Servers) -> None:
    servers.start("a")
    channel = avactl_client.channel("test:1", addresses=servers.known)
    assert one(channel) == "a"
    channel.close()
    with pytest.raises(ValueError, match="closed channel"):
        one(channel)
    method = avactl_client.channel("test:1", addresses=servers.known).unary_unary("/test/One")
    gc.collect()
    assert method(b"", timeout=LONG) == b"a"  # stubs keep their channel
    del method, channel
    gc.collect()
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "avactl-client"])


def test_weights_of_the_file_decide_first(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    servers.start("a")
    servers.start("b")
    file.write_text(json.dumps({servers.addresses["a"]: 1, servers.addresses["b"]: 9}))
    with avactl_client.channel("test:1", addresses=servers.known, weights=str(file)) as channel:
        connected(channel, 2)
        pool = channel._pool
        counted = Counter()  # type: Counter[str]
        for _ in range(200):  # without responses there are no measurements
            attempt = pool.begin([], None, wait=False)
            counted[attempt.server.address] += 1
            pool.end(attempt, None, False)
    assert counted[servers.addresses["b"]] > 5 * counted[servers.addresses["a"]]


@pytest.mark.parametrize(
    "text",
    ["1" + 400 * "0", "1e-320", "1e308", "1e999", "NaN", 100_000 * "["],
    ids=["no float", "tiny", "huge", "infinite", "none", "deep"],
)
def test_weights_that_no_server_has(tmp_path: Path, text: str) -> None:
    """Others of the team may write the ConfigMap: a number without a float, or a text too deep, is no weight."""
    file = tmp_path / "weights.json"
    file.write_text(f'{{"10.0.0.1": {text}}}')
    assert WeightsFile(str(file)).of(["10.0.0.1:80"]) == {"10.0.0.1:80": 0.0}


def test_the_weights_file(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    weights = WeightsFile(str(file))
    addresses = ["10.0.0.1:1", "10.0.0.2:1", "[fd00::1]:1"]
    assert weights.of(addresses) == dict.fromkeys(addresses, 0.0)
    file.write_text('{"10.0.0.1": 2, "10.0.0.2:1": 3, "fd00::1": 4, "10.0.0.3": 5}')
    assert weights.of(addresses) == dict(zip(addresses, (2.0, 3.0, 4.0), strict=True))
    other = tmp_path / "other"
    other.write_text('{"10.0.0.1": -1, "10.0.0.2": "3", "fd00::1": true}')
    other.replace(file)
    assert weights.of(addresses) == dict.fromkeys(addresses, 0.0)
    file.write_text("[")
    assert weights.of(addresses) == dict.fromkeys(addresses, 0.0)


def test_targets() -> None:
    assert split("classify-headless.vision:8500") == ("classify-headless.vision", 8500)
    assert split("dns:///classify:80") == split("dns:classify:80") == ("classify", 80)
    assert split("[fd00::1]:80") == ("fd00::1", 80)
    for target in ("classify", "classify:", ":80", "classify:http", "classify:0", "classify:70000", "fd00::1:80", ""):
        with pytest.raises(TargetError, match="is not HOST:PORT"):
            avactl_client.channel(target)
    with pytest.raises(ValueError, match="interval 0 is not a time"):
        avactl_client.channel("classify:80", interval=0)
    assert "127.0.0.1:80" in resolve("localhost", 80)
    assert resolve("::1", 80) == ["[::1]:80"]
