"""Exposure → HTTPRoute and GRPCRoute, or an Ingress, and the rule of the NetworkPolicy that lets the gateway in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Protocol

from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.schema.base import SAFE_ANNOTATIONS
from avactl.spec.schema.exposure import (
    NAMESPACE,
    POOL,
    ROUTES,
    Expose,
    ExposePorts,
    Gateway,
    Grpc,
    IngressController,
    Proxy,
)
from avactl.spec.schema.values import duration_seconds

ISSUER = "cert-manager.io/cluster-issuer"
"""Annotation of an Ingress by which cert-manager makes the Secret in `spec.tls`.

Source: https://cert-manager.io/docs/usage/ingress/
"""
GATEWAY = "gateway.networking.k8s.io/v1"


class Exposing(Protocol):
    """A spec that can be exposed."""

    @property
    def expose(self) -> Expose | ExposePorts | None: ...


def grpc_of(wanted: Expose | ExposePorts | None) -> Grpc | None:
    """Return the exposure of a gRPC port, if there is one."""
    return wanted.grpc if isinstance(wanted, ExposePorts) else None


def grpc_services(item: Item) -> Sequence[str]:
    """Return the gRPC services that a spec exposes; none: all of them."""
    found: Sequence[str] = getattr(item.spec, "grpc_services", ())
    return found


def build_routes(
    item: Item[Exposing],
    program: Program,
    service: str,
    ports: Mapping[str, int],
    *,
    component: str,
    backend: Body | None = None,
    timeout: int | None = None,
) -> list[Manifest]:
    """Return the routes to the ports `http` and `grpc`, with these numbers, of a Service; none to what is not exposed.

    `backend`: another backend of a Gateway's HTTPRoute than the Service. `timeout`: seconds that an answer may take if
    the spec does not say.
    """
    wanted, offered = item.spec.expose, program.cluster_spec(item.cluster).exposure
    if wanted is None or offered is None:
        return []
    found: list[Manifest] = []
    gateway, ingress = offered.gateway, offered.ingress
    if wanted.host is not None and gateway is not None:
        matches: list[Body] = [{"path": {"type": "PathPrefix", "value": path}} for path in wanted.paths]
        spec = _build_route(wanted.host, gateway, matches, backend or {"name": service, "port": ports["http"]})
        if wanted.timeout is not None:
            timeout = ceil(duration_seconds(wanted.timeout))
        if timeout is not None and gateway.timeouts:
            # Without `backendRequest`, it is the limit of each try as well.
            spec["rules"][0]["timeouts"] = {"request": f"{timeout}s"}
        found.append(_build_manifest(item, GATEWAY, "HTTPRoute", spec, component))
    elif wanted.host is not None and ingress is not None:
        issuer = issuer_of(wanted, ingress)
        notes = {**ingress.annotations, **({ISSUER: issuer} if issuer else {})}
        spec = _build_ingress(item, wanted, ingress, service)
        found.append(_build_manifest(item, "networking.k8s.io/v1", "Ingress", spec, component, notes))
    grpc = grpc_of(wanted)
    if grpc is not None and gateway is not None:
        matches = [{"method": {"type": "Exact", "service": name}} for name in grpc_services(item)]
        spec = _build_route(grpc.host, gateway, matches, {"name": service, "port": ports["grpc"]})
        found.append(_build_manifest(item, GATEWAY, "GRPCRoute", spec, component))
    return found


def _build_manifest(
    item: Item, version: str, kind: str, spec: Body, component: str, own: Mapping[str, str] | None = None
) -> Manifest:
    made = k8s.build_manifest(
        item, item.cluster, version, kind, item.name, namespace=item.ns, component=component, spec=spec
    )
    # Controllers of many makes take orders from annotations of routes: configuration of the proxy that all teams share,
    # and issuers of certificates. So they are the platform's, without those of the spec.
    inherited = made.body["metadata"].pop("annotations", {})
    notes = {**{key: inherited[key] for key in SAFE_ANNOTATIONS if key in inherited}, **(own or {})}
    if notes:
        made.body["metadata"]["annotations"] = notes
    return made


def issuer_of(wanted: Expose | ExposePorts, ingress: IngressController) -> str | None:
    """Return the ClusterIssuer that makes a host's certificate behind an Ingress controller; None: there is none."""
    if wanted.tls is not None:
        return wanted.tls.issuer
    return next(iter(ingress.issuers), None)


def _build_route(host: str, gateway: Gateway, matches: list[Body], backend: Body) -> Body:
    # Without the listener, the route would also be served without TLS, on the Gateway's port 80.
    parent = {"name": gateway.name, "namespace": gateway.namespace, "sectionName": gateway.listener}
    return {
        "parentRefs": [parent],
        "hostnames": [host],
        "rules": [k8s.drop_none(matches=matches or None, backendRefs=[backend])],
    }


def _build_ingress(item: Item, wanted: Expose | ExposePorts, ingress: IngressController, service: str) -> Body:
    secret = wanted.tls.secret if wanted.tls is not None else None
    if issuer_of(wanted, ingress):
        secret = f"{item.name}-tls"
    backend = {"service": {"name": service, "port": {"name": "http"}}}
    paths = [{"path": path, "pathType": "Prefix", "backend": backend} for path in wanted.paths]
    return {
        "ingressClassName": ingress.class_name,
        # An entry without a Secret: the controller's own certificate.
        "tls": [k8s.drop_none(hosts=[wanted.host], secretName=secret)],
        "rules": [{"host": wanted.host, "http": {"paths": paths}}],
    }


def exposed_ports(item: Item[Exposing], ports: Mapping[str, int]) -> list[int]:
    """Return the ports among these, by the names `http` and `grpc`, that a spec exposes."""
    wanted = item.spec.expose
    shown = {"http": wanted is not None and wanted.host, "grpc": grpc_of(wanted)}
    return [port for name, port in ports.items() if shown.get(name)]


def ingress_rules(item: Item[Exposing], program: Program, *ports: int) -> Iterator[Body]:
    """Yield the rule of a NetworkPolicy for the gateway's connections; nothing if the spec exposes nothing."""
    offered = program.cluster_spec(item.cluster).exposure
    if item.spec.expose is not None and offered is not None and ports:
        yield {
            "from": [_build_peer(proxy) for proxy in offered.proxies],
            "ports": [{"protocol": "TCP", "port": port} for port in ports],
        }


def route_names(name: str) -> str:
    """Return a regular expression of the names that a service's routes can have: one with a canary has its own."""
    return f"({name}|{name}-rollout)"


def fill_in(query: str, namespace: str, name: str) -> str:
    """Return a query of the platform for one service. Names are DNS labels, which PromQL and RE2 take literally."""
    return query.replace(NAMESPACE, namespace).replace(ROUTES, route_names(name)).replace(POOL, name)


def _build_peer(proxy: Proxy) -> Body:
    if proxy.cidr is not None:
        return {"ipBlock": {"cidr": proxy.cidr}}
    return k8s.drop_none(
        # The API server sets this label, so that a namespace cannot impersonate another.
        namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": proxy.namespace}},
        podSelector={"matchLabels": dict(proxy.labels)} if proxy.labels else None,
    )
