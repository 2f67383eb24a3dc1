"""An S3 service on loopback, and helpers for data."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from avactl.cli.app import app
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.remote import RemoteStore
from tests.cli.running import Run

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED00",
    "AWS_SECRET_ACCESS_KEY": "planted/Secret+Access+Key+Of+The+Caller0",
    "AWS_REGION": "us-east-1",
}
"""Credentials that no output may contain."""
_FOREIGN = ("AWS_", "S3_", "GOOGLE_")


@pytest.fixture
def avactl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`avactl(*args, **env)` in this process, which is faster; the current directory is `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        assert cwd is None
        done = CliRunner().invoke(app, args, env={"COLUMNS": "100", "NO_COLOR": "1", **env}, prog_name="avactl")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an S3 service with the bucket `data`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials but those of the tests, and no machine that could lend some."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN):
            monkeypatch.delenv(name)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")


@pytest.fixture
def bucket(s3: str, environment: None) -> str:
    """The URL of an empty bucket, which is made anew."""
    for method, path in (("POST", "moto-api/reset"), ("PUT", "data")):
        urllib.request.urlopen(urllib.request.Request(f"{s3}/{path}", method=method), timeout=10).close()
    return "s3://data"


@pytest.fixture
def put(s3: str, bucket: str) -> Callable[[Mapping[str, bytes]], RemoteStore]:
    """Puts objects by key into the bucket."""

    def fill(objects: Mapping[str, bytes]) -> RemoteStore:
        store = open_store(bucket, s3)
        for key, content in objects.items():  # requests would take a hundred times as long
            s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object("data", key, content)
        assert isinstance(store, RemoteStore)
        return store

    return fill


def fill(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write files by path."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return directory


def manifest(path: Path, *entries: Mapping[str, object]) -> Path:
    """Write a manifest."""
    path.write_bytes(b"".join(orjson.dumps(entry) + b"\n" for entry in entries))
    return path


def lines(path: Path) -> list[dict[str, object]]:
    """Read a manifest."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]
