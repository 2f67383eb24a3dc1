"""Events that the API server accepts, and the times in them."""

from __future__ import annotations

import asyncio
import re

import pytest

from avactl.kube import events
from avactl.kube.client import ApiError, Client, UnreachableError
from avactl.kube.events import EventRecorder, events_path, new_event
from avactl.kube.timestamps import timestamp, unix_time
from tests.kube.recording_client import RecordingClient


@pytest.mark.parametrize("name", ["web-0.a", "x" * 253, "system:controller:job", "-..-", "Ä"])
def test_names_of_events_are_dns_subdomains(name: str) -> None:
    found = {new_event("c", "Binding", {"kind": "Pod", "name": name}, "r", "")["metadata"]["name"] for _ in range(99)}
    assert len(found) == 99
    for each in found:
        assert len(each) <= 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", each)


@pytest.mark.parametrize("note", ["a" * 1024, "a" * 1025, "é" * 513, "…" * 400])
def test_notes_have_at_most_1024_bytes(note: str) -> None:
    told = new_event("c", "Binding", {"kind": "Pod", "name": "p"}, "r", note)["note"]
    size = len(note.encode())
    assert len(told.encode()) <= 1024
    assert told == note if size <= 1024 else told.endswith("…")
    assert len(told.encode()) > min(size, 1024) - 3


def test_events_are_in_the_namespace_of_their_object_or_in_default() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": "vision", "name": "p", "uid": "u"}
    event = new_event("c", "Binding", pod, "Scheduled", "", warning=True)
    assert (event["regarding"], event["type"]) == (pod, "Warning")
    assert events_path(event) == "/apis/events.k8s.io/v1/namespaces/vision/events"
    node = new_event("c", "Checking", {"kind": "Node", "name": "n"}, "r", "")
    assert events_path(node) == "/apis/events.k8s.io/v1/namespaces/default/events"


def test_times_are_those_of_kubernetes() -> None:
    assert timestamp(0) == "1970-01-01T00:00:00Z"
    assert timestamp(1.25, "microseconds") == "1970-01-01T00:00:01.250000Z"
    assert unix_time("1970-01-01T00:00:01.250000Z") == 1.25
    assert unix_time(timestamp()) == pytest.approx(unix_time(timestamp(timespec="microseconds")), abs=2)


POD = {"apiVersion": "v1", "kind": "Pod", "namespace": "vision", "name": "p", "uid": "u"}


def record(client: Client, *notes: str) -> None:
    async def run() -> None:
        recorder = EventRecorder(client, "c", "Testing")
        for note in notes:
            await recorder.record(POD, "Waits", note)

    asyncio.run(run())


def test_a_repeated_event_counts_in_the_series_of_the_first() -> None:
    client = RecordingClient()
    record(client, "a", "a", "b", "a")
    assert [method for method, _, _ in client.sent] == ["POST", "PATCH", "POST", "PATCH"]
    (_, posted, first), (_, patched, second), _, (_, again, third) = client.sent
    assert patched == again == f"{posted}/{first['metadata']['name']}"
    assert (second["series"]["count"], third["series"]["count"]) == (2, 3)


def test_a_series_ends_after_minutes_without_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 300.0, 661.0))
    monkeypatch.setattr(events, "monotonic", lambda: next(now))
    client = RecordingClient()
    record(client, "a", "a", "a")
    assert [method for method, _, _ in client.sent] == ["POST", "PATCH", "POST"]


@pytest.mark.parametrize("status", [403, 404])
def test_an_event_that_cannot_be_counted_is_posted_anew(status: int) -> None:
    client = RecordingClient(PATCH=ApiError(status, "", ""))
    record(client, "a", "a")
    assert [method for method, _, _ in client.sent] == ["POST", "PATCH", "POST"]


@pytest.mark.parametrize("error", [ApiError(403, "Forbidden", ""), UnreachableError("no answer")])
def test_a_failed_event_fails_nothing_else_and_begins_no_series(error: Exception) -> None:
    client = RecordingClient(POST=error)
    record(client, "a", "a")
    assert [method for method, _, _ in client.sent] == ["POST", "POST"]


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MAX_SERIES", 2)
    client = RecordingClient()
    record(client, "a", "b", "c", "a", "c")
    assert [method for method, _, _ in client.sent] == ["POST"] * 4 + ["PATCH"]
