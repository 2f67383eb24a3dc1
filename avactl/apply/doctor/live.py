"""Reads from a cluster what the checks compare with the specs. Nothing is written, and no value of a Secret is kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from avactl.apply.doctor.device_plugins import PluginSetup, find_plugins, settings_maps
from avactl.apply.doctor.needs import ProgramNeeds
from avactl.contracts.names import PICKER_GROUPS
from avactl.kube.client import ApiError, Client, list_all
from avactl.program.references import keys_of

_PAGE_SIZE = "500"
_GATE_METRIC = re.compile(rb'^kubernetes_feature_enabled\{name="([A-Za-z0-9]{1,128})"[^}]*\} ([01])', re.MULTILINE)
_METRICS_LARGEST = 64 << 20
_APPLY_VERBS = ("get", "create", "patch", "delete")
"""Verbs that applying and pruning objects needs. Server-side apply is a patch."""
_MAX_CONFIG_MAPS = 20
"""Maximum number of ConfigMaps with settings of device plugins that are read."""
_PATCH_VERBS = ("get", "patch")
"""Verbs for objects that exist without avactl."""


class LiveResource(NamedTuple):
    """A served resource."""

    group: str
    plural: str
    namespaced: bool

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


@dataclass(slots=True)
class Live:
    """State of a cluster. None where the account may not read it, or where the API is not served."""

    version: str = ""
    gates: dict[str, bool] | None = None
    served: dict[tuple[str, str], LiveResource] = field(default_factory=dict)
    """Resources by API version and kind, of the API versions that were asked for."""
    classes: dict[str, dict[str, Any]] | None = None
    """Storage classes by name."""
    device_classes: frozenset[str] | None = None
    nodes: dict[str, dict[str, Any]] | None = None
    devices: dict[str, set[str]] | None = None
    """Nodes for which a DRA driver publishes devices, by driver."""
    scheduling: frozenset[str] | None = None
    """Served versions of `scheduling.k8s.io`."""
    plugins: list[PluginSetup] | None = None
    """NVIDIA's device plugins."""
    secrets: dict[tuple[str, str], frozenset[str] | None] = field(default_factory=dict)
    """Keys of the Secrets that exist, by namespace and name; None if the account may not read it."""
    objects: dict[tuple[str, str, str], frozenset[str] | None] = field(default_factory=dict)
    """ConfigMaps, with their keys, and claims that exist, by kind, namespace and name; None if it may not be read."""
    denied: dict[tuple[LiveResource, str], set[str]] = field(default_factory=dict)
    """Verbs that the account may not use, by resource and namespace (empty: all, or a cluster-scoped resource)."""


async def read(client: Client, needs: ProgramNeeds, applier: Client | None) -> Live:
    """Read what a cluster has of the needs. Raises ApiError and UnreachableError if it does not answer at all.

    `applier`: client of the account that applies the objects; without it, no rights are looked up.
    """
    live = Live()
    live.version = str((await client.request("GET", "/version"))["gitVersion"]).removeprefix("v")
    versions = {version for version, _ in needs.kinds}
    if needs.watched:
        versions |= {f"{group}/{version}" for group, every in PICKER_GROUPS.items() for version in every}
    live.served = await _served_kinds(client, versions)
    reads: list[Awaitable[None]] = [
        _read_gates(client, live),
        _read_scheduling(client, live),
        _read_classes(client, live),
        _read_devices(client, live),
        _read_nodes(client, live),
        _read_plugins(client, live, needs.tenants),
        *(_read_secret(client, live, need.namespace, need.name) for need in needs.secrets),
        *(_read_object(client, live, need.kind, need.namespace, need.name) for need in needs.objects),
    ]
    if applier is not None:
        written = {kind: namespaces for kind, namespaces in needs.kinds.items() if kind in live.served}
        reads += [_read_rights(applier, live, live.served[kind], written[kind]) for kind in written]
    await asyncio.gather(*reads)
    return live


async def _served_kinds(client: Client, versions: set[str]) -> dict[tuple[str, str], LiveResource]:
    found: dict[tuple[str, str], LiveResource] = {}

    async def discover(version: str) -> None:
        prefix = "/apis/" if "/" in version else "/api/"
        answer = await _unless_refused(lambda: client.request("GET", prefix + version), (403, 404))
        for entry in (answer or {}).get("resources") or ():
            if "/" not in entry["name"]:
                group = version.rpartition("/")[0]
                found[version, entry["kind"]] = LiveResource(group, entry["name"], bool(entry["namespaced"]))

    await asyncio.gather(*map(discover, sorted(versions)))
    return found


async def _unless_refused(ask: Callable[[], Awaitable[Any]], statuses: tuple[int, ...] = (403,)) -> Any:
    try:
        return await ask()
    except ApiError as error:
        if error.status in statuses:
            return None
        raise


async def _list(client: Client, path: str) -> list[Any] | None:
    found: list[Any] | None = await _unless_refused(
        lambda: list_all(lambda query: client.request("GET", path, query=query), {"limit": _PAGE_SIZE}), (403, 404)
    )
    return found


async def _read_gates(client: Client, live: Live) -> None:
    async def text() -> bytes:
        content = bytearray()
        async for chunk in client.stream("/metrics", {}, accept="text/plain"):
            content += chunk
            if len(content) > _METRICS_LARGEST:
                break
        return bytes(content)

    content = await _unless_refused(text, (403, 404))
    if content:
        live.gates = {name.decode(): value == b"1" for name, value in _GATE_METRIC.findall(content)}


async def _read_scheduling(client: Client, live: Live) -> None:
    group = await _unless_refused(lambda: client.request("GET", "/apis/scheduling.k8s.io"), (403, 404))
    if group is not None:
        live.scheduling = frozenset(str(each["version"]) for each in group.get("versions") or ())


async def _read_classes(client: Client, live: Live) -> None:
    items = await _list(client, "/apis/storage.k8s.io/v1/storageclasses")
    live.classes = None if items is None else {item["metadata"]["name"]: item for item in items}


async def _read_devices(client: Client, live: Live) -> None:
    classes = await _list(client, "/apis/resource.k8s.io/v1/deviceclasses")
    live.device_classes = None if classes is None else frozenset(item["metadata"]["name"] for item in classes)
    slices = await _list(client, "/apis/resource.k8s.io/v1/resourceslices")
    if slices is not None:
        live.devices = {}
        for item in slices:
            live.devices.setdefault(item["spec"]["driver"], set()).add(str(item["spec"].get("nodeName", "")))


async def _read_nodes(client: Client, live: Live) -> None:
    items = await _list(client, "/api/v1/nodes")
    live.nodes = None if items is None else {item["metadata"]["name"]: item for item in items}


async def _read_plugins(client: Client, live: Live, tenants: Collection[str]) -> None:
    items = await _list(client, "/apis/apps/v1/daemonsets")
    if items is None:
        return
    # A team could pretend that its DaemonSet is the plugin.
    items = [item for item in items if item["metadata"].get("namespace") not in tenants]
    config_maps: dict[tuple[str, str], dict[str, str] | None] = {}
    for namespace, name in sorted(settings_maps(items))[:_MAX_CONFIG_MAPS]:
        found = await _get_object(client, f"/api/v1/namespaces/{quote(namespace)}/configmaps/{quote(name)}")
        config_maps[namespace, name] = None if found is None else found.get("data") or {}
    live.plugins = find_plugins(items, config_maps)


async def _read_secret(client: Client, live: Live, namespace: str, name: str) -> None:
    found = await _get_object(client, f"/api/v1/namespaces/{quote(namespace)}/secrets/{quote(name)}")
    if found != {}:
        live.secrets[namespace, name] = None if found is None else frozenset(found.get("data") or ())


async def _read_object(client: Client, live: Live, kind: str, namespace: str, name: str) -> None:
    found = await _get_object(client, f"/api/v1/namespaces/{quote(namespace)}/{kind.lower()}s/{quote(name)}")
    if found != {}:
        live.objects[kind, namespace, name] = None if found is None else keys_of(found)


async def _get_object(client: Client, path: str) -> dict[str, Any] | None:
    """Return an object; an empty one if there is none, None if the account may not read it."""
    try:
        found: dict[str, Any] = await client.request("GET", path)
    except ApiError as error:
        if error.status == 403:
            return None
        if error.status == 404:
            return {}
        raise
    return found


async def _read_rights(client: Client, live: Live, resource: LiveResource, namespaces: set[str]) -> None:
    """Ask for all namespaces first, and for each only if that is denied."""
    verbs = _PATCH_VERBS if str(resource) == "nodes" else _APPLY_VERBS
    everywhere = {verb for verb in verbs if not await _is_allowed(client, resource, verb, "")}
    if not everywhere:
        return
    if not resource.namespaced:
        live.denied[resource, ""] = everywhere
        return
    for namespace in sorted(namespaces):
        denied = {verb for verb in everywhere if not await _is_allowed(client, resource, verb, namespace)}
        if denied:
            live.denied[resource, namespace] = denied


async def _is_allowed(client: Client, resource: LiveResource, verb: str, namespace: str) -> bool:
    attributes = {"group": resource.group, "resource": resource.plural, "verb": verb, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool((await client.request("POST", path, review))["status"]["allowed"])
