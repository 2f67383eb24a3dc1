"""`avactl cache flush`: a request to the daemon, and the wait for its result."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress

from avactl.base.quantity import format_quantity
from avactl.base.terminal import count_text
from avactl.contracts.cache import FLUSH_KEY, FlushRequest
from avactl.contracts.document import dump
from avactl.contracts.names import CACHE_FLUSH_CONFIG, CONFIG_LABEL, MANAGED_BY, MANAGER
from avactl.daemons.cache.status import StatusWriter
from avactl.kube.client import ApiError, Client, UnreachableError

_POLL_INTERVAL_S = 0.5


async def flush(
    client: Client, namespace: str, request: FlushRequest, timeout: float, tell: Callable[[str], None]
) -> int:
    """Ask for a flush and wait for it, at most `timeout` seconds; return how many files are left, -1 if unknown.

    Files that were closed before the call count. Raises ApiError and UnreachableError.
    """
    name, configs = f"flush-{uuid.uuid4().hex[:12]}", f"/api/v1/namespaces/{namespace}/configmaps"
    labels = {CONFIG_LABEL: CACHE_FLUSH_CONFIG, MANAGED_BY: MANAGER}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "data": {FLUSH_KEY: dump(request)},
    }
    await client.send("POST", configs, body)
    left, said = -1, ""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while left:
                    await asyncio.sleep(_POLL_INTERVAL_S)
                    found = (await StatusWriter(client, namespace).read()).flushes.get(name)
                    if found is None:
                        continue
                    left = found.dirty_files
                    text = f"{count_text(left, 'file')} ({format_quantity(found.dirty_bytes)} bytes) left"
                    if left and text != said:
                        tell(text)
                    said = text
    finally:
        with suppress(ApiError, UnreachableError):
            await client.send("DELETE", f"{configs}/{name}", None)
    return left
