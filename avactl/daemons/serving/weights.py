"""Weights of headless services: the speed of the machine behind each address, for clients that balance themselves."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from avactl.contracts.document import DocumentError, dump, load
from avactl.contracts.names import MANAGED_BY, MANAGER, POOL_LABEL, WEIGHTS, WEIGHTS_KEY
from avactl.contracts.serving import MAX_ADDRESSES, AddressWeights, PoolSpeeds
from avactl.daemons.serving import metrics
from avactl.daemons.serving.stores import ANSWER, PAGE, Objects, endpoint_slice
from avactl.kube import logs
from avactl.kube.client import MERGE, ApiError, Client, UnreachableError
from avactl.kube.reflector import Reflector

_HEADLESS_SUFFIX = "-headless"
_WRITE_INTERVAL_S = 1.0
"""Seconds between two writes of one ConfigMap: kubelets bring it to pods within about a minute."""
_REPEAT_INTERVAL_S = 300.0
"""Seconds after which a ConfigMap is written although nothing has changed: others may have changed it."""
_RETRY_INTERVAL_S = 10.0


class Weights:
    """Keeps the ConfigMaps `NAME-weights` of all services up to date."""

    def __init__(self, client: Client, services: Objects, changed: Callable[[], None]) -> None:
        self._client, self._services = client, services
        self._slices, self._nodes = Objects(_service_keys, endpoint_slice), Objects(lambda node: ())
        self._written: dict[str, tuple[str, float]] = {}
        self._errors: dict[str, str] = {}
        own = f"{MANAGED_BY}={MANAGER},service.kubernetes.io/headless"
        self.reflectors = [
            Reflector(
                client,
                "/apis/discovery.k8s.io/v1/endpointslices",
                self._slices,
                changed,
                query={"labelSelector": own},
                page=PAGE,
                most=ANSWER,
            ),
            Reflector(
                client, "/api/v1/nodes", self._nodes, changed, query={"labelSelector": POOL_LABEL}, metadata_only=True
            ),
        ]

    async def sync(self, key: str) -> None:
        """Write the weights of a Service, if they differ from the last ones. What fails is logged and tried again."""
        service = self._services.get(key)
        notes = (service or {}).get("metadata", {}).get("annotations") or {}
        if service is None or WEIGHTS not in notes or not key.endswith(_HEADLESS_SUFFIX):
            self._written.pop(key, None)
            self._errors.pop(key, None)
            return
        text, now = self._text(key, read_speeds(notes[WEIGHTS])), monotonic()
        known, since = self._written.get(key, ("", -math.inf))
        pause = _RETRY_INTERVAL_S if key in self._errors else _REPEAT_INTERVAL_S if text == known else _WRITE_INTERVAL_S
        if now - since < pause:
            return
        self._written[key] = (text, now)
        namespace, _, name = key.removesuffix(_HEADLESS_SUFFIX).partition("/")
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}-weights"
        try:
            await self._client.request("PATCH", path, {"data": {WEIGHTS_KEY: text}}, content_type=MERGE)
        except (ApiError, UnreachableError) as error:
            metrics.ERRORS.inc()
            if self._errors.get(key) != str(error):
                logs.warn("weights not written", service=key, error=str(error)[:300])
            self._errors[key] = str(error)
            return
        self._errors.pop(key, None)

    def _text(self, key: str, speeds: Mapping[str, float]) -> str:
        found: dict[str, float] = {}
        for each in self._slices.of(key):
            for endpoint in each.get("endpoints") or ():
                node = self._nodes.get(str(endpoint.get("nodeName")))
                pool = ((node or {}).get("metadata", {}).get("labels") or {}).get(POOL_LABEL, "")
                for address in endpoint.get("addresses") or ():
                    found[_canonical_address(address)] = speeds.get(pool, 1.0)
        return dump(AddressWeights(dict(sorted(found.items())[:MAX_ADDRESSES])), indent=True)


def read_speeds(text: object) -> Mapping[str, float]:
    """Parse the relative speeds of pools; a text that the compiler has not written is as good as none."""
    try:
        return load(PoolSpeeds, text).root
    except DocumentError:
        return {}


def _canonical_address(text: Any) -> str:
    """Return the canonical form of an address, in which clients look it up."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return str(text)[:64]


def _service_keys(item: Mapping[str, Any]) -> list[str]:
    """Return the key of an EndpointSlice's Service."""
    metadata = item["metadata"]
    return [f"{metadata.get('namespace', '')}/{(metadata.get('labels') or {}).get('kubernetes.io/service-name', '')}"]
