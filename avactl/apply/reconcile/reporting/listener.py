"""Callbacks for the progress of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from avactl.apply.reconcile.actions import ReconcileStep
from avactl.apply.reconcile.health import Health


@dataclass(slots=True)
class Listener:
    """Callbacks for the progress of a run."""

    planned: Callable[[int], None] = lambda count: None
    done: Callable[[ReconcileStep], None] = lambda step: None
    waiting: Callable[[Mapping[str, Health]], None] = lambda late: None
    lease: Callable[[str], None] = lambda holder: None
