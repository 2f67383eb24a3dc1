"""Objects that exist in the cluster although the engine's state does not know them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from avactl.apply.pulumi.stack_state import ObjectRef
from avactl.kube.client import Client
from avactl.kube.object_client import ObjectClient

PATIENCE_S = 5.0
"""Retries of one request: the engine asks the same API server next, and waits longer."""


async def find_existing(client: Client, wanted: Iterable[ObjectRef]) -> dict[ObjectRef, Mapping[str, Any]]:
    """Return the objects that exist, in the given order. Raises ApiError and UnreachableError.

    A kind that is not served has no objects: its definition may be part of the stack.
    """
    refs = list(wanted)
    objects = ObjectClient(client, patience=PATIENCE_S)
    missing = await objects.find_kinds({ref.gvk for ref in refs})
    served = [ref for ref in refs if ref.gvk not in missing]
    live = await asyncio.gather(*(objects.get(ref.gvk, ref.namespace, ref.name) for ref in served))
    return {ref: body for ref, body in zip(served, live, strict=True) if body is not None}
