"""One reconciler at a time for each inventory."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

from avactl.kube.client import ApiError, UnreachableError
from avactl.kube.leader import Leader, LostError
from avactl.reconcile.api import Api

_LOOK = 1.0
"""Seconds between two looks at who holds the lease."""
_REFUSED = 5.0
"""Seconds after which a refusal counts: rights that were given a moment ago are not known everywhere yet."""


def identity() -> str:
    """Names this process: machine and its boot, process namespace, process and its start."""
    return f"{os.uname().nodename}_{_place()}_{os.getpid()}_{_started(os.getpid())}_{uuid.uuid4().hex[:6]}"


def _place() -> str:
    """The process namespace of this machine since its boot; empty where that cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - the link is not to be resolved
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_dead(holder: str) -> bool:
    """Whether the holder of a lease was a process of this machine that is not there any more: nobody to wait for."""
    parts = holder.split("_")
    if len(parts) < 5 or not parts[-4] or parts[-4] != _place() or not parts[-3].isdigit():
        return False
    return _started(int(parts[-3])) != parts[-2]


class HeldError(Exception):
    """Another run has the lease, and keeps it."""


class Lease:
    """The Lease of an inventory."""

    def __init__(self, api: Api, namespace: str, inventory: str) -> None:
        self._api, self._namespace, self.name = api, namespace, f"avactl-reconcile-{inventory}"
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{self.name}"
        self.identity = identity()
        self._leader = Leader(api.client, namespace, self.name, self.identity)

    def held(self) -> bool:
        """Whether this process may write."""
        return self._leader.leading()

    async def look(self) -> tuple[str, int]:
        """Who holds it, and how often it has changed hands; -1 where there is none."""
        lease = await self._api.read(self._path)
        if lease is None:
            return "", -1
        spec = lease.get("spec") or {}
        return spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0)

    @asynccontextmanager
    async def hold(
        self, waiting: Callable[[str], None] = lambda holder: None, *, patience: float | None = None
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Hold it for the length of the block. The task inside ends, with LostError, when it could not be renewed.

        With a `patience`: raises HeldError where another has it for so many seconds, and ApiError where this account
        may not ask for it.
        """
        with suppress(ApiError, UnreachableError):
            await self._bury()
        task = asyncio.create_task(self._leader.run())
        won = asyncio.create_task(self._leader.won.wait())
        try:
            began, told = monotonic(), False
            while not (await asyncio.wait([task, won], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED))[0]:
                holder = ""
                with suppress(ApiError, UnreachableError):
                    holder = (await self.look())[0]
                if not told:
                    waiting(holder)
                    told = True
                if patience is None:
                    continue
                if self._leader.refused is not None and monotonic() - began > _REFUSED:
                    raise self._leader.refused
                if monotonic() - began > patience:
                    raise HeldError(f"another run holds the lease {self.name} ({holder or 'nobody any more'})")
            if task.done():
                await task
            yield task
        finally:
            won.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError, LostError):
                await task
            await self._leader.release()

    async def _bury(self) -> None:
        """Take the lease from a holder that was killed on this machine."""
        lease = await self._api.read(self._path)
        if lease is not None and is_dead((lease.get("spec") or {}).get("holderIdentity") or ""):
            lease["spec"]["holderIdentity"] = ""
            await self._api.client.request("PUT", self._path, lease)
