"""Exposure → an HTTPRoute or an Ingress, and the rule of the NetworkPolicy that lets the gateway in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from avactl.kinds.base import SAFE_ANNOTATIONS
from avactl.kinds.exposure.spec import NAMESPACE, POOL, ROUTES
from avactl.kinds.lowering import k8s
from avactl.kinds.manifest import Body, Manifest
from avactl.kinds.program import Item, Program

ISSUER = "cert-manager.io/cluster-issuer"
"""Annotation of an Ingress by which cert-manager makes the Secret in `spec.tls`.

Source: https://cert-manager.io/docs/usage/ingress/
"""


def routes(
    item: Item, program: Program, service: str, port: int, *, component: str, backend: Body | None = None
) -> list[Manifest]:
    """Return the route to port `http`, with number `port`, of a Service; none if the spec exposes nothing.

    `backend`: another backend of a Gateway's route than the Service.
    """
    wanted, offered = item.spec.expose, program.cluster_spec(item.cluster).exposure
    if wanted is None or offered is None:
        return []
    notes: dict[str, str] = {}
    if offered.gateway is not None:
        version, kind = "gateway.networking.k8s.io/v1", "HTTPRoute"
        spec = _route(wanted, offered, backend or {"name": service, "port": port})
    else:
        version, kind, spec = "networking.k8s.io/v1", "Ingress", _ingress(item, wanted, offered, service)
        issuer = issuer_of(wanted, offered)
        notes = {**offered.ingress.annotations, **({ISSUER: issuer} if issuer else {})}
    made = k8s.manifest(item, item.cluster, version, kind, item.name, namespace=item.ns, component=component, spec=spec)
    # Controllers of many makes take orders from annotations of routes: configuration of the proxy that all teams share,
    # and issuers of certificates. So they are the platform's, without those of the spec.
    inherited = made.body["metadata"].pop("annotations", {})
    notes = {**{key: inherited[key] for key in SAFE_ANNOTATIONS if key in inherited}, **notes}
    if notes:
        made.body["metadata"]["annotations"] = notes
    return [made]


def issuer_of(wanted: Any, offered: Any) -> str | None:
    """Return the ClusterIssuer that makes a host's certificate behind an Ingress controller; None: there is none."""
    if offered.ingress is None or (wanted.tls is not None and wanted.tls.secret is not None):
        return None
    if wanted.tls is not None:
        return str(wanted.tls.issuer)
    return next(iter(offered.ingress.issuers), None)


def _route(wanted: Any, offered: Any, backend: Body) -> Body:
    gateway = offered.gateway
    # Without the listener, the route would also be served without TLS, on the Gateway's port 80.
    parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": gateway.listener}
    return {
        "parentRefs": [parent],
        "hostnames": [wanted.host],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": path}} for path in wanted.paths],
                "backendRefs": [backend],
            }
        ],
    }


def _ingress(item: Item, wanted: Any, offered: Any, service: str) -> Body:
    secret = wanted.tls.secret if wanted.tls is not None else None
    if issuer_of(wanted, offered):
        secret = f"{item.name}-tls"
    backend = {"service": {"name": service, "port": {"name": "http"}}}
    paths = [{"path": path, "pathType": "Prefix", "backend": backend} for path in wanted.paths]
    return {
        "ingressClassName": offered.ingress.class_name,
        # An entry without a Secret: the controller's own certificate.
        "tls": [k8s.compact(hosts=[wanted.host], secretName=secret)],
        "rules": [{"host": wanted.host, "http": {"paths": paths}}],
    }


def ingress_rules(item: Item, program: Program, port: int) -> Iterator[Body]:
    """Yield the rule of a NetworkPolicy for the gateway's connections; nothing if the spec exposes nothing."""
    offered = program.cluster_spec(item.cluster).exposure
    if item.spec.expose is not None and offered is not None:
        yield {"from": [_peer(proxy) for proxy in offered.proxies], "ports": [{"protocol": "TCP", "port": port}]}


def route_names(name: str) -> str:
    """Return a regular expression of the names that a service's routes can have: one with a canary has its own."""
    return f"({name}|{name}-rollout)"


def fill_in(query: str, namespace: str, name: str) -> str:
    """Return a query of the platform for one service. Names are DNS labels, which PromQL and RE2 take literally."""
    return query.replace(NAMESPACE, namespace).replace(ROUTES, route_names(name)).replace(POOL, name)


def _peer(proxy: Any) -> Body:
    if proxy.cidr is not None:
        return {"ipBlock": {"cidr": proxy.cidr}}
    return k8s.compact(
        # The API server sets this label, so that a namespace cannot impersonate another.
        namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": proxy.namespace}},
        podSelector={"matchLabels": dict(proxy.labels)} if proxy.labels else None,
    )
