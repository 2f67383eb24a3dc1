"""Lease: one active reconciler per inventory."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

from avactl.apply.reconcile.api import Api
from avactl.kube.client import MERGE, ApiError, UnreachableError
from avactl.kube.leader import REQUESTED, Leader, LostError

_LOOK = 1.0
"""Seconds between two reads of the lease."""
_REFUSED = 5.0
"""Seconds during which a 403 is retried: newly granted RBAC rules take a moment to reach all API servers."""


def identity() -> str:
    """Return the holder identity of this process: machine and boot, PID namespace, PID and start time."""
    return f"{os.uname().nodename}_{_place()}_{os.getpid()}_{_started(os.getpid())}_{uuid.uuid4().hex[:6]}"


def _place() -> str:
    """Return the machine's boot ID and PID namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 - the link is not to be resolved
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start time of a process in kernel ticks; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def is_dead(holder: str) -> bool:
    """Return whether the holder of a lease was a process of this machine that has exited; False in any doubt."""
    parts = holder.split("_")
    if len(parts) < 5 or not parts[-4] or parts[-4] != _place() or not re.fullmatch(r"[1-9][0-9]{0,9}", parts[-3]):
        return False
    pid = int(parts[-3])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it is another user's
    # /proc may hide the processes of other users (hidepid): only another start time proves that the number was reused.
    started = _started(pid)
    return bool(started and parts[-2]) and started != parts[-2]


class HeldError(Exception):
    """Another run holds the lease."""


class Lease:
    """The Lease of an inventory."""

    def __init__(self, api: Api, namespace: str, inventory: str) -> None:
        self._api, self._namespace, self.name = api, namespace, f"avactl-reconcile-{inventory}"
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{self.name}"
        self.identity = identity()
        self._leader = Leader(api.client, namespace, self.name, self.identity)

    def held(self) -> bool:
        """Return whether this process holds the lease."""
        return self._leader.leading()

    @property
    def requested(self) -> asyncio.Event:
        """Set once a run with `patience` asks for the lease that this process holds."""
        return self._leader.requested

    async def look(self) -> tuple[str, int]:
        """Return the holder and the number of transitions; -1 if the lease does not exist."""
        lease = await self._api.read(self._path)
        if lease is None:
            return "", -1
        spec = lease.get("spec") or {}
        return spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0)

    @asynccontextmanager
    async def hold(
        self, waiting: Callable[[str], None] = lambda holder: None, *, patience: float | None = None
    ) -> AsyncIterator[asyncio.Task[None]]:
        """Hold the lease for the length of the block. The inner task ends with LostError if renewal fails.

        With `patience`, asks the holder to give way, and raises HeldError if another process still holds the lease
        after so many seconds, and ApiError if the account lacks permission for it.
        """
        with suppress(ApiError, UnreachableError):
            await self._take_over()
        task = asyncio.create_task(self._leader.run())
        won = asyncio.create_task(self._leader.won.wait())
        try:
            began, reported = monotonic(), False
            while not (await asyncio.wait([task, won], timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED))[0]:
                holder = ""
                with suppress(ApiError, UnreachableError):
                    holder = (await self.look())[0]
                if not reported:
                    waiting(holder)
                    if patience is not None and holder:
                        await self._request()
                    reported = True
                if patience is None:
                    continue
                if self._leader.refused is not None and monotonic() - began > _REFUSED:
                    raise self._leader.refused
                if monotonic() - began > patience:
                    raise HeldError(f"another run holds the lease {self.name} ({holder or 'released'})")
            if task.done():
                await task
            yield task
        finally:
            won.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError, LostError):
                await task
            await self._leader.release()

    async def _request(self) -> None:
        """Ask the holder to give way; without the right to that, only wait."""
        body = {"metadata": {"annotations": {REQUESTED: self.identity}}}
        with suppress(ApiError, UnreachableError):
            await self._api.client.request("PATCH", self._path, body, content_type=MERGE)

    async def _take_over(self) -> None:
        """Take the lease from a dead process of this machine."""
        lease = await self._api.read(self._path)
        if lease is not None and is_dead((lease.get("spec") or {}).get("holderIdentity") or ""):
            lease["spec"]["holderIdentity"] = ""
            await self._api.client.request("PUT", self._path, lease)
