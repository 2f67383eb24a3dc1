"""How much work something is, counted: a time would tell of what else the machine does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(action: Callable[[], Any]) -> int:
    """Calls of functions, Python's and C's, that an action makes."""
    made = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return made
