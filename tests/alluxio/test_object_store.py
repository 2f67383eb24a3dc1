"""The faulty object store does what its faults say: the tests of caches rely on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

from tools.objectstore import ACCESS_KEY, SECRET_KEY, Faults, ObjectStore

DATA = bytes(range(256)) * 4000


@pytest.fixture
def store(object_store: ObjectStore) -> Iterator[ObjectStore]:
    object_store.client().create_bucket(Bucket="faults")
    object_store.client().put_object(Bucket="faults", Key="a b/ü", Body=DATA)
    object_store.reset()
    yield object_store
    object_store.faults = Faults()
    for key in object_store.client().list_objects_v2(Bucket="faults").get("Contents", ()):
        object_store.client().delete_object(Bucket="faults", Key=key["Key"])
    object_store.client().delete_bucket(Bucket="faults")


@pytest.fixture
def client(store: ObjectStore) -> Any:
    """A client through the proxy that does not try again, and does not look at checksums."""
    import boto3  # type: ignore[import-untyped]

    config = Config(
        s3={"addressing_style": "path"},
        proxies={},
        retries={"total_max_attempts": 1},
        read_timeout=2,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.client(
        "s3",
        endpoint_url=store.url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
        config=config,
    )


def get(client: Any) -> bytes:
    data: bytes = client.get_object(Bucket="faults", Key="a b/ü")["Body"].read()
    return data


def test_without_faults_it_counts(store: ObjectStore, client: Any) -> None:
    assert get(client) == DATA
    assert client.get_object(Bucket="faults", Key="a b/ü", Range="bytes=5-9")["Body"].read() == DATA[5:10]
    client.put_object(Bucket="faults", Key="new", Body=DATA)
    client.list_objects_v2(Bucket="faults")
    assert client.head_object(Bucket="faults", Key="new")["ContentLength"] == len(DATA)
    assert dict(store.traffic.requests) == {"GET": 2, "PUT": 1, "LIST": 1, "HEAD": 1}
    assert (store.traffic.sent, store.traffic.received) == (len(DATA) + 5, len(DATA))


def test_errors(store: ObjectStore, client: Any) -> None:
    store.faults = Faults(errors=1, methods=frozenset({"PUT"}))
    assert get(client) == DATA
    for number in range(20):
        with pytest.raises(ClientError, match="injected"):
            client.put_object(Bucket="faults", Key=f"new-{number}", Body=b"x")
    found = store.client().list_objects_v2(Bucket="faults", Prefix="new-").get("Contents", ())
    done = {each["Key"] for each in found}
    # The store has done some of what it says it has not.
    assert 0 < len(done) < 20


def test_hangs_and_cuts(store: ObjectStore, client: Any) -> None:
    for faults in (Faults(hangs=1), Faults(cuts=1)):
        store.faults = faults
        for _ in range(3):
            with pytest.raises((BotoCoreError, ClientError)):
                get(client)
    assert store.traffic.faults["hang"] == store.traffic.faults["cut"] == 3


def test_corruption(store: ObjectStore, client: Any) -> None:
    store.faults = Faults(corrupt=1)
    wrong = get(client)
    assert len(wrong) == len(DATA)
    assert sum(a != b for a, b in zip(wrong, DATA, strict=True)) == 1
    client.put_object(Bucket="faults", Key="new", Body=DATA)
    stored = store.client().get_object(Bucket="faults", Key="new")["Body"].read()
    assert sum(a != b for a, b in zip(stored, DATA, strict=True)) == 1


def test_latency_and_rate(store: ObjectStore, client: Any) -> None:
    store.faults = Faults(latency=0.2, rate=len(DATA) * 2)
    began = time.monotonic()
    assert get(client) == DATA
    # No less than asked; more is the machine's business.
    assert time.monotonic() - began >= 0.6
