"""The program of a stack sends no debug messages."""

from __future__ import annotations

import pulumi
import pytest

from avactl.apply.pulumi.lean_sdk import drop_debug_messages


def test_debug_messages_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(pulumi.log, "debug", sent.append)
    drop_debug_messages()
    pulumi.log.debug("a message")
    assert sent == []
