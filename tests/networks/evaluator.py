"""Evaluate NetworkPolicies as the API defines them: which connections do they admit?

Policies are not ordered and only add up. A pod that no policy selects for a direction is open in that direction; a pod
that some select accepts what any rule of theirs allows. A connection needs both its ends. A pod reaches itself, and its
node reaches it. Selectors match no pods in the network of a machine: to plugins, these are the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from avactl.program.manifest import Body


class Port(NamedTuple):
    """A port of a container."""

    number: int
    protocol: str = "TCP"
    name: str = ""


class Pod(NamedTuple):
    """One end of a connection."""

    name: str
    namespace: str
    labels: Mapping[str, str] = {}
    ip: str = "10.0.0.1"
    ports: Sequence[Port] = ()
    host_network: bool = False


class Network(NamedTuple):
    """The policies of a cluster, and the labels of its namespaces."""

    namespaces: Mapping[str, Mapping[str, str]]
    policies: Sequence[Body]

    def admits(self, source: Pod | str, destination: Pod | str, port: int, protocol: str = "TCP") -> bool:
        """Return True if a connection is admitted at both ends; an end that is no pod is an address."""
        if source == destination:
            return True
        return self._allows("Egress", source, destination, destination, port, protocol) and self._allows(
            "Ingress", destination, source, destination, port, protocol
        )

    def _allows(
        self, direction: str, own: Pod | str, peer: Pod | str, server: Pod | str, port: int, protocol: str
    ) -> bool:
        if isinstance(own, str) or own.host_network:
            return True
        selecting = [
            policy
            for policy in self.policies
            if policy["metadata"]["namespace"] == own.namespace
            and direction in _policy_types(policy["spec"])
            and selects(policy["spec"]["podSelector"], own.labels)
        ]
        far, near = ("from", "ingress") if direction == "Ingress" else ("to", "egress")
        return not selecting or any(
            self._peer_matches(rule.get(far) or (), own.namespace, peer)
            and _port_matches(rule.get("ports") or (), server, port, protocol)
            for policy in selecting
            for rule in policy["spec"].get(near) or ()
        )

    def _peer_matches(self, peers: Sequence[Body], namespace: str, other: Pod | str) -> bool:
        return not peers or any(self._is_peer(peer, namespace, other) for peer in peers)

    def _is_peer(self, peer: Body, namespace: str, other: Pod | str) -> bool:
        if (block := peer.get("ipBlock")) is not None:
            return _in_block(block, other if isinstance(other, str) else other.ip)
        if isinstance(other, str) or other.host_network:
            return False
        if (spaces := peer.get("namespaceSelector")) is None:
            in_space = other.namespace == namespace
        else:
            in_space = selects(spaces, self._namespace_labels(other.namespace))
        return in_space and selects(peer.get("podSelector", {}), other.labels)

    def _namespace_labels(self, name: str) -> Mapping[str, str]:
        return {**self.namespaces.get(name, {}), "kubernetes.io/metadata.name": name}


def selects(selector: Body, labels: Mapping[str, str]) -> bool:
    """Return True if a label selector matches; an empty one matches everything."""
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _satisfies(requirement, labels) for requirement in selector.get("matchExpressions") or ()
    )


def _satisfies(requirement: Body, labels: Mapping[str, str]) -> bool:
    key, operator = requirement["key"], requirement["operator"]
    match operator:
        case "In":
            return key in labels and labels[key] in requirement["values"]
        case "NotIn":
            return key not in labels or labels[key] not in requirement["values"]
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(operator)


def _policy_types(spec: Body) -> Iterable[str]:
    """Directions that a policy restricts. Without `policyTypes`, ingress, and egress if it has such rules."""
    return spec.get("policyTypes") or ("Ingress", *(["Egress"] if spec.get("egress") else ()))


def _port_matches(ports: Sequence[Body], server: Pod | str, port: int, protocol: str) -> bool:
    return not ports or any(_is_port(each, server, port, protocol) for each in ports)


def _is_port(rule: Body, server: Pod | str, port: int, protocol: str) -> bool:
    if rule.get("protocol", "TCP") != protocol:
        return False
    wanted = rule.get("port")
    if wanted is None:
        return True
    if isinstance(wanted, str):
        known = () if isinstance(server, str) else server.ports
        return any((each.name, each.number, each.protocol) == (wanted, port, protocol) for each in known)
    first = int(wanted)
    return first <= port <= int(rule.get("endPort", first))


def _in_block(block: Body, address: str) -> bool:
    ip = ip_address(address)
    inside = ip in ip_network(block["cidr"])
    return inside and not any(ip in ip_network(part) for part in block.get("except") or ())
