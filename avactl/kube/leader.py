"""Leader election by a Lease, with client-go's rules and times: one replica works, the others stand by."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any

from avactl.contracts.names import GROUP
from avactl.kube import logs
from avactl.kube.client import MERGE, ApiError, Client, UnreachableError
from avactl.kube.replica import is_dead
from avactl.kube.timestamps import timestamp

DURATION, DEADLINE, RETRY = 15, 10.0, 2.0
"""Lease duration, renewal deadline and retry period, in seconds.
Source: k8s.io/component-base/config defaults of kube-scheduler."""
GIVE_WAY_S = 3 * RETRY
"""Seconds in which a process that has asked for the lease takes it."""
_POLL_S = 1.0
"""Seconds between two checks of a process that waits for the lease."""
_FORBIDDEN_S = 5.0
"""Seconds during which a 403 is retried: newly granted RBAC rules take a moment to reach all API servers."""
REQUESTED = f"{GROUP}/requested-by"
"""Annotation of a Lease: identity of a process that asks the holder to give way."""


class LostLeaseError(Exception):
    """The lease was not renewed in time; another replica may hold it."""


class HeldError(Exception):
    """Another process holds the lease."""


class Leader:
    """Leader election of one replica.

    A lease of a process of this machine that has exited (`process_identity`) is taken at once, others when they expire.
    """

    def __init__(self, client: Client, namespace: str, name: str, identity: str) -> None:
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.path = f"{self._collection}/{name}"
        self._namespace, self._name, self._identity = namespace, name, identity
        self._holder = ""
        """The other process that holds the lease; empty if there is none, as far as is known."""
        self._renewed = float("-inf")
        self._seen: tuple[Any, float] = (None, 0.0)
        self.tried = asyncio.Event()
        """Set once it is known whether the lease is to be had at once."""
        self.won = asyncio.Event()
        self.refused: ApiError | None = None
        """Why the last try was refused for good: no right to it, no namespace for it."""
        self.requested = asyncio.Event()
        """Set once another process has asked for the lease that this one holds."""
        self.since = float("inf")
        """Monotonic time at which the lease was acquired."""

    def leading(self) -> bool:
        """Return True while this replica may act: its lease is younger than the deadline."""
        return monotonic() - self._renewed < DEADLINE

    async def run(self) -> None:
        """Acquire and renew the lease. Raises LostLeaseError when it is lost."""
        while True:
            began = monotonic()
            try:
                async with asyncio.timeout(DEADLINE / 2):
                    held = await self._try()
                self.refused = None
            except (ApiError, UnreachableError, TimeoutError) as error:
                logs.warn("lease not renewed", error=str(error))
                held = False
                self.refused = error if isinstance(error, ApiError) and error.status in (401, 403, 404) else None
            if held:
                # Counted from before the request: its answer may have taken long.
                self._renewed = began
                if not self.won.is_set():
                    logs.info("leading", lease=self._name, identity=self._identity)
                    self.since = monotonic()
                    self.won.set()
            elif self.won.is_set() and not self.leading():
                raise LostLeaseError(f"lease {self._name} was not renewed for {DEADLINE:g} s")
            self.tried.set()
            await asyncio.sleep(RETRY * random.uniform(0.8, 1.2))  # noqa: S311

    @asynccontextmanager
    async def hold(self, patience: float, waiting: Callable[[str], None] = lambda holder: None) -> AsyncIterator[None]:
        """Hold the lease for the length of the block. The block must check `leading` before it writes.

        If another process holds it, calls `waiting` with its identity and asks it to give way. Raises HeldError if it
        still holds it after `patience` seconds, and ApiError if the account lacks permission for the lease.
        """
        running = asyncio.create_task(self.run())
        won = asyncio.create_task(self.won.wait())
        try:
            ends, forbidden, asked = monotonic() + patience, monotonic() + _FORBIDDEN_S, ""
            while not (await asyncio.wait([running, won], timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED))[0]:
                if self._holder not in ("", asked):  # known only once a try was answered; another replica may take over
                    asked = self._holder
                    waiting(asked)
                    await self._request()
                if self.refused is not None and monotonic() > forbidden:
                    raise self.refused
                if monotonic() > ends:
                    raise HeldError(f"another run holds the lease {self._name} ({self._holder or 'released'})")
            if running.done():
                await running
            yield
        finally:
            won.cancel()
            running.cancel()
            with suppress(asyncio.CancelledError, LostLeaseError):
                await running
            await self.release()

    async def _request(self) -> None:
        """Ask the holder to give way; without the permission for that, only wait."""
        if self._holder:
            body = {"metadata": {"annotations": {REQUESTED: self._identity}}}
            with suppress(ApiError, UnreachableError):
                await self._client.send("PATCH", self.path, body, content_type=MERGE)

    async def release(self) -> None:
        """Release the lease, so that another replica can take over at once."""
        if not self.leading():
            return
        # What is on its way still must not be sent once another leads.
        self._renewed = float("-inf")
        try:
            lease = await self._client.request("GET", self.path, timeout=2.0)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.request("PUT", self.path, lease, timeout=2.0)
        except (ApiError, UnreachableError):
            pass

    async def _try(self) -> bool:
        try:
            lease = await self._client.request("GET", self.path)
        except ApiError as error:
            if error.status != 404:
                raise
            return await self._write(
                "POST",
                self._collection,
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": self._name, "namespace": self._namespace},
                    "spec": self._spec(0, None),
                },
            )
        spec = lease.get("spec") or {}
        holder, changes = spec.get("holderIdentity"), spec.get("leaseTransitions") or 0
        notes = lease["metadata"].get("annotations") or {}
        if holder == self._identity:
            if REQUESTED in notes:
                self.requested.set()
            lease["spec"] = self._spec(changes, spec.get("acquireTime"))
        else:
            # Clocks of other machines are not to be trusted: what counts is for how long it has not changed.
            record = (holder, spec.get("renewTime"))
            if record != self._seen[0]:
                self._seen = (record, monotonic())
            remaining = (spec.get("leaseDurationSeconds") or DURATION) - (monotonic() - self._seen[1])
            if holder and remaining > 0 and not is_dead(holder):
                if holder != self._holder:
                    logs.info("standing by", lease=self._name, holder=holder)
                self._holder = holder
                return False
            self._holder = ""
            lease["spec"] = self._spec(changes + 1, None)
            notes.pop(REQUESTED, None)
        return await self._write("PUT", self.path, lease)

    async def _write(self, method: str, path: str, lease: dict[str, Any]) -> bool:
        try:
            await self._client.request(method, path, lease)
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    def _spec(self, transitions: int, acquired: str | None) -> dict[str, Any]:
        now = timestamp(timespec="microseconds")
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION,
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
