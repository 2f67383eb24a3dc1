"""Declared objects that exist in the cluster although the engine's state does not know them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from avactl.base.object_identity import Gvk
from avactl.kube.client import Client
from avactl.kube.object_client import ObjectClient
from avactl.program.manifest import Manifest

PATIENCE_S = 5.0
"""Retries of one request: the engine asks the same API server next, and waits longer."""


async def find_existing(client: Client, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return the manifests whose objects exist, in the given order. Raises ApiError and UnreachableError.

    A kind that is not served has no objects: its definition may be part of the stack.
    """
    objects = ObjectClient(client, patience=PATIENCE_S)
    missing = await objects.find_kinds({Gvk.of(manifest.body) for manifest in manifests})
    served = [manifest for manifest in manifests if Gvk.of(manifest.body) not in missing]
    live = await asyncio.gather(*(objects.get(Gvk.of(m.body), m.namespace, m.name) for m in served))
    return [manifest for manifest, body in zip(served, live, strict=True) if body is not None]
