"""Pods as network namespaces behind one node: connections are tried, not computed."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from tests.networks.evaluator import Pod
from tools.netns import NetworkNamespace

NODE, GATEWAY = "192.168.77.1", "169.254.77.1"
"""Addresses of the node: its own, and that of its end of each pod's link."""
PARALLEL = 8
"""Sources at a time, whose sockets are all open."""
PATIENCE_S = 2.0
"""Seconds after which a connection that is neither open nor refused counts as refused: packets were dropped."""


class Try(NamedTuple):
    """One TCP connection; `source` is the name of a pod, `to` a pod's name or an address."""

    source: str
    to: str
    port: int


class PodNetwork(contextlib.AbstractContextManager["PodNetwork"]):
    """The networks of a node, its pods and the world outside. Pods in the node's network are the node."""

    def __init__(self, pods: Mapping[str, Pod], outside: Iterable[str]) -> None:
        self._pods, self._outside = pods, list(outside)
        self._stack = ExitStack()
        self._networks: dict[str, NetworkNamespace] = {}
        self._listening: set[tuple[str, int]] = set()

    def __enter__(self) -> PodNetwork:
        with ExitStack() as stack:
            self.node = stack.enter_context(NetworkNamespace())
            self.node.ip(["link", "set", "lo", "up"], ["address", "add", f"{NODE}/32", "dev", "lo"])
            self.node.set("ipv4/ip_forward", "1")
            # Refused connections are told at once, however many they are.
            self.node.set("ipv4/icmp_ratelimit", "0")
            own = {name: [pod.ip] for name, pod in self._pods.items() if not pod.host_network}
            for number, (name, addresses) in enumerate([*own.items(), ("", self._outside)]):
                self._networks[name] = network = stack.enter_context(NetworkNamespace())
                self._connect(network, f"pod{number}", addresses)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self, network: NetworkNamespace, link: str, addresses: list[str]) -> None:
        """Connect a pod as the CNI plugin `ptp` does: the node routes to each address."""
        self.node.ip(
            ["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(network.path)],
            ["address", "add", f"{GATEWAY}/32", "dev", link],
            ["link", "set", link, "up"],
            *(["route", "add", f"{address}/32", "dev", link] for address in addresses),
        )
        network.ip(
            ["link", "set", "lo", "up"],
            *(["address", "add", f"{address}/32", "dev", "eth0"] for address in addresses),
            ["link", "set", "eth0", "up"],
            ["route", "add", f"{GATEWAY}/32", "dev", "eth0", "scope", "link"],
            ["route", "add", "default", "via", GATEWAY, "src", addresses[0]],
        )

    def _network(self, name: str) -> NetworkNamespace:
        if name in self._pods and self._pods[name].host_network:
            return self.node
        return self._networks.get(name, self._networks[""])

    def address(self, name: str) -> str:
        """Return the address of a pod, or the address itself."""
        pod = self._pods.get(name)
        return name if pod is None else NODE if pod.host_network else pod.ip

    def listen(self, wanted: Iterable[tuple[str, int]]) -> None:
        """Accept connections at ports of pods and addresses: so a refusal is that of the network."""
        for name, port in set(wanted) - self._listening:
            self._listening.add((name, port))
            listen = partial(_listen, (self.address(name), port))
            self._stack.enter_context(self._network(name).run(listen))

    def admitted(self, tries: Iterable[Try]) -> set[Try]:
        """Return the connections that are made."""
        by_source: dict[str, list[Try]] = {}
        for each in tries:
            by_source.setdefault(each.source, []).append(each)

        def connect(source: str) -> set[Try]:
            targets = {each: (self.address(each.to), each.port) for each in by_source[source]}
            return self._network(source).run(partial(_connect, targets))

        # The kernel tells of a thousand refusals a second: the others take the whole time.
        with ThreadPoolExecutor(PARALLEL) as pool:
            return set().union(*pool.map(connect, by_source))


def _listen(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(4096)
    return listener


def _connect(targets: Mapping[Try, tuple[str, int]]) -> set[Try]:
    made: set[Try] = set()
    with ExitStack() as stack:
        waiting = stack.enter_context(selectors.DefaultSelector())
        for each, address in targets.items():
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            if client.connect_ex(address) in (0, errno.EINPROGRESS):
                waiting.register(client, selectors.EVENT_WRITE, each)
        end = time.monotonic() + PATIENCE_S
        while waiting.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    made.add(key.data)
    return made
