"""Addresses of a target by DNS, and their first weights from a file."""

from __future__ import annotations

import ipaddress
import json
import socket
from pathlib import Path

WEIGHTS = "/etc/avactl/weights/weights.json"
"""File of the first weights, if it exists: the key of the ConfigMap `NAME-weights`."""


_LEAST, _MOST = 1e-6, 1e6
"""Weights out of this range are none: their sums and inverses would be no numbers."""


class TargetError(ValueError):
    """A target is not `HOST:PORT`."""


def split(target: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `dns:///HOST:PORT` or `[IPV6]:PORT`. Raises TargetError."""
    text = target[7:] if target.startswith("dns:///") else target[4:] if target.startswith("dns:") else target
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and "/" not in host and port.isdecimal() and 0 < int(port) < 65536):
        raise TargetError(f"target `{target}` is not HOST:PORT, such as `classify-headless.vision:8500`")
    return host, int(port)


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, each with the port. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({_joined(str(each[4][0]), port) for each in found})


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class WeightsFile:
    """The file of the first weights; read again when it has changed."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._known: tuple[int, int] | None = None
        self._weights: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """Return weights by address, with or without a port; {} without a file, or with one of another form."""
        try:
            status = self._path.stat()  # kubelets replace a link: no watch of the file itself would see that
            version = (status.st_mtime_ns, status.st_ino)
            if version != self._known:
                self._weights = _weights(json.loads(self._path.read_text(encoding="utf-8")))
                self._known = version
        except (OSError, ValueError, RecursionError):
            self._known, self._weights = None, {}
        return self._weights

    def of(self, addresses: list[str]) -> dict[str, float]:
        """Return the weight of each address with a port; 0 if it is unknown."""
        known = self.read()
        return {each: known.get(each) or known.get(_host(each), 0.0) for each in addresses}


def _host(address: str) -> str:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def _weights(data: object) -> dict[str, float]:
    if not isinstance(data, dict):
        return {}
    return {
        str(address): float(weight)
        for address, weight in data.items()
        if type(weight) in (int, float) and _LEAST <= weight <= _MOST
    }
