"""moto's server in a process of its own, behind the proxy."""

from __future__ import annotations

import os
import sys
from typing import Any, Self

import httpx

from tools.controlplane import process
from tools.controlplane.folder import OwnedFolder
from tools.objectstore.proxy import Faults, Proxy, Traffic
from tools.waiting import wait_until

START_TIMEOUT = 60.0  # seconds
BUFFER = str(1024 * 1024)  # bytes
ACCESS_KEY, SECRET_KEY = "test", "test-secret"


class ObjectStore:
    """An S3 endpoint, empty at first, in a `with` block. It takes any credentials, and paths with the bucket first."""

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed

    def __enter__(self) -> Self:
        self._folder = OwnedFolder()
        port = process.free_port()
        self.origin = f"http://127.0.0.1:{port}"
        """The store itself, without faults and counting."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        log = self._folder.path / "log"
        # Each object larger than the buffer is an open file.
        environment = {"PATH": os.defpath, "TMPDIR": str(self._folder.path), "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": BUFFER}
        self._server = process.spawn(command, log, environment, cwd=self._folder.path)
        try:
            wait_until(
                self._answers,
                "moto's server answers",
                timeout=START_TIMEOUT,
                details=lambda: process.tail(log, 20),
                failed=lambda: self._server.poll() is not None and "it has ended",
            )
            self._proxy = Proxy(self.origin, self._seed).__enter__()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.__exit__()
        self._close()

    @property
    def url(self) -> str:
        """The endpoint, through the proxy."""
        return self._proxy.url

    @property
    def faults(self) -> Faults:
        """Faults of requests that begin from now on; none at first."""
        return self._proxy.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._proxy.faults = faults

    @property
    def traffic(self) -> Traffic:
        """What passed the proxy since the start or the last `reset`."""
        return self._proxy.traffic

    def reset(self) -> None:
        """Count from zero."""
        self._proxy.traffic = Traffic()

    def client(self, url: str | None = None) -> Any:
        """A boto3 client of the store itself, or of another endpoint, such as `url`."""
        import boto3  # type: ignore[import-untyped]
        from botocore.config import Config  # type: ignore[import-untyped]

        return boto3.client(
            "s3",
            endpoint_url=url or self.origin,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, proxies={}),
        )

    def _answers(self) -> bool:
        try:
            return httpx.get(self.origin, trust_env=False).status_code < 500
        except httpx.TransportError:
            return False

    def _close(self) -> None:
        process.terminate(self._server, grace=0)
        self._folder.remove()
