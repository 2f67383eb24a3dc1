"""Reflector: keep a local copy of one kind's objects by list and watch, with restarts after errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, Protocol

import orjson

from avactl.base.object_identity import namespaced_name
from avactl.kube import logs
from avactl.kube.client import JSON, METADATA, METADATA_LIST, ApiError, Client, SilenceError, UnreachableError

_PAGE = 500
"""Objects of one list request, so that a large cluster is never in memory as a whole."""
_TURN = 50
"""Objects after which others have their turn, the next page among them."""
_WATCH_SECONDS = (240, 480)
_BACKOFF = (0.2, 10.0)
_ABSENT = 60.0
"""Seconds between two looks for a kind that the server does not serve."""
_SHORT = 1.0
"""Seconds before which no watch ends by itself; client-go takes one that does, and told nothing, for a failure too."""


class ObjectReceiver(Protocol):
    """Receiver of the objects. All calls are synchronous, so readers never see a partial change."""

    def put(self, item: dict[str, Any]) -> None:
        """Add or update an object."""

    def remove(self, key: str) -> None:
        """Remove an object; `key` is `namespace/name`, or the name."""

    def keys(self) -> Iterable[str]:
        """Return the keys of the known objects."""


class Reflector:
    """Keeps a store in sync with the API server. `synced` is set after the first list."""

    def __init__(
        self,
        client: Client,
        path: str,
        store: ObjectReceiver,
        changed: Callable[[], None] = lambda: None,
        query: Mapping[str, str] | None = None,
        optional: bool = False,
        dispensable: bool = False,
        failed: Callable[[], None] = lambda: None,
        metadata_only: bool = False,
        page: int = _PAGE,
        most: int = 0,
    ) -> None:
        """`changed` is called after each batch; `optional`: a kind that the server may not serve; `dispensable`:
        one that the account may also not be allowed to read; `failed` is called when a list or watch has failed, before
        it is tried again; `metadata_only`: objects have nothing else; `page`: objects of one list request; `most`: as
        for `Client.page`.
        """
        self._client, self._path, self._store, self.changed = client, path, store, changed
        self._query = dict(query or {})
        self._absences = (403, 404) if dispensable else (404,) if optional else ()
        self.failed = failed
        self._accept = (METADATA_LIST, METADATA) if metadata_only else (JSON, JSON)
        self._limit, self._most = page, most
        self._version = ""
        self.synced = asyncio.Event()
        self.since = float("-inf")
        """Monotonic time at which the last completed list was requested."""
        self._absent = self._afresh = False
        self._listed: list[asyncio.Future[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self.kind = path.rsplit("/", 1)[-1]

    async def run(self) -> None:
        """Run until cancelled."""
        wait = _BACKOFF[0]
        while True:
            try:
                if self._afresh:
                    self._version, self._afresh = "", False
                if not self._version:
                    await self.load()
                if self._afresh:
                    continue
                self._absent = False
                self._watching = asyncio.ensure_future(self._watch())
                await self._watching
                wait = _BACKOFF[0]
                continue
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                continue  # only the watch was ended
            except ApiError as error:
                if error.status in self._absences:
                    self._absent = True
                    self._told()
                    await asyncio.sleep(_ABSENT * random.uniform(0.5, 1.0))  # noqa: S311
                    continue  # nothing has failed
                if error.expired:
                    self._version, wait = "", _BACKOFF[0]
                else:
                    logs.warn("watch refused", kind=self.kind, error=str(error))
                    wait = max(wait, error.retry_after)
            except SilenceError:
                continue
            except UnreachableError as error:
                logs.info("watch broken", kind=self.kind, error=str(error))
            self.failed()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
            wait = min(2 * wait, max(wait, _BACKOFF[1]))

    async def again(self) -> None:
        """List again and wait for the result, which includes all changes made before this call."""
        if self._absent:
            return
        listed = asyncio.get_running_loop().create_future()
        self._listed.append(listed)
        self._afresh = True
        if self._watching is not None:
            self._watching.cancel()
        await listed

    def _told(self) -> None:
        self.synced.set()
        for listed in self._listed:
            if not listed.done():
                listed.set_result(None)
        self._listed.clear()

    async def load(self) -> None:
        """List all objects once; a watch continues from there. Raises ApiError and UnreachableError."""
        since = monotonic()
        try:
            version, seen = await self._list({**self._query, "limit": str(self._limit)})
        except ApiError as error:
            if not error.expired:
                raise
            # The pages came more slowly than etcd forgets, as they would again; one page is read from one revision.
            version, seen = await self._list(self._query)
        for key in [key for key in self._store.keys() if key not in seen]:  # noqa: SIM118 - not a mapping
            self._store.remove(key)
        self._version, self.since = version, since
        if not self._afresh:
            self._told()
        self.changed()

    async def _list(self, query: Mapping[str, str]) -> tuple[str, set[str]]:
        """Take in all pages of a list; return its resourceVersion, and the keys of its objects."""
        seen: set[str] = set()
        version = ""
        coming: asyncio.Task[Any] | None = asyncio.ensure_future(self._page(query))
        try:
            while coming is not None:
                page = await coming
                following = page["metadata"].get("continue")
                version = page["metadata"]["resourceVersion"]
                # The API server writes the next page while this one is taken in.
                coming = asyncio.ensure_future(self._page({**query, "continue": following})) if following else None
                items = page["items"] or []
                page = None
                for number, item in enumerate(items):
                    if number % _TURN == 0:
                        await asyncio.sleep(0)
                    seen.add(namespaced_name(item))
                    self._put(item)
        finally:
            if coming is not None:
                coming.cancel()
        return version, seen

    async def _page(self, query: Mapping[str, str]) -> Any:
        return await self._client.page(self._path, query, self._accept[0], self._most)

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311
        }
        began, told = monotonic(), False
        async for lines in self._client.watch(self._path, query, self._accept[1]):
            for line in lines:
                if line:
                    self._event(orjson.loads(line))
                    told = True
            self.changed()
        if not told and monotonic() - began < _SHORT:
            raise UnreachableError(f"watch {self._path}: ended at once")

    def _event(self, event: dict[str, Any]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiError(int(item.get("code", 500)), str(item.get("reason", "")), str(item.get("message", "")))
        if kind == "DELETED":
            self._store.remove(namespaced_name(item))
        elif kind != "BOOKMARK":
            self._put(item)
        self._version = item["metadata"]["resourceVersion"]

    def _put(self, item: dict[str, Any]) -> None:
        try:
            self._store.put(item)
        except Exception as error:  # one odd object of one user must not stop the scheduling of all
            logs.error("invalid object", kind=self.kind, name=namespaced_name(item), error=repr(error))
