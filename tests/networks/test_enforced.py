"""NetworkPolicies enforced by kube-router: packets go where the evaluator says, and nowhere else.

Pods are network namespaces whose addresses the API server knows; each connection of the tables of
`test_connections.py` is tried over TCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest

from avactl.contracts.names import TEAM_LABEL
from avactl.kinds.team.network import METADATA_SERVICES
from tests.networks.evaluator import Network, Pod
from tests.networks.packets import NODE, PodNetwork, Try
from tests.networks.pods import network_of, pods_of
from tests.networks.test_connections import NEEDED, PORTS, REFUSED, ava, every_kind, extra_pods
from tools.controlplane import ControlPlane, KubeClient
from tools.kuberouter import KubeRouter
from tools.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("kuberouter")]
STORE = "198.51.100.7"
METADATA = [address for address in METADATA_SERVICES if ip_address(address).version == 4]
Compiled = tuple[Network, dict[str, Pod]]


def compiled_pods(of: str) -> Compiled:
    """Return the policies and pods of a case."""
    if of == "kinds":
        return network_of(every_kind(), "main"), {**pods_of(every_kind(), "main"), **extra_pods()}
    return network_of(ava(), of), pods_of(ava(), of)


@pytest.fixture(
    scope="module",
    params=["kinds", pytest.param("train", marks=pytest.mark.slow), pytest.param("serve", marks=pytest.mark.slow)],
)
def case(request: pytest.FixtureRequest) -> Compiled:
    """The pods of all kinds, and those of the organisation in `examples/ava`."""
    return compiled_pods(request.param)


@pytest.fixture(scope="module")
def packets(case: Compiled, control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The networks of the pods, with kube-router at work."""
    network, pods = case
    # Nobody makes accounts here.
    arguments = {"kube-apiserver": ["--disable-admission-plugins=ServiceAccount"]}
    with PodNetwork(pods, [STORE, *METADATA]) as made, ControlPlane(arguments=arguments) as plane:
        with plane.client() as kube:
            register(kube, network, pods)
        with KubeRouter(plane, "n0", made.node, tmp_path_factory.mktemp("kuberouter")):
            yield made


def register(kube: KubeClient, network: Network, pods: dict[str, Pod]) -> None:
    """Tell the API server of the node, the policies, and the pods, which run."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}}
    kube.create(node)
    addresses = {"addresses": [{"type": "InternalIP", "address": NODE}]}
    merge = "application/merge-patch+json"
    kube.request("PATCH", "/api/v1/nodes/n0/status", body={"status": addresses}, content_type=merge)
    for name in {pod.namespace for pod in pods.values()} | network.namespaces.keys():
        labels = {k: v for k, v in network.namespaces.get(name, {}).items() if "pod-security" not in k}
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    for policy in network.policies:
        kube.apply({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", **policy})
    for number, pod in enumerate(pods.values()):
        kube.create(body_of(pod, f"pod-{number}"))
        ip = NODE if pod.host_network else pod.ip
        status = {"phase": "Running", "hostIP": NODE, "hostIPs": [{"ip": NODE}], "podIP": ip, "podIPs": [{"ip": ip}]}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/pod-{number}/status"
        kube.request("PATCH", path, body={"status": status}, content_type=merge)


def body_of(pod: Pod, name: str) -> dict[str, Any]:
    """Return the object of a pod on the node."""
    ports = {(port.number, port.protocol): port for port in pod.ports}
    declared = [
        {"containerPort": number, "protocol": protocol, **({"name": port.name} if port.name else {})}
        for (number, protocol), port in ports.items()
        if not pod.host_network
    ]
    container = {"name": "main", "image": "registry.example.com/x:1", "ports": declared}
    metadata = {"name": name, "namespace": pod.namespace, "labels": dict(pod.labels)}
    spec = {"nodeName": "n0", "hostNetwork": pod.host_network, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def expect(case: Compiled, packets: PodNetwork, tries: set[Try]) -> None:
    """Wait until exactly those connections are made that the evaluator admits."""
    network, pods = case
    packets.listen({(each.to, each.port) for each in tries})
    wanted = {each for each in tries if network.admits(pods[each.source], pods.get(each.to, each.to), each.port)}
    made: set[Try] = set()

    def agrees() -> bool:
        nonlocal made
        made = packets.admitted(tries)
        return made == wanted

    try:
        wait_until(agrees)
    except TimeoutError:
        assert (sorted(made - wanted), sorted(wanted - made)) == ([], []), "(only in packets, only by the evaluator)"


@pytest.mark.parametrize("case", ["kinds"], indirect=True)
def test_the_tables_of_connections_hold_for_packets(case: Compiled, packets: PodNetwork) -> None:
    needed = {Try(source, to, port) for source, to, ports in NEEDED for port in ports}
    refused = {Try(source, to, port) for source, to, ports in REFUSED for port in ports}
    expect(case, packets, needed | refused)
    made = packets.admitted(needed | refused)
    assert (needed - made, refused & made) == (set(), set())


def test_packets_reach_stores_but_no_metadata_service(case: Compiled, packets: PodNetwork) -> None:
    network, pods = case
    own = [name for name, pod in pods.items() if TEAM_LABEL in network.namespaces.get(pod.namespace, {})]
    assert own
    tries = {Try(name, address, 80) for name in own for address in (STORE, *METADATA)}
    expect(case, packets, tries)


@pytest.mark.parametrize("ports", [PORTS[:6], PORTS[6:12], PORTS[12:]], ids=str)
def test_packets_go_where_the_evaluator_says(case: Compiled, packets: PodNetwork, ports: tuple[int, ...]) -> None:
    """All pairs of pods; the node always reaches its pods, which is in no policy."""
    pods = case[1]
    tries = {
        Try(source, to, port)
        for source, pod in pods.items()
        for to in pods
        for port in ports
        if source != to and not pod.host_network
    }
    expect(case, packets, tries)
