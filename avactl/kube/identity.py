"""The identity of a Kubernetes cluster: the Clusters of the specs that were applied to it, by whatever engine.

The placement policy in each system namespace names its Cluster. Only administrators and the engine write there, and
only administrators label namespaces: members of teams cannot forge it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from avactl.base.errors import HintedError
from avactl.base.exit_codes import USAGE
from avactl.contracts import names
from avactl.contracts.document import DocumentError, load
from avactl.contracts.scheduling import ClusterName
from avactl.kube.client import JSON, METADATA_LIST, ApiError, Client, list_all

_PLATFORM = f"{names.MANAGED_BY}={names.MANAGER},!{names.TEAM_LABEL}"
"""Selector of avactl's namespaces without those of teams."""
is_name = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?").fullmatch
"""Pattern of the name of a Cluster."""


class WrongClusterError(HintedError):
    """The Kubernetes cluster is that of another Cluster than the one that was asked for."""

    exit_code = USAGE


class RequestSender(Protocol):
    """The requests of a client, or of one that retries them."""

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, accept: str = JSON
    ) -> Any: ...


class IdentityTarget(NamedTuple):
    """The Kubernetes cluster that a command talks to."""

    context: str
    """Context of the kubeconfig; empty for the account of a pod."""
    cluster: str
    """The Cluster that was asked for, else those that it carries; empty if unknown."""
    unverified: str = ""
    """The reason why the name could not be verified; empty if it was."""

    def __str__(self) -> str:
        place = f"context {self.context}" if self.context else "the pod's own cluster"
        if not self.unverified:
            return f"{place} · cluster {self.cluster}"
        return f"{place} · cluster {self.cluster or 'unknown'} (not verified: {self.unverified})"

    def as_json(self) -> dict[str, str]:
        """Return the fields of JSON outputs."""
        return {"context": self.context, "cluster": self.cluster}


def place_of(context: str) -> str:
    """Return the subject of a sentence about a Kubernetes cluster."""
    return f"the Kubernetes cluster of context {context}" if context else "this Kubernetes cluster"


async def identify(
    client: Client, asked: str = "", namespace: str = names.SYSTEM_NAMESPACE, known: Collection[str] | None = None
) -> IdentityTarget:
    """Return the target of a command; `asked`: the Cluster that it is meant for, `namespace`: its system namespace.

    `known`: other Clusters that it may carry, if there is an option for them.

    Raises WrongClusterError if the Kubernetes cluster carries others, ApiError and UnreachableError.
    """
    name, reason = await read_cluster(client, namespace)
    carried = [name] if name else []
    if not name or asked not in ("", name):
        for other in await system_namespaces(client):
            if other != namespace:
                carried += filter(None, [(await read_cluster(client, other))[0]])
    if asked and asked not in carried and set(carried) - set(known or ()):
        hint = f"select the context of {asked}: `--context {asked}`, if it has that name"
        if known is not None:
            hint += f"; `--carries {carried[0]}` if it carries both, or if {carried[0]} was renamed"
        raise WrongClusterError(f"{place_of(client.context)} carries cluster {', '.join(carried)}, not {asked}", hint)
    return IdentityTarget(client.context, asked or ", ".join(carried), "" if carried else reason)


async def system_namespaces(client: RequestSender) -> list[str]:
    """Return avactl's namespaces without those of teams and caches; none if the account may not list namespaces."""

    def ask(query: dict[str, str]) -> Any:
        return client.request("GET", "/api/v1/namespaces", query=query, accept=METADATA_LIST)

    try:
        found = await list_all(ask, {"labelSelector": _PLATFORM, "limit": "500"})
    except ApiError as error:
        if not error.forbidden:
            raise
        return []
    # The cache daemon may create ConfigMaps in its own.
    return sorted({each["metadata"]["name"] for each in found} - {names.CACHE_NAMESPACE})


async def read_cluster(client: RequestSender, namespace: str) -> tuple[str, str]:
    """Return the Cluster whose system namespace this is; else an empty string, and the reason."""
    where = f"ConfigMap {namespace}/{names.POLICY}"
    try:
        found = await client.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/{names.POLICY}")
        data = found.get("data") if isinstance(found, dict) else None
        return load(ClusterName, data.get(names.POLICY_KEY) if isinstance(data, dict) else None).cluster, ""
    except ApiError as error:
        if error.forbidden:
            return "", f"this account may not read {where}"
        if error.status != 404:
            raise
        return "", f"no {where}"
    except DocumentError:
        return "", f"{where} names no Cluster"
