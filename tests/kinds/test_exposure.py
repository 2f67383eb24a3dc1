"""Exposure: routes, certificates, who gets through the NetworkPolicy, and on what terms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from avactl.apply.doctor.secrets import needed_secrets
from avactl.change.diff import compare
from avactl.compiler import Compilation
from tests.definitions import define_routes
from tests.kinds import specs
from tests.kinds.compiling import apply, body, codes, compiled, names, unchecked
from tests.kinds.specs import SERVICE, TEAM, joined
from tools.controlplane import KubeClient

GATEWAY = "gateway: {name: public, namespace: gateways}"
INGRESS = "ingress: {className: nginx, issuers: [letsencrypt, internal], annotations: {example.com/auth: oidc}}"
CLUSTER = """
kind: Cluster
metadata: {name: main}
spec:
  exposure:
    OFFER
    proxies: [{namespace: envoy-gateway-system, labels: {app.kubernetes.io/name: envoy}}, {cidr: 10.4.0.0/16}]
    domains: [{name: ai.example.com}, {name: ads.ai.example.com, teams: [ads]}]
"""
WORKSPACE = f"""{specs.WORKSPACE}\
  env: {{JUPYTER_TOKEN: {{secret: {{name: lin, key: token}}}}}}
  expose: {{host: lin.ai.example.com}}
"""


def platform(offer: str, *declared: str) -> str:
    return joined(CLUSTER.replace("OFFER", offer), TEAM, TEAM.replace("vision", "ads"), *declared)


def exposed(expose: str, name: str = "detector") -> str:
    return SERVICE.replace("name: detector, team", f"name: {name}, team") + f"  expose: {expose}\n"


def service(more: str = "", name: str = "detector") -> str:
    return exposed(f"{{host: {name}.ai.example.com{more}}}", name)


def from_outside(result: Compilation, name: str) -> dict[str, Any]:
    """The last rule of a NetworkPolicy."""
    rule: dict[str, Any] = body(result, "NetworkPolicy", name, "vision")["spec"]["ingress"][-1]
    return rule


def test_a_route_attaches_to_the_listener_with_tls_only() -> None:
    result = compiled(platform(GATEWAY, service(", paths: [/v2, /metrics]")))
    route = body(result, "HTTPRoute", "detector", "vision")["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "gateways", "sectionName": "https"}]
    assert route["hostnames"] == ["detector.ai.example.com"]
    (rule,) = route["rules"]
    assert [match["path"]["value"] for match in rule["matches"]] == ["/v2", "/metrics"]
    (backend,) = rule["backendRefs"]
    ports = body(result, "Service", "detector", "vision")["spec"]["ports"]
    assert (backend["name"], backend["port"]) == ("detector", next(p["port"] for p in ports if p["name"] == "http"))
    assert names(result, "Ingress") == []


def test_only_the_gateways_pods_and_addresses_reach_the_http_port() -> None:
    result = compiled(platform(GATEWAY, service(), WORKSPACE))
    pods = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "envoy-gateway-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "envoy"}},
    }
    for name, port in (("detector", 8000), ("lin", 8888)):
        assert from_outside(result, name) == {
            "from": [pods, {"ipBlock": {"cidr": "10.4.0.0/16"}}],
            "ports": [{"protocol": "TCP", "port": port}],
        }
    hidden = compiled(platform(GATEWAY, service().partition("  expose")[0]))
    assert "envoy-gateway-system" not in str(body(hidden, "NetworkPolicy", "detector", "vision"))
    assert names(hidden, "HTTPRoute") == []


def timeouts(text: str, gateway: str = GATEWAY) -> object:
    (rule,) = body(compiled(platform(gateway, text)), "HTTPRoute", "detector", "vision")["spec"]["rules"]
    return rule.get("timeouts")


def test_answers_of_language_models_may_take_longer_than_the_default_of_gateways() -> None:
    assert timeouts(service()) is None  # the gateway's own
    assert timeouts(service(", timeout: 90s")) == {"request": "90s"}
    assert timeouts(service(", timeout: 1500ms")) == {"request": "2s"}  # whole seconds, as all gateways take them
    model = service().replace("name: triton", "name: vllm").replace('version: "3"', 'version: "3", path: /opt/model')
    assert timeouts(model) == {"request": "3600s"}
    assert timeouts(model.replace(".com}", ".com, timeout: 24h}")) == {"request": "86400s"}
    without = GATEWAY.replace("name: public,", "name: public, timeouts: false,")
    assert without != GATEWAY
    assert timeouts(model, without) is None
    for wrong in ("0s", "999ms", "25h"):
        assert codes(unchecked(platform(GATEWAY, service(f", timeout: {wrong}")))) == ["invalid-value"]


def test_a_timeout_needs_a_gateway_that_has_it() -> None:
    text = service(", timeout: 10m")
    without = GATEWAY.replace("name: public,", "name: public, timeouts: false,")
    assert codes(unchecked(platform(without, text))) == ["missing-gateway"]
    assert codes(unchecked(platform(INGRESS, text))) == ["missing-gateway"]
    grpc = exposed("{timeout: 10m, grpc: {host: d.ai.example.com}}")
    assert codes(unchecked(platform(GATEWAY, grpc))) == ["invalid-value"]


GRPC = ", grpc: {host: detector-grpc.ai.example.com}"


def test_grpc_has_a_host_and_a_route_of_its_own() -> None:
    result = compiled(platform(GATEWAY, service(GRPC)))
    route = body(result, "GRPCRoute", "detector", "vision")["spec"]
    assert route["parentRefs"] == body(result, "HTTPRoute", "detector", "vision")["spec"]["parentRefs"]
    assert route["hostnames"] == ["detector-grpc.ai.example.com"]
    assert route["rules"] == [{"backendRefs": [{"name": "detector", "port": 8001}]}]
    assert [each["port"] for each in from_outside(result, "detector")["ports"]] == [8000, 8001]


def test_only_grpc_lets_the_gateway_in_to_the_grpc_port_only() -> None:
    result = compiled(platform(GATEWAY, exposed("{grpc: {host: d.ai.example.com, services: [a.B, a.C]}}")))
    assert names(result, "HTTPRoute") == []
    (rule,) = body(result, "GRPCRoute", "detector", "vision")["spec"]["rules"]
    assert [match["method"] for match in rule["matches"]] == [
        {"type": "Exact", "service": name} for name in ("a.B", "a.C")
    ]
    assert [each["port"] for each in from_outside(result, "detector")["ports"]] == [8001]


def test_clients_outside_cannot_replace_the_models_of_tensorflow_serving() -> None:
    text = service(GRPC).replace("name: triton", "name: tensorflowServing")
    (rule,) = body(compiled(platform(GATEWAY, text)), "GRPCRoute", "detector", "vision")["spec"]["rules"]
    assert [match["method"]["service"] for match in rule["matches"]] == ["tensorflow.serving.PredictionService"]


def test_one_team_may_share_a_grpc_host_by_services() -> None:
    first, second = (
        exposed(f"{{grpc: {{host: models.ai.example.com, services: [{name}]}}}}", name[-1].lower())
        for name in ("a.B", "a.C")
    )
    assert codes(unchecked(platform(GATEWAY, first, second))) == []
    whole = first.replace(", services: [a.B]", "")
    assert codes(unchecked(platform(GATEWAY, whole, second))) == []
    assert codes(unchecked(platform(GATEWAY, whole, whole.replace("name: b", "name: c")))) == ["host-conflict"]


@pytest.mark.parametrize(
    ("tls", "secret", "issuer", "needed"),
    [
        ("", "detector-tls", "letsencrypt", []),
        (", tls: {issuer: internal}", "detector-tls", "internal", []),
        (", tls: {secret: bought}", "bought", None, ["bought"]),
    ],
)
def test_an_ingress_is_never_without_tls(tls: str, secret: str, issuer: str | None, needed: list[str]) -> None:
    result = compiled(platform(INGRESS, service(tls)))
    ingress = body(result, "Ingress", "detector", "vision")
    assert ingress["spec"]["tls"] == [{"hosts": ["detector.ai.example.com"], "secretName": secret}]
    assert ingress["metadata"]["annotations"].get("cert-manager.io/cluster-issuer") == issuer
    assert ingress["metadata"]["annotations"]["example.com/auth"] == "oidc"
    # Secrets that cert-manager makes are nobody's to create.
    assert [need.name for need in needed_secrets(result.manifests)] == needed


@pytest.mark.parametrize(("offer", "own"), [(INGRESS, {"example.com/auth": "oidc"}), (GATEWAY, {})])
def test_controllers_take_no_orders_from_annotations_of_specs(offer: str, own: dict[str, str]) -> None:
    notes = (
        "annotations: {nginx.org/server-snippets: 'return 301 https://evil.example.net;', cert-manager.io/issuer: x}"
    )
    exposed = service(", tls: {secret: detector}" if offer is INGRESS else "")
    result = compiled(platform(offer, exposed.replace("team: vision}", f"team: vision, {notes}}}")))
    kind = "Ingress" if offer is INGRESS else "HTTPRoute"
    assert body(result, kind, "detector", "vision")["metadata"].get("annotations", {}) == own
    assert "cert-manager.io/issuer" in body(result, "Deployment", "detector", "vision")["metadata"]["annotations"]


def test_without_issuers_the_certificate_is_the_controllers() -> None:
    result = compiled(platform("ingress: {className: nginx}", service()))
    ingress = body(result, "Ingress", "detector", "vision")
    assert ingress["spec"]["tls"] == [{"hosts": ["detector.ai.example.com"]}]


def test_one_team_may_share_a_host_by_paths_and_other_teams_may_not() -> None:
    second = service(", paths: [/v1]").replace("name: detector, team: vision", "name: second, team: TEAM")
    first = service(", paths: [/v2]")
    assert codes(unchecked(platform(GATEWAY, first, second.replace("TEAM", "vision")))) == []
    assert codes(unchecked(platform(GATEWAY, first, second.replace("TEAM", "ads")))) == ["host-conflict"]


def test_a_gateway_that_authenticates_needs_no_token() -> None:
    bare = WORKSPACE.replace("  env: {JUPYTER_TOKEN: {secret: {name: lin, key: token}}}\n", "")
    assert codes(unchecked(platform(GATEWAY, bare))) == ["exposed-without-authentication"]
    assert codes(unchecked(platform(f"{GATEWAY}\n    authenticates: true", bare))) == []


def test_members_of_a_team_may_not_write_routes() -> None:
    """Otherwise a member could take any host without a spec."""
    result = compiled(
        platform(GATEWAY, service()).replace("{name: vision}\n", "{name: vision}\nspec: {members: {users: [ada]}}\n", 1)
    )
    rules = body(result, "Role", "avactl-member", "vision")["rules"]
    named = {resource for rule in rules for resource in rule["resources"]}
    assert not named & {"ingresses", "httproutes", "grpcroutes", "*"}
    assert "pods" in named


@pytest.mark.parametrize("offer", [GATEWAY, INGRESS])
def test_the_api_server_takes_every_object(offer: str, kube: KubeClient) -> None:
    define_routes(kube)
    declared = [service(", paths: [/v2, /v3/models/]"), WORKSPACE]
    if offer == GATEWAY:
        declared.append(service(", grpc: {host: d.ai.example.com, services: [_a.B1, inference.GRPC_Service]}", "deep"))
        declared.append(exposed("{grpc: {host: all.ai.example.com}}", "all"))
    applied = apply(kube, compiled(platform(offer, *declared)).manifests)
    kinds = [each["kind"] for each in applied]
    assert kinds.count("GRPCRoute") == (2 if offer == GATEWAY else 0)
    assert kinds.count("HTTPRoute" if offer == GATEWAY else "Ingress") == (3 if offer == GATEWAY else 2)


@pytest.mark.parametrize("offer", [GATEWAY, INGRESS])
def test_a_diff_says_that_a_service_is_reachable_from_outside(offer: str) -> None:
    hidden = compiled(platform(offer, service().partition("  expose")[0]))
    open_ = compiled(platform(offer, service(", paths: [/v2]")))

    def said(one: Compilation, other: Compilation) -> list[str]:
        return [each.text for intent in compare(one, other).intents for each in intent.consequences]

    assert "reachable at + detector.ai.example.com/v2" in said(hidden, open_)
    assert "reachable at - detector.ai.example.com/v2" in said(open_, hidden)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("HTTPRoute", ["reachable at */ (HTTPRoute x/r2)"]),
        ("GRPCRoute", ["reachable at */ by gRPC (GRPCRoute x/r2)"]),
        ("Ingress", []),
    ],
)
def test_a_diff_survives_routes_of_others_that_are_none(kind: str, said: list[str]) -> None:
    api = "networking.k8s.io/v1" if kind == "Ingress" else "gateway.networking.k8s.io/v1"
    objects = [
        {"apiVersion": api, "kind": kind, "metadata": {"name": f"r{number}"}, "spec": spec}
        for number, spec in enumerate(({"rules": ["a"]}, {"rules": 1, "hostnames": 2}, {"rules": [{"matches": 3}]}))
    ]
    spec = json.dumps({"namespace": "x", "objects": objects})
    own = f"kind: KubernetesObjects\nmetadata: {{name: own}}\nspec: {spec}"
    changed = compare(unchecked(platform(GATEWAY)), unchecked(platform(GATEWAY, own)))
    found = [each.text for intent in changed.intents for each in intent.consequences]
    assert [each for each in found if "reachable" in each] == said


CANARY = "  replicas: 2\n  rollout: {canary: {steps: [{percent: 50}]}}\n"


@pytest.mark.parametrize("rollout", ["", CANARY])
def test_a_diff_names_the_hosts_of_grpc_and_of_canaries(rollout: str) -> None:
    cluster = "daemons: {serving: true}\n  images: {avactl: registry.example.com/avactl@sha256:" + "a" * 64 + "}\n  "
    base = platform(GATEWAY).replace("exposure:", f"{cluster}exposure:")
    hidden = compiled(joined(base, service().partition("  expose")[0]))
    open_ = compiled(joined(base, service(GRPC.replace("com}", "com, services: [a.B]}")) + rollout))
    said = [each.text for intent in compare(hidden, open_).intents for each in intent.consequences]
    assert [each for each in said if "reachable" in each] == [
        "reachable at + detector.ai.example.com/",
        "reachable at + detector-grpc.ai.example.com/a.B by gRPC",
    ]
