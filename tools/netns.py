"""Network namespaces, as those of nodes and pods, without processes of their own."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tools.controlplane import UnavailableError, process

_CLONE_NEWNET = 0x40000000
_T = TypeVar("_T")


class NetworkNamespace(process.Closing):
    """A network that is there while this object is open. Sockets stay in the network in which they were made."""

    def __init__(self) -> None:
        """Raises UnavailableError on a machine that does not permit it."""
        self._file = -1

        def make() -> None:
            if _call("unshare", _CLONE_NEWNET):
                self._file = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        _in_thread(make)
        if self._file < 0:
            raise UnavailableError("network namespaces unavailable: they need root on Linux")

    @property
    def path(self) -> Path:
        """The namespace, for other processes of the machine."""
        return Path(f"/proc/{os.getpid()}/fd/{self._file}")

    def run(self, action: Callable[[], _T]) -> _T:
        """Call a function in the network, in a thread of its own."""

        def enter() -> _T:
            if not _call("setns", self._file, 0):
                raise OSError("setns failed")
            return action()

        return _in_thread(enter)

    def ip(self, *lines: Sequence[str]) -> None:
        """Run commands of `ip` in the network."""
        nsenter, ip = (shutil.which(name) for name in ("nsenter", "ip"))
        assert nsenter is not None
        assert ip is not None
        text = "".join(f"{' '.join(line)}\n" for line in lines)
        command = [nsenter, f"--net={self.path}", ip, "-batch", "-"]
        subprocess.run(command, input=text, text=True, check=True, capture_output=True)

    def set(self, setting: str, value: str) -> None:
        """Write a setting below /proc/sys/net."""
        self.run(lambda: Path("/proc/sys/net", setting).write_text(value))

    def close(self) -> None:
        """Let go of the network; it ends with the last process and socket in it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _call(function: str, *arguments: int) -> bool:
    return bool(getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments) == 0)


def _in_thread(action: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
