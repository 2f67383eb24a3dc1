"""The requests of a reconcile run: every one is safe to send again, so all are, until an answer is final."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import orjson

from avactl.kube.client import ApiError, Client, UnreachableError

FIELD_MANAGER = "avactl"
"""Who our fields belong to, in `managedFields`."""
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Of an object that was applied, its metadata is enough: the rest need not be written by the server and read here."""

_PAGE = 500
_BACKOFF = (0.1, 5.0)
_NEVER = float("-inf")
_AT_ONCE = 64
"""Requests under way at a time. The API server's priority and fairness gives one user a few hundred."""

Body = dict[str, Any]
_T = TypeVar("_T")


class Gvk(NamedTuple):
    """A kind in a version of the API."""

    api_version: str
    kind: str

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Gvk:
        """Of an object."""
        return cls(body["apiVersion"], body["kind"])

    def __str__(self) -> str:
        return f"{self.kind} ({self.api_version})"


class Resource(NamedTuple):
    """Where a kind is served."""

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        """The path of an object, or without a name of all of them; no namespace: of all namespaces."""
        inside = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{inside}/{self.plural}" + (f"/{name}" if name else "")


class LostLeaseError(Exception):
    """Somebody else may be at work now: nothing may be written."""


class Api:
    """One cluster. Reading and writing raise ApiError for a final refusal and UnreachableError after `patience` s."""

    def __init__(self, client: Client, *, patience: float = 60.0, allowed: Callable[[], bool] = lambda: True) -> None:
        """`patience`: seconds for which one request is tried again; `allowed`: whether this run may write."""
        self.client = client
        self.allowed = allowed
        self.writes = 0
        self.patience = patience
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._spent = _NEVER
        """When a request last spent its patience; `_NEVER` once another was answered."""
        self._served: dict[str, dict[str, Resource]] = {}

    async def find_kinds(self, kinds: set[Gvk]) -> set[Gvk]:
        """Learn where these kinds are served; those that are not."""
        missing = {gvk.api_version for gvk in kinds if gvk.kind not in self._served.get(gvk.api_version, {})}
        await asyncio.gather(*map(self._discover, sorted(missing)))
        return {gvk for gvk in kinds if gvk.kind not in self._served.get(gvk.api_version, {})}

    def resource(self, gvk: Gvk) -> Resource:
        """Where a kind is served, as `find_kinds` learned it. Raises KeyError."""
        return self._served[gvk.api_version][gvk.kind]

    async def get(self, gvk: Gvk, namespace: str, name: str) -> Body | None:
        """The object, or None."""
        return await self.read(self.resource(gvk).path(namespace, name))

    async def read(self, path: str) -> Body | None:
        """The object at a path, or None."""
        try:
            found: Body = await self._again(lambda: self.client.request("GET", path), conflicts=True)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    async def items(self, gvk: Gvk, selector: str = "", namespace: str = "") -> list[Body]:
        """All objects of a kind, each with its apiVersion and kind."""
        path = self.resource(gvk).path(namespace)
        query = {"limit": str(_PAGE), **({"labelSelector": selector} if selector else {})}
        found: list[Body] = []
        while True:
            asked = dict(query)
            try:
                page = await self._again(partial(self.client.request, "GET", path, query=asked), conflicts=True)
            except ApiError as error:
                if error.status != 410 or "continue" not in query:
                    raise
                # The snapshot of the first page is gone: begin anew.
                del query["continue"]
                found = []
                continue
            found += page["items"] or ()
            following = page["metadata"].get("continue")
            if not following:
                break
            query["continue"] = following
        for item in found:
            item["apiVersion"], item["kind"] = gvk
        return found

    async def apply(self, body: Body, *, dry_run: bool = False, manager: str = FIELD_MANAGER) -> Body:
        """Server-side apply with force and strict validation; the object's metadata as they are then.

        With `dry_run` the whole object as it would be.
        """
        metadata = body["metadata"]
        path = self.resource(Gvk.of(body)).path(metadata.get("namespace", ""), metadata["name"])
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": "true"}
        if dry_run:
            query["dryRun"] = "All"
            asked: Body = await self._again(
                lambda: self.client.request("PATCH", path, body, content_type=APPLY, query=query), conflicts=True
            )
            return asked
        # JSON is YAML, and quicker to write.
        found: Body = await self._write(
            lambda: self.client.request("PATCH", path, body, content_type=APPLY, query=query, accept=_METADATA),
            conflicts=True,
        )
        found["apiVersion"], found["kind"] = Gvk.of(body)
        return found

    async def take_out(self, live: Body, pointers: list[str]) -> Body | None:
        """Remove fields of an object as it was seen; None where it has changed since."""
        metadata = live["metadata"]
        path = self.resource(Gvk.of(live)).path(metadata.get("namespace", ""), metadata["name"])
        patch: list[Body] = [{"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}]
        patch += [{"op": "remove", "path": pointer} for pointer in pointers]
        query = {"fieldManager": FIELD_MANAGER}
        try:
            found: Body = await self._write(
                lambda: self.client.request("PATCH", path, patch, content_type=JSON_PATCH, query=query)
            )
        except ApiError as error:
            if error.status in (404, 409) or (error.status == 422 and "test" in str(error).lower()):
                return None
            raise
        return found

    async def delete(self, live: Body, propagation: str) -> bool:
        """Delete just the object that was seen, as it was seen; False where it has changed since."""
        metadata = live["metadata"]
        path = self.resource(Gvk.of(live)).path(metadata.get("namespace", ""), metadata["name"])
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        }
        try:
            await self._write(lambda: self.client.request("DELETE", path, options))
        except ApiError as error:
            if error.status == 404:
                return True
            if error.status == 409:
                return False
            raise
        return True

    async def gone(self, live: Body, patience: float) -> Body | None:
        """Wait until just this object is not there any more; what is there still after `patience` seconds."""
        metadata = live["metadata"]
        ends, wait = monotonic() + patience, _BACKOFF[0]
        while True:
            found = await self.get(Gvk.of(live), metadata.get("namespace", ""), metadata["name"])
            if found is None or found["metadata"]["uid"] != metadata["uid"]:
                return None
            if monotonic() > ends:
                return found
            await asyncio.sleep(min(wait, 1.0))
            wait *= 2

    async def put(self, path: str, name: str, body: Body) -> Body:
        """Create an object below `path`, or replace it where its resourceVersion says which. Raises ApiError 409."""
        known = "resourceVersion" in body["metadata"]
        query = {"fieldManager": FIELD_MANAGER}
        found: Body = await self._write(
            lambda: self.client.request(
                "PUT" if known else "POST", f"{path}/{name}" if known else path, body, query=query
            )
        )
        return found

    async def _write(self, send: Callable[[], Awaitable[_T]], *, conflicts: bool = False) -> _T:
        async def once() -> _T:
            if not self.allowed():
                raise LostLeaseError("the lease was not renewed in time: somebody else may be at work")
            self.writes += 1
            return await send()

        return await self._again(once, conflicts=conflicts)

    async def _again(self, send: Callable[[], Awaitable[_T]], *, conflicts: bool = False) -> _T:
        """The answer to a request. Tried again: no answer, 429, 5xx, and with `conflicts` 409: what reads gets it
        from a proxy in between only, a forced apply where the object changed in that moment.

        A run has many requests one after another: once one has spent its patience, those that follow are sent once,
        and those in the queue not at all, until something is answered again.
        """
        began, wait = monotonic(), _BACKOFF[0]
        ends = began + (self.patience if self._spent == _NEVER else 0.0)
        while True:
            pause = wait
            try:
                async with self._slots:
                    if self._spent > began and monotonic() > ends:
                        raise UnreachableError("other requests were not answered either")
                    answer = await send()
                self._spent = _NEVER
                return answer
            except UnreachableError:
                if self._over(ends):
                    raise
            except orjson.JSONDecodeError as error:
                # A proxy between answers 200 with a page of its own.
                if self._over(ends):
                    raise UnreachableError(f"the answer is no JSON: {error}") from None
            except ApiError as error:
                passing = error.status == 429 or error.status >= 500 or (conflicts and error.status == 409)
                if not passing or self._over(ends):
                    raise
                pause = max(wait, error.retry_after)
            await asyncio.sleep(pause * random.uniform(0.7, 1.0) if pause == wait else pause)  # noqa: S311
            wait = min(2 * wait, _BACKOFF[1])

    def _over(self, ends: float) -> bool:
        """Whether a request has been tried for long enough."""
        now = monotonic()
        if now > ends:
            self._spent = now
        return now > ends

    async def _discover(self, api_version: str) -> None:
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            answer = await self._again(lambda: self.client.request("GET", root), conflicts=True)
        except ApiError as error:
            if error.status != 404:
                raise
            answer = {"resources": []}
        # A name with a slash is a subresource, and has the kind of its input: Scale, Binding.
        self._served[api_version] = {
            entry["kind"]: Resource(root, entry["name"], entry["namespaced"])
            for entry in answer["resources"]
            if "/" not in entry["name"]
        }
