"""The evaluator of NetworkPolicies: the semantics that Kubernetes' end-to-end tests of network plugins demand.

The world is theirs: namespaces x, y and z with pods a, b and c each, whose containers serve ports 80 and 81 over TCP
and UDP. Source: kubernetes/kubernetes, test/e2e/network/netpol/network_policy.go; the cases are told in own words.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytest

from avactl.program.manifest import Body
from tests.networks.evaluator import Network, Pod, Port

PORTS = [
    Port(number, protocol, f"serve-{number}-{protocol.lower()}") for number in (80, 81) for protocol in ("TCP", "UDP")
]
PODS = {
    f"{space}/{name}": Pod(name, space, {"pod": name}, f"10.{i}.0.{j}", PORTS)
    for i, space in enumerate("xyz")
    for j, name in enumerate("abc", 1)
}
SPACES = {space: {"ns": space} for space in "xyz"}
EVERYONE: Set[str] = frozenset(PODS)
OF_X: Set[str] = frozenset(name for name in PODS if name.startswith("x/"))
DENY: Body = {"podSelector": {}, "policyTypes": ["Ingress"]}


def policy(spec: Body, namespace: str = "x") -> Body:
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def ingress(*peers: Body, ports: list[Body] | None = None, pods: Body | None = None) -> Body:
    rule: Body = {"from": list(peers)} if peers else {}
    rule |= {"ports": ports} if ports is not None else {}
    return {"podSelector": pods or {"matchLabels": {"pod": "a"}}, "policyTypes": ["Ingress"], "ingress": [rule]}


def egress(*peers: Body, ports: list[Body] | None = None) -> Body:
    rule: Body = {"to": list(peers)} if peers else {}
    rule |= {"ports": ports} if ports is not None else {}
    return {"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Egress"], "egress": [rule]}


def network(*policies: Body) -> Network:
    return Network(SPACES, policies)


def callers(made: Network, port: int = 80, protocol: str = "TCP", to: str = "x/a") -> Set[str]:
    """The pods that reach one."""
    return frozenset(name for name, pod in PODS.items() if made.admits(pod, PODS[to], port, protocol))


def callees(made: Network, port: int = 80, protocol: str = "TCP") -> Set[str]:
    """The pods that x/a reaches."""
    return frozenset(name for name, pod in PODS.items() if made.admits(PODS["x/a"], pod, port, protocol))


def name_of(*names: str) -> Body:
    return {"matchExpressions": [{"key": "pod", "operator": "In", "values": list(names)}]}


def test_without_policies_everything_is_open() -> None:
    assert all(callers(network(), to=name) == EVERYONE for name in PODS)


@pytest.mark.parametrize(
    ("spec", "reach"),
    [
        pytest.param(DENY, {"x/a"}, id="deny all: a pod still reaches itself"),
        pytest.param(ingress(), EVERYONE, id="a rule without peers admits everything"),
        pytest.param(ingress({"podSelector": {}}), OF_X, id="pods of the policy's namespace"),
        pytest.param(ingress({"podSelector": name_of("b")}), {"x/a", "x/b"}, id="a pod of the policy's namespace"),
        pytest.param(
            ingress({"namespaceSelector": {"matchLabels": {"ns": "y"}}}),
            {"x/a", "y/a", "y/b", "y/c"},
            id="all pods of a namespace",
        ),
        pytest.param(
            ingress({"namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]}}),
            EVERYONE - OF_X | {"x/a"},
            id="all namespaces but one",
        ),
        pytest.param(
            ingress({"namespaceSelector": {"matchLabels": {"ns": "y"}}, "podSelector": name_of("b", "c")}),
            {"x/a", "y/b", "y/c"},
            id="both selectors of one peer",
        ),
        pytest.param(
            ingress({"namespaceSelector": {"matchLabels": {"ns": "y"}}}, {"podSelector": name_of("b")}),
            {"x/a", "x/b", "y/a", "y/b", "y/c"},
            id="either selector of two peers",
        ),
        pytest.param(
            ingress({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "z"}}}),
            {"x/a", "z/a", "z/b", "z/c"},
            id="a namespace by its name",
        ),
        pytest.param(
            ingress({"podSelector": {"matchExpressions": [{"key": "pod", "operator": "Exists"}]}}),
            OF_X,
            id="a label that exists",
        ),
        pytest.param(
            ingress({"podSelector": {"matchExpressions": [{"key": "pod", "operator": "DoesNotExist"}]}}),
            {"x/a"},
            id="a label that does not exist",
        ),
        pytest.param(
            ingress({"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.0.2/32"]}}),
            {"x/a", "y/a", "y/c"},
            id="a block without an address",
        ),
        pytest.param({**DENY, "podSelector": name_of("b")}, EVERYONE, id="a policy of another pod"),
        pytest.param({**DENY, "ingress": []}, {"x/a"}, id="an empty list of rules"),
        pytest.param({**DENY, "policyTypes": []}, {"x/a"}, id="without types it restricts ingress"),
        pytest.param({"podSelector": {}, "policyTypes": ["Egress"]}, EVERYONE - OF_X | {"x/a"}, id="egress of callers"),
    ],
)
def test_peers(spec: Body, reach: set[str]) -> None:
    assert callers(network(policy(spec))) == reach


@pytest.mark.parametrize(
    ("ports", "served"),
    [
        ([{"port": 80}], {"80 TCP"}),
        ([{"port": 80, "protocol": "UDP"}], {"80 UDP"}),
        ([{"protocol": "TCP"}], {"80 TCP", "81 TCP"}),
        ([{"port": "serve-81-tcp"}], {"81 TCP"}),
        ([{"port": "serve-81-tcp", "protocol": "UDP"}], set()),
        ([{"port": "other"}], set()),
        ([{"port": 80, "endPort": 81}], {"80 TCP", "81 TCP"}),
        ([{"port": 70, "endPort": 80}], {"80 TCP"}),
        ([{"port": 80}, {"port": 81, "protocol": "UDP"}], {"80 TCP", "81 UDP"}),
        ([], {"80 TCP", "80 UDP", "81 TCP", "81 UDP"}),
    ],
)
@pytest.mark.parametrize("direction", [ingress, egress])
def test_ports(direction: Any, ports: list[Body], served: set[str]) -> None:
    made = network(policy(direction({"namespaceSelector": {}}, ports=ports)))
    source, destination = ("y/a", "x/a") if direction is ingress else ("x/a", "y/a")
    admitted = {
        f"{number} {protocol}"
        for number in (80, 81)
        for protocol in ("TCP", "UDP")
        if made.admits(PODS[source], PODS[destination], number, protocol)
    }
    assert admitted == served


def test_policies_add_up() -> None:
    made = network(
        policy(DENY),
        policy(ingress({"podSelector": name_of("b")}, ports=[{"port": 80}])),
        policy(ingress({"podSelector": name_of("c")}, ports=[{"port": 81}])),
    )
    assert callers(made) == {"x/a", "x/b"}
    assert callers(made, 81) == {"x/a", "x/c"}
    assert callers(made, to="x/b") == {"x/b"}, "only the default applies to other pods"


def test_a_rule_matches_peer_and_port_together() -> None:
    spec = ingress({"podSelector": name_of("b")}, ports=[{"port": 80}])
    spec["ingress"].append({"from": [{"podSelector": name_of("c")}], "ports": [{"port": 81}]})
    made = network(policy(spec))
    assert callers(made) == {"x/a", "x/b"}
    assert callers(made, 81) == {"x/a", "x/c"}


def test_both_ends_must_admit_a_connection() -> None:
    out = policy(egress({"namespaceSelector": {"matchLabels": {"ns": "y"}}}))
    assert callees(network(out)) == {"x/a", "y/a", "y/b", "y/c"}
    assert callees(network(out, policy(DENY, "y"))) == {"x/a"}
    assert callees(network(policy({"podSelector": {}, "policyTypes": ["Egress"]}))) == {"x/a"}


def test_egress_blocks_and_their_exceptions() -> None:
    block = {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32", "10.2.0.0/16"]}
    made = network(policy(egress({"ipBlock": block})))
    assert callees(made) == {name for name in EVERYONE if not name.startswith("z/")}
    assert made.admits(PODS["x/a"], "8.8.8.8", 443)
    assert not made.admits(PODS["x/a"], "169.254.169.254", 80)
    assert not made.admits(PODS["x/a"], "fd00:ec2::254", 80)


def test_pods_in_the_network_of_a_machine_are_the_machine() -> None:
    host = Pod("host", "x", {"pod": "b"}, "192.168.0.7", host_network=True)
    made = network(policy(DENY), policy(ingress({"podSelector": {}})))
    assert not made.admits(host, PODS["x/a"], 80), "no selector matches it"
    assert made.admits(PODS["y/a"], host, 80), "no policy applies to it"
    assert network(policy(ingress({"ipBlock": {"cidr": "192.168.0.0/16"}}))).admits(host, PODS["x/a"], 80)


def test_one_policy_for_both_directions() -> None:
    """Each direction has rules and ports of its own."""
    both = {**ingress({"podSelector": name_of("b")}), "policyTypes": ["Ingress", "Egress"]}
    made = network(policy({**both, "egress": [{"ports": [{"port": 80}]}]}))
    assert callers(made) == callers(made, 81) == {"x/a", "x/b"}
    assert callees(made) == EVERYONE
    assert callees(made, 81) == {"x/a"}
    closed = network(policy({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))
    assert all(callers(closed, to=name) == {name} for name in OF_X)
    assert callers(closed, to="y/a") == EVERYONE - OF_X


def test_egress_does_not_open_the_way_back() -> None:
    out, closed = policy(egress()), policy({**DENY, "podSelector": name_of("a")})
    made = network(out, closed)
    assert callees(made) == EVERYONE
    assert callers(made) == {"x/a"}


@pytest.mark.parametrize("order", [1, -1])
def test_a_rule_that_admits_everything_wins_over_narrower_ones(order: int) -> None:
    inward = [policy(ingress({"podSelector": name_of("b")}, ports=[{"port": 80}])), policy(ingress())][::order]
    outward = [policy(egress({"podSelector": name_of("b")}, ports=[{"port": 80}])), policy(egress())][::order]
    assert callers(network(*inward), 81) == EVERYONE
    assert callees(network(*outward), 81) == EVERYONE


def test_a_block_of_one_peer_admits_what_another_excepts() -> None:
    around = {"ipBlock": {"cidr": "10.1.0.0/16", "except": ["10.1.0.2/32"]}}
    inside = {"ipBlock": {"cidr": "10.1.0.2/32"}}
    assert callees(network(policy(egress(around)))) == {"x/a", "y/a", "y/c"}
    for made in (network(policy(egress(around, inside))), network(policy(egress(around)), policy(egress(inside)))):
        assert callees(made) == {"x/a", "y/a", "y/b", "y/c"}


def test_a_rule_for_one_protocol_isolates_and_opens_no_other() -> None:
    for protocol in ("SCTP", "UDP"):
        made = network(policy(ingress(ports=[{"port": 80, "protocol": protocol}])))
        assert callers(made) == callers(made, 81) == {"x/a"}
        assert callers(made, 80, protocol) == EVERYONE
    only = network(policy(ingress(ports=[{"protocol": "UDP"}])))
    assert callers(only) == {"x/a"}
    assert callers(only, 81, "UDP") == EVERYONE


def test_namespaces_that_do_not_have_a_name() -> None:
    others = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["x", "y"]}
    made = network(policy(ingress({"namespaceSelector": {"matchExpressions": [others]}})))
    assert callers(made) == {"x/a", "z/a", "z/b", "z/c"}


def test_peers_with_several_requirements() -> None:
    apart = {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]}
    made = network(policy(ingress({"namespaceSelector": apart, "podSelector": name_of("b", "c")})))
    assert callers(made) == {"x/a", "y/b", "y/c", "z/b", "z/c"}
    never = {"matchExpressions": [*name_of("b")["matchExpressions"], *name_of("c")["matchExpressions"]]}
    assert callers(network(policy(ingress({"podSelector": never})))) == {"x/a"}
