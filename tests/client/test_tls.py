"""TLS: the certificate is that of the target's host, whatever the address of the server."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import avactl_client
import avactl_client.aio
import grpc
import grpc.aio
import pytest

HOST = "embed-headless.vision"
pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, bytes]]:
    """A server with a certificate for `HOST`: its address, and the certificate."""
    folder: Path = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"]
    names = ["-subj", "/CN=test", "-addext", f"subjectAltName=DNS:{HOST}"]
    subprocess.run(["openssl", "req", "-x509", *made, *names], check=True, capture_output=True)

    def serve(request: bytes, context: Any) -> bytes:
        return str(dict(context.invocation_metadata()).get("user", "")).encode()

    started = grpc.server(ThreadPoolExecutor(2))
    handlers = {"One": grpc.unary_unary_rpc_method_handler(serve)}
    started.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    port = started.add_secure_port("127.0.0.1:0", credentials)
    started.start()
    yield f"127.0.0.1:{port}", certificate.read_bytes()
    started.stop(None).wait()


def test_calls_over_tls(server: tuple[str, bytes]) -> None:
    address, certificate = server
    credentials = grpc.ssl_channel_credentials(certificate)
    with avactl_client.channel(f"{HOST}:1", credentials=credentials, addresses=lambda: [address]) as channel:
        assert channel.unary_unary("/test/One")(b"", timeout=30, metadata=(("user", "lin"),)) == b"lin"
    with (
        avactl_client.channel("other.vision:1", credentials=credentials, addresses=lambda: [address]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        channel.unary_unary("/test/One")(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_calls_of_asyncio_over_tls(server: tuple[str, bytes]) -> None:
    address, certificate = server
    credentials = grpc.ssl_channel_credentials(certificate)

    async def main() -> bytes:
        async with avactl_client.aio.channel(
            f"{HOST}:1", credentials=credentials, addresses=lambda: [address]
        ) as channel:
            return bytes(await channel.unary_unary("/test/One")(b"", timeout=30, metadata=(("user", "lin"),)))

    assert asyncio.run(main()) == b"lin"
