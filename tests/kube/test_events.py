"""Events that the API server accepts, and the times in them."""

from __future__ import annotations

import re

import pytest

from avactl.kube.events import events_path, new_event
from avactl.kube.timestamps import timestamp, unix_time


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
