"""The name of this process among the replicas of a daemon."""

from __future__ import annotations

import os
import uuid


def pod_name() -> str:
    """Return the pod's name (`POD_NAME`), or the machine's where there is no pod."""
    return os.environ.get("POD_NAME") or os.uname().nodename


def new_identity() -> str:
    """Return a lease holder's identity, another one for each call, as client-go's."""
    return f"{pod_name()}_{uuid.uuid4().hex[:8]}"
