"""A clock that only the test moves, for what needs no real process."""

from __future__ import annotations

from types import ModuleType

import pytest


class FakeClock:
    """Time in seconds."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def set_in(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> FakeClock:
        """Become the monotonic clock of modules that import it by name."""
        for module in modules:
            monkeypatch.setattr(module, "monotonic", self)
        return self
