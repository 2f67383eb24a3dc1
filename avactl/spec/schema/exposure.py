"""Exposure of services under host names: what a cluster offers, and what a workload asks for."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, model_validator

from avactl.contracts.foreign_keys import key_owner
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Duration, Name, duration_seconds, label_key, label_value, value_error

_DNS_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_HOST_PATTERN = rf"^{_DNS_LABEL}(\.{_DNS_LABEL})+$"
_IS_HOST = re.compile(_HOST_PATTERN).fullmatch
_PATH_SEGMENT = "[A-Za-z0-9_-][A-Za-z0-9._-]*"
_PATH_PATTERN = f"^/({_PATH_SEGMENT}(/{_PATH_SEGMENT})*/?)?$"
_IS_PATH = re.compile(_PATH_PATTERN).fullmatch
_GRPC_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_IS_GRPC_SERVICE = re.compile(_GRPC_PATTERN).fullmatch
_LONGEST_SERVICE = 253
_OBJECT_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


def _is_address(value: str) -> bool:
    from ipaddress import ip_address  # most compiles never need it

    try:
        ip_address(value)
    except ValueError:
        return False
    return True


def _check_host(value: str) -> str:
    if len(value) <= 253 and _IS_HOST(value) and not _is_address(value):
        return value
    shown = f"`{value[:80]}` is not a host name"
    bare = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*://", "", value[:400])
    name, slash, path = bare.partition("/")
    fixed = name.partition(":")[0].lower().rstrip(".")
    if _is_address(fixed):
        raise value_error(shown, "write a name that DNS resolves to the gateway, such as `models.example.com`")
    if "*" in fixed:
        raise value_error(shown, "write one name: a wildcard would take the hosts of others")
    if len(fixed) <= 253 and _IS_HOST(fixed):
        raise value_error(
            shown, f"write `{fixed}`" + (f", and `paths: [/{path}]`" if slash and _IS_PATH(f"/{path}") else "")
        )
    raise value_error(shown, "write a full name of lowercase letters, digits and `-`: `models.example.com`")


def _check_path(value: str) -> str:
    if len(value) > 256 or not _IS_PATH(value):
        hint = "begin it with `/`, and use letters, digits, `-`, `_` and `.`; it is a prefix, so write no `*`"
        raise value_error(f"`{value[:80]}` is not a path prefix", hint)
    return value


def _grpc_service(value: str) -> str:
    if len(value) > _LONGEST_SERVICE or not _IS_GRPC_SERVICE(value):
        hint = "write its full name without a method, such as `inference.GRPCInferenceService`"
        raise value_error(f"`{value[:80]}` is not a gRPC service", hint)
    return value


def _object_name(value: str) -> str:
    if len(value) > 253 or not re.fullmatch(_OBJECT_PATTERN, value):
        raise value_error(f"`{value[:60]}` is not a name of an object", "use lowercase letters, digits, `-` and `.`")
    return value


def _check_cidr(value: str) -> str:
    from ipaddress import ip_network

    try:
        network = ip_network(value, strict=False)
    except ValueError:
        raise value_error(f"`{value[:80]}` is not a CIDR", "write a network and prefix length: `10.0.0.0/8`") from None
    if str(network) != value:
        raise value_error(f"`{value}` is not a CIDR in canonical form", f"write `{network}`")
    return value


Host = Annotated[
    str, AfterValidator(_check_host), WithJsonSchema({"type": "string", "pattern": _HOST_PATTERN, "maxLength": 253})
]
"""A fully qualified DNS name, no wildcard and no address."""
UrlPath = Annotated[
    str, AfterValidator(_check_path), WithJsonSchema({"type": "string", "pattern": _PATH_PATTERN, "maxLength": 256})
]
"""A prefix of URL paths by whole segments, of characters that all Ingress controllers take."""
GrpcService = Annotated[
    str,
    AfterValidator(_grpc_service),
    WithJsonSchema({"type": "string", "pattern": _GRPC_PATTERN, "maxLength": _LONGEST_SERVICE}),
]
"""A gRPC service with its package, as a GRPCRoute takes it."""
ObjectName = Annotated[
    str, AfterValidator(_object_name), WithJsonSchema({"type": "string", "pattern": _OBJECT_PATTERN, "maxLength": 253})
]
"""A DNS subdomain (RFC 1123), the form of most object names."""


def _annotation_key(value: str) -> str:
    label_key(value, "an annotation key")
    if key_owner(value) == "avactl":
        raise value_error(f"annotation `{value}` is set by avactl", "remove it")
    return value


_Annotation = Annotated[str, AfterValidator(_annotation_key), Field(max_length=317)]
_PodLabel = Annotated[str, AfterValidator(label_key), Field(max_length=317)]
_PodValue = Annotated[str, AfterValidator(label_value), Field(max_length=63)]
_Cidr = Annotated[
    str, AfterValidator(_check_cidr), WithJsonSchema({"type": "string", "pattern": r"^[0-9A-Fa-f:.]+/[0-9]{1,3}$"})
]
NAMESPACE, ROUTES, POOL = "{{namespace}}", "{{routes}}", "{{pool}}"
"""Placeholders of the platform's queries, filled in for each service."""
_Query = Annotated[str, Field(min_length=1, max_length=1000)]


# -- the cluster's side --------------------------------------------------------------------------------------------


class Gateway(Model):
    """A Gateway of the Gateway API, which the platform runs; its listener has the certificates."""

    name: ObjectName = Field(description="Name of the Gateway.")
    namespace: Name = Field(description="Its namespace.")
    listener: ObjectName = Field(
        "https",
        description="Name of the listener that routes attach to: one with TLS, which admits the teams' namespaces.",
    )
    inference_pools: bool = Field(
        False,
        description="The Gateway routes to InferencePools (Gateway API Inference Extension 1), for language models "
        "with `endpointPicker`.",
    )
    timeouts: bool = Field(
        True,
        description="The Gateway supports `timeouts` of HTTPRoutes, an extended feature of the Gateway API since 1.2. "
        "Without, routes have the Gateway's own.",
    )
    queued: _Query | None = Field(
        None,
        description="PromQL query for the requests that the endpoint picker of an InferencePool queues. They start "
        "the first pod of a service with `min: 0`. `{{namespace}}` and `{{pool}}` stand for the pool's namespace and "
        "name. Default: the pickers queue no requests.",
    )


class IngressController(Model):
    """An Ingress controller, which the platform runs."""

    class_name: ObjectName = Field(description="Name of its IngressClass.")
    issuers: list[ObjectName] = Field(
        default_factory=list,
        max_length=16,
        description="ClusterIssuers of cert-manager that specs may use; the first is their default. Default: the "
        "controller's own certificate.",
    )
    annotations: dict[_Annotation, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations of all Ingresses, such as those by which the controller authenticates users.",
    )


def _one_of(*keys: str) -> ConfigDict:
    """Return the configuration of a model whose schema requires exactly one of some keys."""
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in keys]})


class Proxy(Model):
    """Where connections of the gateway come from: pods of a namespace, or addresses."""

    model_config = _one_of("namespace", "cidr")

    namespace: Name | None = Field(None, description="Namespace of the gateway's pods.")
    labels: dict[_PodLabel, _PodValue] = Field(
        default_factory=dict, max_length=16, description="Labels of its pods. Default: all pods of the namespace."
    )
    cidr: _Cidr | None = Field(None, description="Addresses, for load balancers outside of the cluster.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.namespace is None) == (self.cidr is None):
            raise value_error(
                "an entry has either `namespace` or `cidr`", "write `{namespace: …}`, the one of the gateway's pods"
            )
        if self.cidr is not None and self.labels:
            raise value_error("`labels` select pods, and `cidr` has none", "remove `labels`")
        return self


class Domain(Model):
    """A domain below which specs may choose hosts."""

    name: Host = Field(description="The domain; hosts are the domain itself and names below it.")
    teams: list[Name] | None = Field(
        None, min_length=1, description="Teams that may use it. Default: all. The longest domain of a host decides."
    )


class Exposure(Model):
    """How specs are exposed outside of the cluster. Set one of `gateway` and `ingress`."""

    gateway: Gateway | None = Field(None, description="Gateway that HTTPRoutes and GRPCRoutes attach to.")
    ingress: IngressController | None = Field(None, description="Ingress controller that serves Ingresses.")
    proxies: Annotated[list[Proxy], Field(min_length=1, max_length=16)] = Field(
        description="Sources of the gateway's connections, which NetworkPolicies of exposed pods let in."
    )
    domains: Annotated[list[Domain], Field(min_length=1, max_length=256)] = Field(
        description="Domains that specs may use."
    )
    requests: _Query | None = Field(
        None,
        description="PromQL query for the requests to one service, from metrics of the gateway that include requests "
        "that no pod answers. It scales services with `min: 0` from and to zero. `{{namespace}}` stands for the "
        "service's namespace, `{{routes}}` for a regular expression for its routes' names. Default: services have at "
        "least one pod, unless `queued` is set.",
    )
    authenticates: bool = Field(
        False,
        description="The gateway authenticates users before it forwards a request. Without it, exposed workspaces need "
        "credentials of their own.",
    )


# -- the workload's side -------------------------------------------------------------------------------------------


class Tls(Model):
    """Certificate of a host behind an Ingress controller. Set one key."""

    model_config = _one_of("secret", "issuer")
    secret: ObjectName | None = Field(
        None, description="Secret of type `kubernetes.io/tls` in the namespace of the objects."
    )
    issuer: ObjectName | None = Field(
        None, description="ClusterIssuer of cert-manager, one of the cluster's `issuers`."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.secret is None) == (self.issuer is None):
            raise value_error(
                "the certificate has either `secret` or `issuer`", "write `{secret: NAME}` or `{issuer: NAME}`"
            )
        return self


_TIMEOUT_TEXT = (
    "Time from a request to the last byte of its answer, streamed ones included. Needs a Gateway. Default: 1h of "
    "servers of large language models; else the Gateway's own."
)
_Paths = Annotated[
    list[UrlPath],
    Field(
        default_factory=lambda: ["/"],
        min_length=1,
        max_length=16,
        description="Path prefixes, by whole segments; the server sees the path unchanged. Default: all paths.",
    ),
]
MAX_TIMEOUT = "24h"


def _check_timeout(value: str) -> str:
    if not 1 <= duration_seconds(value) <= duration_seconds(MAX_TIMEOUT):
        raise value_error(f"`{value}` is not from `1s` to `{MAX_TIMEOUT}`", f"write `1h`, or at most `{MAX_TIMEOUT}`")
    return value


_Timeout = Annotated[Annotated[Duration, AfterValidator(_check_timeout)] | None, Field(description=_TIMEOUT_TEXT)]
_Certificate = Annotated[
    Tls | None,
    Field(
        description="Certificate, for clusters with an Ingress controller. Default: the cluster's first issuer, else "
        "the controller's own certificate.",
    ),
]


class Expose(Model):
    """A host under which the HTTP port is reached from outside of the cluster, always over TLS."""

    host: Host = Field(description="Host name, in one of the domains that the Cluster gives to the team.")
    paths: _Paths
    timeout: _Timeout = None
    tls: _Certificate = None


class Grpc(Model):
    """Host for the gRPC port, reachable from outside the cluster, always over TLS."""

    host: Host = Field(
        description="Host name, in one of the domains that the Cluster gives to the team; not the host of the HTTP "
        "port, because a Gateway accepts only HTTPRoutes or only GRPCRoutes for a host."
    )
    services: Annotated[list[GrpcService], Field(min_length=1, max_length=16)] | None = Field(
        None,
        description="gRPC services that can be called, such as `inference.GRPCInferenceService`. Default: those "
        "of predictions, if the runtime also has services that replace models; else all.",
    )


class ExposePorts(Model):
    """Hosts for the HTTP and the gRPC port, reachable from outside the cluster, always over TLS."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["host"]}, {"required": ["grpc"]}],
            "dependentRequired": {"paths": ["host"], "timeout": ["host"]},
        }
    )

    host: Host | None = Field(
        None, description="Host name of the HTTP port, in one of the domains that the Cluster gives to the team."
    )
    grpc: Grpc | None = Field(None, description="The gRPC port, on clusters with a Gateway. Default: not exposed.")
    paths: _Paths
    timeout: _Timeout = None
    tls: _Certificate = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.host is None and self.grpc is None:
            raise value_error("`expose` has no host", "add `host: …` for HTTP, or `grpc: {host: …}`")
        if self.host is None and "paths" in self.model_fields_set:
            raise value_error("`paths` are those of `host`, and gRPC has none", "remove `paths`, or add `host: …`")
        if self.host is None and self.timeout is not None:
            hint = "remove `timeout`, or add `host: …`; gRPC clients set deadlines"
            raise value_error("`timeout` is that of `host`, and a GRPCRoute has none", hint)
        return self
