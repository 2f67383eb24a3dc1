"""Health check of nodes before training starts: `python -m avactl_worker.health_check`, in an init container.

The workers of a job test each other in pairs, by a small all-reduce. A worker that fails twice leaves with exit code
79, so that its Job makes another pod, on another node; the others wait for it. The whole check ends after a bounded
time: what it could not find out does not keep the training from starting.
"""

from __future__ import annotations

import threading
from typing import Callable

from avactl_worker.health_check.coordinator import Coordinator
from avactl_worker.health_check.frames import listen
from avactl_worker.health_check.member import Member, Outcome, greet
from avactl_worker.health_check.settings import FAILED, REPLACED, STARTS, Settings

__all__ = ["FAILED", "REPLACED", "STARTS", "Settings", "check"]

_OTHER_RESTARTS = 10
"""Restarts for other reasons, such as preemption, that do not count: workers that all leave at once forget how many
were replaced before, and are not to do so without end."""


def check(settings: Settings, log: Callable[[str], None]) -> Outcome:
    """Take part in the check of this job, as its coordinator too in worker 0. Returns an exit code and a message."""
    try:
        listener = listen(settings.address, settings.own_port)
    except OSError as error:
        return STARTS, f"warning: this node is not checked: {settings.address}:{settings.own_port}: {error}"
    member = Member(settings, log)
    if settings.index:
        greet(listener)
        code, message = member.run(lambda: False)
    else:
        coordinator = Coordinator(listener, settings, log)
        thread = threading.Thread(target=coordinator.serve, daemon=True)
        thread.start()
        code, message = member.run(thread.is_alive)
        thread.join()  # the others have to learn it
    listener.close()
    if code == REPLACED and settings.restarts > settings.replacements + _OTHER_RESTARTS:
        return FAILED, f"{message}; there were {settings.restarts} pods of this index before"
    return code, message
