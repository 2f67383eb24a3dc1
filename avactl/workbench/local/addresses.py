"""Loopback addresses and ports of a run, and their names in texts.

Each pod gets an address of its own, so that several may use the same port. Names are replaced in texts, because a
process cannot have a resolver of its own without privileges. Some servers listen on all addresses (TensorFlow's gRPC
servers, PyTorch's TCPStore): where texts name the port of more than one pod, each pod has its own.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Iterable, Mapping

from avactl.workbench.local.errors import LocalRunError

MAX_PODS = 200
"""Most pods of a run: one /24."""
_RUN_NUMBERS = range(1, 201)
_LOCK_PORT = 29499
_FIRST_PORT, _PORTS = 10240, 100
"""Ports of run N are 10240 + 100 N …, below the range that Linux gives to clients."""
_DNS_SUFFIX = ".cluster.local"


class AddressBlock:
    """The addresses 127.N.0.1 to .200 and a hundred ports, reserved until `close`.

    Raises LocalRunError if the machine has no such addresses, or all are in use.
    """

    def __init__(self) -> None:
        for number in _RUN_NUMBERS:
            lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                lock.bind((f"127.{number}.255.254", _LOCK_PORT))
            except OSError as error:
                lock.close()
                if error.errno != errno.EADDRINUSE:
                    hint = "run on Linux, where all of 127.0.0.0/8 is the machine itself"
                    raise LocalRunError(f"no loopback address 127.{number}.255.254: {error.strerror}", hint) from None
                continue
            self.number, self._lock = number, lock
            break
        else:
            raise LocalRunError(f"{len(_RUN_NUMBERS)} local runs are active", "end some of them")
        first = _FIRST_PORT + _PORTS * self.number
        self._ports = iter(range(first, first + _PORTS))

    def close(self) -> None:
        self._lock.close()

    def address(self, pod: int) -> str:
        """Return the address of the pod with that number, from 0."""
        return f"127.{self.number}.0.{pod + 1}"

    def port(self, wanted: int) -> int:
        """Return a port for the whole run: the wanted one for the only run, if nothing listens there."""
        return wanted if self.number == _RUN_NUMBERS[0] and _is_free(wanted) else self.own_port()

    def own_port(self) -> int:
        """Return a port that nothing else has. Raises LocalRunError."""
        for port in self._ports:
            if _is_free(port):
                return port
        raise LocalRunError("no free port for the job", "use fewer workers: `--workers N`")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


class Translation:
    """Replaces pods' DNS names by their addresses, and the rendezvous port by that of the run."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        names: Mapping[str, str],
        port: int | None,
        texts: Iterable[str],
        block: AddressBlock,
    ) -> None:
        """`addresses`: by pod. `names`: DNS names to pods. `texts`: everything that may name ports."""
        self._addresses, self._names, self._port = addresses, names, port
        every = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        suffix = f"(?:{re.escape(_DNS_SUFFIX)})?"
        self._pattern = re.compile(rf"(?<![\w.-])({every}){suffix}(?![\w-]|\.\w)(?::(\d+))?") if names else None
        named = {names[found[1]] for text in texts for found in self._find_names(text) if found[2] == str(port)}
        self.port = None if port is None else block.port(port)
        """Rendezvous port of the run."""
        self._own = {pod: block.own_port() for pod in addresses if pod in named} if len(named) > 1 else {}

    def _find_names(self, text: str) -> Iterable[re.Match[str]]:
        return self._pattern.finditer(text) if self._pattern else ()

    def text(self, text: str) -> str:
        """Return a text with addresses instead of names."""
        return self._pattern.sub(self._replace_name, text) if self._pattern else text

    def _replace_name(self, found: re.Match[str]) -> str:
        pod = self._names[found[1]]
        port = found[2]
        if port is None:
            return self._addresses[pod]
        if port == str(self._port):
            port = str(self._own.get(pod, self.port))
        return f"{self._addresses[pod]}:{port}"

    def variable(self, name: str, value: str) -> str:
        """Return the value of a variable with addresses; one that only has the port gets that of the run."""
        if name.endswith("PORT") and value == str(self._port):
            return str(self.port)
        return self.text(value)


def path_translator(mounts: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces mount paths, and paths below them, by local directories.

    >>> paths({"/data": "/tmp/run/data"})("--data=/data/train --out /database")
    '--data=/tmp/run/data/train --out /database'
    """
    kept = {path.rstrip("/"): local for path, local in mounts.items() if path.rstrip("/")}
    if not kept:
        return lambda text: text
    every = "|".join(re.escape(path) for path in sorted(kept, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./-])({every})(?![\w.-])")
    return lambda text: pattern.sub(lambda found: kept[found[1]], text)
