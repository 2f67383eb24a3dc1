"""The lightweight endpoint picker of the Gateway API Inference Extension, and a client of its protocol, ext_proc.

It has the options of llm-d's picker that avactl sets, except for `UNKNOWN_OPTIONS`, and chooses pods in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tools.controlplane import ControlPlane, process
from tools.controlplane.build import Module, build_binaries
from tools.endpointpicker.ext_proc import Picked, ask
from tools.waiting import wait_until

__all__ = ["MODULE", "EndpointPicker", "Picked"]

HERE = Path(__file__).parent
MODULE = Module(HERE, "-s -w", {"lwepp": "sigs.k8s.io/gateway-api-inference-extension/cmd/lwepp"})
UNKNOWN_OPTIONS = ("--metrics-endpoint-auth", "--tracing", "--config-text")
"""Options that only llm-d's picker has."""
_PORTS = {"--grpc-port": 0, "--grpc-health-port": 1, "--metrics-port": 2}


class EndpointPicker(process.Processes):
    """A picker with the arguments of a pod, for the length of a `with` block; it has ports of its own, on loopback.

    `account`: namespace and name of its service account. Entering raises UnavailableError or BuildError without the
    binary.
    """

    def __init__(
        self, plane: ControlPlane, account: tuple[str, str], arguments: Sequence[str], folder: Path, name: str
    ) -> None:
        super().__init__()
        self._plane, self._account, self._folder, self._name = plane, account, folder, name
        ports = [process.free_port() for _ in _PORTS]
        self._arguments = [
            f"{key}={ports[_PORTS[key]]}" if (key := each.partition("=")[0]) in _PORTS else each
            for each in arguments
            if not each.startswith(UNKNOWN_OPTIONS)
        ]
        self.address = f"127.0.0.1:{ports[0]}"
        self.log = folder / f"{name}.log"

    def __enter__(self) -> Self:
        binary = build_binaries(["lwepp"], [MODULE])["lwepp"]
        config = self._folder / f"{self._name}-kubeconfig"
        self._plane.write_kubeconfig(config, self._plane.service_account_token(*self._account, 36_000))
        environment = {"KUBECONFIG": str(config), "HOME": str(self._folder)}
        self._processes["picker"] = process.spawn([binary, *self._arguments], self.log, environment, cwd=self._folder)
        return self

    def close(self) -> None:
        """End it."""
        self.stop("picker")

    def ask(self) -> Picked:
        """Return the pod that it chooses for a request, or why it chooses none."""
        return ask(self.address)

    def wait(self) -> None:
        """Wait until it knows a pod. Raises TimeoutError with the end of its log."""
        wait_until(lambda: self.ask().endpoint, details=lambda: process.tail(self.log, 20))
