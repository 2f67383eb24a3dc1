"""A small synchronous client of the Kubernetes API for tests: plain dicts in, plain dicts and warnings out."""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from pathlib import Path
from ssl import create_default_context
from typing import Any, NamedTuple, TypeVar

import orjson

from avactl.base.object_identity import Gvk, defined_kinds
from avactl.kube.access import ClusterAccess
from avactl.kube.client import JSON, MERGE, ApiError, Client
from avactl.kube.object_client import APPLY, ApiResource, ObjectClient
from tools.controlplane.process import Closing
from tools.waiting import PATIENCE_S, wait_until

POLL = 0.05  # seconds

# RFC 9111, 5.5: code, agent, quoted text, and possibly a date; several may share one header.
_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')

Manifest = Mapping[str, Any]
_T = TypeVar("_T")


class Reply(NamedTuple):
    """An API server response: the object, and its warnings."""

    body: dict[str, Any]
    warnings: list[str]


class UnknownKindError(Exception):
    """The API server does not serve the kind."""


class KubeClient(Closing):
    """A connection to one API server with one bearer token; close it, or use it in a `with` block.

    Requests are those of `avactl.kube`, made in a thread of its own and sent once: tests see every refusal. Every
    method that asks the server raises ApiError if that refuses, UnknownKindError for a kind it does not serve, and
    UnreachableError if it does not answer. Where objects come with a namespace of their own it is taken from there,
    and `default` where there is none.
    """

    def __init__(self, url: str, token: str, ca_file: Path, headers: tuple[tuple[str, str], ...] = ()) -> None:
        context = create_default_context(cafile=ca_file)
        self._client = Client(ClusterAccess(url, context, lambda: token, headers=headers), "avactl-test")
        self._objects = ObjectClient(self._client, patience=0.0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._client.__aenter__())

    def close(self) -> None:
        """Close the connection."""
        if self._thread.is_alive():
            self._run(self._client.__aexit__())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return the object. Raises ApiError with status 404 if there is none."""
        return self.request("GET", self.path(api_version, kind, name, namespace)).body

    def find(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return the object, or None."""
        return self._run(self._objects.read(self.path(api_version, kind, name, namespace)))

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> list[dict[str, Any]]:
        """Return all objects of a kind, in one namespace or in all, each with its apiVersion and kind."""
        self.resource(api_version, kind)
        return self._run(self._objects.items(Gvk(api_version, kind), label_selector, namespace or ""))

    def create(self, manifest: Manifest, *, dry_run: bool = False, validation: str = "Strict") -> Reply:
        """Create an object. With `validation` Strict, unknown and duplicate fields are refused (Warn, Ignore)."""
        query = {"fieldValidation": validation, **_dry(dry_run)}
        resource = self.resource(manifest["apiVersion"], manifest["kind"])
        path = resource.path(manifest["metadata"].get("namespace") or "default")
        return self.request("POST", path, body=manifest, query=query)

    def refusal(self, manifest: Manifest) -> str:
        """Return why the API server would not create an object; "" if it would."""
        try:
            self.create(manifest, dry_run=True)
        except ApiError as error:
            return str(error)
        return ""

    def replace(self, manifest: Manifest, *, subresource: str = "", dry_run: bool = False) -> Reply:
        """Replace an object; `subresource` is for instance `/status`."""
        query = {"fieldValidation": "Strict", **_dry(dry_run)}
        return self.request("PUT", self._path_of(manifest) + subresource, body=manifest, query=query)

    def apply(
        self,
        manifest: Manifest,
        *,
        field_manager: str = "avactl-test",
        force: bool = False,
        dry_run: bool = False,
        validation: str = "Strict",
        subresource: str = "",
    ) -> Reply:
        """Server-side apply. Raises ApiError with status 409 if another manager owns a field, unless `force`."""
        return self.request(
            "PATCH",
            self._path_of(manifest) + subresource,
            body=manifest,
            query={
                "fieldManager": field_manager,
                "fieldValidation": validation,
                "force": str(force).lower(),
                **_dry(dry_run),
            },
            content_type=APPLY,
        )

    def patch(
        self, manifest: Manifest, *, field_manager: str = "avactl-test", subresource: str = "", dry_run: bool = False
    ) -> Reply:
        """Merge-patch the object that the manifest names with the manifest: None removes, lists are replaced."""
        query = {"fieldManager": field_manager, "fieldValidation": "Strict", **_dry(dry_run)}
        path = self._path_of(manifest) + subresource
        return self.request("PATCH", path, body=manifest, query=query, content_type=MERGE)

    def delete(
        self,
        api_version: str,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> Reply:
        """Delete an object, its dependents by `propagation` (Background, Foreground, Orphan)."""
        path = self.path(api_version, kind, name, namespace)
        return self.request("DELETE", path, query={"propagationPolicy": propagation, **_dry(dry_run)})

    def wait_gone(
        self, api_version: str, kind: str, name: str, namespace: str | None = None, *, timeout: float = PATIENCE_S
    ) -> None:
        """Wait until the object is not there; TimeoutError after `timeout` seconds."""
        wait_until(
            lambda: self.find(api_version, kind, name, namespace) is None,
            f"{kind} {namespace or ''}/{name} is gone",
            timeout=timeout,
            poll=POLL,
        )

    def wait_for(
        self,
        api_version: str,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        until: Callable[[dict[str, Any]], object],
        timeout: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """Wait until the object is there and `until` of it is true, and return it; TimeoutError after `timeout` s."""
        last: dict[str, Any] | None = None

        def found() -> dict[str, Any] | None:
            nonlocal last
            last = self.find(api_version, kind, name, namespace)
            return last if last is not None and until(last) else None

        awaited = f"{kind} {namespace or ''}/{name} is as awaited"
        return wait_until(found, awaited, timeout=timeout, poll=POLL, details=lambda: last)

    def define(self, definition: Manifest, *, timeout: float = PATIENCE_S) -> None:
        """Apply a CustomResourceDefinition, and wait until discovery lists its kind: later than it is Established."""
        self.apply(definition)
        kinds = defined_kinds(definition)
        wait_until(
            lambda: all(map(self._is_served, kinds)),
            f"{definition['metadata']['name']} is served",
            timeout=timeout,
            poll=POLL,
        )

    def resource(self, api_version: str, kind: str) -> ApiResource:
        """Return the resource of a kind by discovery; cached, and refreshed for an unknown kind."""
        if not self._is_served(Gvk(api_version, kind)):
            raise UnknownKindError(f"the API server serves no {kind} in {api_version}")
        return self._objects.resource(Gvk(api_version, kind))

    def path(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> str:
        """Return the path of an object; without a namespace, of one in `default`."""
        return self.resource(api_version, kind).path(namespace or "default", name)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
    ) -> Reply:
        """Send any other request. Raises ApiError for every status but 2xx."""
        response = self._run(self._client.exchange(method, path, body, query=query, content_type=content_type))
        warnings = [
            re.sub(r"\\(.)", r"\1", text)
            for header in response.headers.getall("Warning", ())
            for text in _WARNING.findall(header)
        ]
        return Reply(response.parse(), warnings)

    def watch(self, path: str, query: Mapping[str, str] | None = None) -> Generator[dict[str, Any], None, None]:
        """Yield the events of a watch until the API server ends it."""
        batches = self._client.watch(path, {"watch": "1", **(query or {})})

        async def next_batch() -> list[bytes] | None:
            return await anext(batches, None)

        try:
            while (lines := self._run(next_batch())) is not None:
                yield from (orjson.loads(line) for line in lines if line)
        finally:
            self._run(batches.aclose())

    def _path_of(self, manifest: Manifest) -> str:
        metadata = manifest["metadata"]
        return self.path(manifest["apiVersion"], manifest["kind"], metadata["name"], metadata.get("namespace"))

    def _is_served(self, gvk: Gvk) -> bool:
        return not self._run(self._objects.find_kinds({gvk}))

    def _run(self, request: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}
