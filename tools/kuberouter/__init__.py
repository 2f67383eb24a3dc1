"""The network policy controller of kube-router: it enforces NetworkPolicies in one network, by iptables and ipset."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tools.controlplane import ControlPlane, process
from tools.controlplane.build import Module, build_binaries
from tools.netns import NetworkNamespace
from tools.programs import require_programs
from tools.realnode.machine import OWN_NETWORK, relay

MODULE = Module(Path(__file__).parent, "-s -w", {"kube-router-netpol": "."})


class KubeRouter(process.Processes):
    """The controller of one node, whose network is a namespace, for the length of a `with` block.

    Entering raises UnavailableError without its programs or Go, and BuildError.
    """

    def __init__(self, plane: ControlPlane, node: str, network: NetworkNamespace, folder: Path) -> None:
        super().__init__()
        self._plane, self._node, self._network = plane, node, network
        self._relay: subprocess.Popen[bytes] | None = None
        self.log = folder / f"kube-router-{node}.log"

    def __enter__(self) -> Self:
        require_programs("ipset", "iptables", "nsenter", purpose="kube-router")
        binary = build_binaries(["kube-router-netpol"], [MODULE])["kube-router-netpol"]
        # The API server listens on the loopback device of the machine, and the node has one of its own.
        address = str(urlsplit(self._plane.url).netloc)
        self._relay = relay(self.log, (self._network.path, address), (OWN_NETWORK, address))
        nsenter = shutil.which("nsenter")
        assert nsenter is not None
        command: list[str | Path] = [nsenter, f"--net={self._network.path}", binary, "--node", self._node]
        command += ["--kubeconfig", self._plane.kubeconfig]
        self._processes["kube-router"] = process.spawn(command, self.log, dict(os.environ))
        return self

    def close(self) -> None:
        """End the controller. Its rules stay in the network."""
        self.kill("kube-router")
        if self._relay is not None:
            process.terminate(self._relay, grace=0)
