"""The program of a stack sends no debug messages, and no stack traces."""

from __future__ import annotations

import pulumi
import pytest
from pulumi.runtime import resource

from avactl.apply.pulumi.lean_sdk import drop_debug_messages, drop_stack_traces


def test_debug_messages_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(pulumi.log, "debug", sent.append)
    drop_debug_messages()
    pulumi.log.debug("a message")
    assert sent == []


def test_stack_traces_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "_get_stack_trace", resource._get_stack_trace)
    drop_stack_traces()
    trace = resource._get_stack_trace()
    assert (len(trace.frames), resource._get_source_position(trace)) == (0, None)
