"""A small synchronous client of the Kubernetes API for tests: plain dicts in, plain dicts and warnings out."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from ssl import create_default_context
from typing import Any, NamedTuple

import httpx
import orjson

from tools.controlplane.process import Closing
from tools.waiting import PATIENCE_S, wait_until

TIMEOUT = 30.0  # seconds for one request
POLL = 0.05  # seconds

# RFC 9111, 5.5: code, agent, quoted text, and possibly a date; several may share one header.
_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')

Manifest = Mapping[str, Any]


class Reply(NamedTuple):
    """An API server response: the object, and its warnings."""

    body: dict[str, Any]
    warnings: list[str]


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status, `reason` the machine's word, `body` the Status object."""

    def __init__(self, status: int, body: dict[str, Any], warnings: list[str]) -> None:
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', '')}")
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.body = body
        self.warnings = warnings


class UnknownKindError(Exception):
    """The API server does not serve the kind."""


class Resource(NamedTuple):
    """A resource of the API: root of its group version, plural name, and whether it is namespaced."""

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The URL path of an object, or without a name of all of them; no namespace means all, or `default`."""
        inside = f"/namespaces/{namespace or 'default'}" if self.namespaced and (namespace or name) else ""
        return f"{self.root}{inside}/{self.plural}" + (f"/{name}" if name else "") + subresource


class KubeClient(Closing):
    """A connection to one API server with one bearer token; close it, or use it in a `with` block.

    Every method that asks the server raises ApiError if that refuses, UnknownKindError for a kind it does not serve,
    and httpx.TransportError if it does not answer. Where objects come with a namespace of their own it is taken
    from there, and `default` where there is none.
    """

    def __init__(self, url: str, token: str, ca_file: Path) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=create_default_context(cafile=ca_file),
            timeout=TIMEOUT,
            # Proxies from the environment cannot reach loopback.
            trust_env=False,
        )
        self._resources: dict[str, dict[str, Resource]] = {}

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
        """Return the object. Raises ApiError with status 404 if there is none."""
        return self.request("GET", self.resource(api_version, kind).path(namespace, name)).body

    def find(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return the object, or None."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> list[dict[str, Any]]:
        """Return all objects of a kind, in one namespace or in all, each with its apiVersion and kind."""
        query = {"labelSelector": label_selector} if label_selector else {}
        body = self.request("GET", self.resource(api_version, kind).path(namespace), query=query).body
        return [{"apiVersion": api_version, "kind": kind, **item} for item in body["items"]]

    def create(self, manifest: Manifest, *, dry_run: bool = False, validation: str = "Strict") -> Reply:
        """Create an object. With `validation` Strict, unknown and duplicate fields are refused (Warn, Ignore)."""
        resource, namespace, _ = self._address(manifest)
        query = {"fieldValidation": validation, **_dry(dry_run)}
        path = resource.path(namespace or ("default" if resource.namespaced else None))
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
        resource, namespace, name = self._address(manifest)
        query = {"fieldValidation": "Strict", **_dry(dry_run)}
        return self.request("PUT", resource.path(namespace, name, subresource), body=manifest, query=query)

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
        resource, namespace, name = self._address(manifest)
        return self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=manifest,
            query={
                "fieldManager": field_manager,
                "fieldValidation": validation,
                "force": str(force).lower(),
                **_dry(dry_run),
            },
            # JSON is valid YAML and faster to write.
            content_type="application/apply-patch+yaml",
        )

    def patch(
        self, manifest: Manifest, *, field_manager: str = "avactl-test", subresource: str = "", dry_run: bool = False
    ) -> Reply:
        """Merge-patch the object that the manifest names with the manifest: None removes, lists are replaced."""
        resource, namespace, name = self._address(manifest)
        query = {"fieldManager": field_manager, "fieldValidation": "Strict", **_dry(dry_run)}
        path = resource.path(namespace, name, subresource)
        return self.request("PATCH", path, body=manifest, query=query, content_type="application/merge-patch+json")

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
        path = self.resource(api_version, kind).path(namespace, name)
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
        spec = definition["spec"]
        versions = [f"{spec['group']}/{each['name']}" for each in spec["versions"] if each["served"]]
        wait_until(
            lambda: all(spec["names"]["kind"] in self._discover(version) for version in versions),
            f"{definition['metadata']['name']} is served",
            timeout=timeout,
            poll=POLL,
        )

    def resource(self, api_version: str, kind: str) -> Resource:
        """Return the resource of a kind by discovery; cached, and refreshed for an unknown kind."""
        known = self._resources.get(api_version, {})
        if kind not in known:
            known = self._resources[api_version] = self._discover(api_version)
        if kind not in known:
            raise UnknownKindError(f"the API server serves no {kind} in {api_version}")
        return known[kind]

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Reply:
        """Send any other request. Raises ApiError for every status but 2xx."""
        content = None if body is None else orjson.dumps(body)
        response = self._http.request(
            method, path, content=content, params=dict(query or {}), headers={"Content-Type": content_type}
        )
        answer = _object(response)
        warnings = [
            re.sub(r"\\(.)", r"\1", text)
            for header in response.headers.get_list("Warning")
            for text in _WARNING.findall(header)
        ]
        if not response.is_success:
            raise ApiError(response.status_code, answer, warnings)
        return Reply(answer, warnings)

    def _address(self, manifest: Manifest) -> tuple[Resource, str | None, str]:
        metadata = manifest["metadata"]
        resource = self.resource(manifest["apiVersion"], manifest["kind"])
        return resource, metadata.get("namespace"), metadata.get("name", "")

    def _discover(self, api_version: str) -> dict[str, Resource]:
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            served = self.request("GET", root).body["resources"]
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        # A name with a slash is a subresource, listed with the kind of its input: Scale, Binding.
        return {
            item["kind"]: Resource(root, item["name"], item["namespaced"]) for item in served if "/" not in item["name"]
        }


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        answer = None
    # Health checks and proxies in between answer in plain text.
    return answer if isinstance(answer, dict) else {"message": response.text.strip()}
