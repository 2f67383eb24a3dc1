"""Requests about objects of any kind, by discovery, each retried until it gets a final answer.

Every request is idempotent: applies are forced, and other writes have UID and resourceVersion as preconditions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import orjson

from avactl.base.object_identity import Gvk
from avactl.kube.client import JSON, METADATA, ApiError, Client, UnreachableError, list_all
from avactl.kube.leader import LostLeaseError

FIELD_MANAGER = "avactl"
"""Field manager of our applies, in `managedFields`."""
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
_PAGE = 500
_BACKOFF_S = (0.1, 5.0)
_NEVER = float("-inf")
_MAX_IN_FLIGHT = 64
"""Concurrent requests. API priority and fairness allows one user a few hundred."""

Body = dict[str, Any]
_T = TypeVar("_T")


class ApiResource(NamedTuple):
    """A resource of the API: path of its group version, plural name, scope."""

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of an object, or of the collection without a name; without a namespace, of all namespaces."""
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{inside}/{self.plural}" + (f"/{name}" if name else "")


class ObjectClient:
    """One cluster. Requests raise ApiError for a final refusal and UnreachableError after `patience` seconds."""

    def __init__(self, client: Client, *, patience: float = 60.0, allowed: Callable[[], bool] = lambda: True) -> None:
        """`patience`: seconds for which one request is retried; `allowed`: False once this run may not write."""
        self.client = client
        self.allowed = allowed
        self.writes = 0
        self.patience = patience
        self._slots = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._timed_out_at = _NEVER
        """When a request last ran out of patience; `_NEVER` once another was answered."""
        self._served: dict[str, dict[str, ApiResource]] = {}

    async def find_kinds(self, kinds: set[Gvk]) -> set[Gvk]:
        """Discover the resources of these kinds; return the kinds that are not served."""
        missing = {gvk.api_version for gvk in kinds if gvk.kind not in self._served.get(gvk.api_version, {})}
        await asyncio.gather(*map(self._discover, sorted(missing)))
        return {gvk for gvk in kinds if gvk.kind not in self._served.get(gvk.api_version, {})}

    def resource(self, gvk: Gvk) -> ApiResource:
        """Return the resource of a kind found by `find_kinds`. Raises KeyError."""
        return self._served[gvk.api_version][gvk.kind]

    async def get(self, gvk: Gvk, namespace: str, name: str) -> Body | None:
        """Return the object, or None."""
        return await self.read(self.resource(gvk).path(namespace, name))

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, accept: str = JSON
    ) -> Any:
        """Send a request that writes nothing, and return its answer."""
        send = partial(self.client.request, method, path, body, query=query, accept=accept)
        return await self._retry(send, conflicts=True)

    async def read(self, path: str) -> Body | None:
        """Return the object at a path, or None."""
        try:
            found: Body = await self._retry(lambda: self.client.request("GET", path), conflicts=True)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def items(self, gvk: Gvk, selector: str = "", namespace: str = "") -> list[Body]:
        """List all objects of a kind, each with its apiVersion and kind."""
        read = partial(self.client.request, "GET", self.resource(gvk).path(namespace))
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        found = await list_all(lambda asked: self._retry(partial(read, query=asked), conflicts=True), query)
        for item in found:
            item["apiVersion"], item["kind"] = gvk
        return found

    async def apply(self, body: Body, *, dry_run: bool = False, manager: str = FIELD_MANAGER) -> Body:
        """Server-side apply with force and strict validation; return the metadata of the object afterwards.

        With `dry_run`, return the whole object as it would be.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": "true"}
        # JSON is valid YAML and faster to write.
        send = partial(self.client.request, "PATCH", self._path(body), body, content_type=APPLY, query=query)
        if dry_run:
            query["dryRun"] = "All"
            asked: Body = await self._retry(send, conflicts=True)
            return asked
        # The server need not serialise the rest, nor this process parse it.
        found: Body = await self._write(partial(send, accept=METADATA), conflicts=True)
        found["apiVersion"], found["kind"] = Gvk.of(body)
        return found

    def _path(self, body: Body) -> str:
        metadata = body["metadata"]
        return self.resource(Gvk.of(body)).path(metadata.get("namespace", ""), metadata["name"])

    async def preview_removal(self, live: Body, pointers: list[str]) -> Body | None:
        """Return an object as it would be without these fields; None if it has changed since."""
        return await self._patch(live, [{"op": "remove", "path": pointer} for pointer in pointers], dry_run=True)

    async def set_owners(self, live: Body, managed_fields: list[Body]) -> bool:
        """Replace the field owners of an object, which itself stays as it is; False if it has changed since."""
        patch = [{"op": "replace", "path": "/metadata/managedFields", "value": managed_fields}]
        return await self._patch(live, patch) is not None

    async def _patch(self, live: Body, operations: list[Body], *, dry_run: bool = False) -> Body | None:
        """Apply a JSON patch to an object at its resourceVersion; None if the object has changed since."""
        version = live["metadata"]["resourceVersion"]
        # A `test` that fails would be a 422 like any invalid patch; another version is a conflict.
        patch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}, *operations]
        query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
        send = partial(self.client.request, "PATCH", self._path(live), patch, content_type=JSON_PATCH, query=query)
        try:
            found: Body = await (self._retry(send) if dry_run else self._write(send))
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise
        return found

    async def delete(self, live: Body, propagation: str) -> bool:
        """Delete an object with its UID and resourceVersion as preconditions; False if it has changed since."""
        same = {key: live["metadata"][key] for key in ("uid", "resourceVersion")}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation, "preconditions": same}
        try:
            await self._write(partial(self.client.request, "DELETE", self._path(live), options))
        except ApiError as error:
            if error.status == 404:
                return True
            if error.status == 409:
                return False
            raise
        return True

    async def wait_deleted(self, live: Body, patience: float) -> Body | None:
        """Wait until this object is deleted; return it if it still exists after `patience` seconds."""
        metadata = live["metadata"]
        ends, wait = monotonic() + patience, _BACKOFF_S[0]
        while True:
            found = await self.get(Gvk.of(live), metadata.get("namespace", ""), metadata["name"])
            if found is None or found["metadata"]["uid"] != metadata["uid"]:
                return None
            if monotonic() > ends:
                return found
            await asyncio.sleep(min(wait, 1.0))
            wait *= 2

    async def create_or_replace(self, path: str, name: str, body: Body) -> Body:
        """Create an object below `path`, or replace it if its body has a resourceVersion. Raises ApiError 409."""
        method, place = ("PUT", f"{path}/{name}") if "resourceVersion" in body["metadata"] else ("POST", path)
        query = {"fieldManager": FIELD_MANAGER}
        found: Body = await self._write(partial(self.client.request, method, place, body, query=query))
        return found

    async def _write(self, send: Callable[[], Awaitable[_T]], *, conflicts: bool = False) -> _T:
        async def once() -> _T:
            if not self.allowed():
                raise LostLeaseError("the lease was not renewed in time: another process may hold it")
            self.writes += 1
            return await send()

        return await self._retry(once, conflicts=conflicts)

    async def _retry(self, send: Callable[[], Awaitable[_T]], *, conflicts: bool = False) -> _T:
        """Send a request with retries, and return its answer.

        Retried: no answer, 429 and 5xx; with `conflicts` also 409, which a read gets only from a proxy and a forced
        apply when the object changed at that moment. Once one request has run out of patience, later requests are sent
        only once, and queued requests not at all, until a request is answered again.
        """
        began, wait = monotonic(), _BACKOFF_S[0]
        ends = began + (self.patience if self._timed_out_at == _NEVER else 0.0)
        while True:
            pause = wait
            try:
                async with self._slots:
                    if self._timed_out_at > began and monotonic() > ends:
                        raise UnreachableError("earlier requests were not answered")
                    answer = await send()
                self._timed_out_at = _NEVER
                return answer
            except UnreachableError:
                if self._timed_out(ends):
                    raise
            except orjson.JSONDecodeError as error:
                # A proxy may answer 200 with a page of its own.
                if self._timed_out(ends):
                    raise UnreachableError(f"the answer is not JSON: {error}") from None
            except ApiError as error:
                passing = error.status == 429 or error.status >= 500 or (conflicts and error.status == 409)
                if not passing or self._timed_out(ends):
                    raise
                pause = max(wait, error.retry_after)
            await asyncio.sleep(pause * random.uniform(0.7, 1.0) if pause == wait else pause)  # noqa: S311
            wait = min(2 * wait, _BACKOFF_S[1])

    def _timed_out(self, ends: float) -> bool:
        """Return whether the retries of a request have run out of time."""
        now = monotonic()
        if now > ends:
            self._timed_out_at = now
        return now > ends

    async def _discover(self, api_version: str) -> None:
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            answer = await self._retry(lambda: self.client.request("GET", root), conflicts=True)
        except ApiError as error:
            if error.status != 404:
                raise
            answer = {"resources": []}
        # A name with a slash is a subresource, listed with the kind of its input: Scale, Binding.
        self._served[api_version] = {
            entry["kind"]: ApiResource(root, entry["name"], entry["namespaced"])
            for entry in answer["resources"]
            if "/" not in entry["name"]
        }
