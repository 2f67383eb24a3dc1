"""A worker in a check: it joins the coordinator, tests what it is told to, and learns the outcome."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Mapping, Tuple

from avactl_worker.health_check.diagnosis import Result
from avactl_worker.health_check.frames import GREETING, Channel, Message, ProtocolError, dial, free_port
from avactl_worker.health_check.settings import FAILED, MAX_PROCESSES, REPLACED, STARTS, Settings, patience

Outcome = Tuple[int, str]
"""Exit code, and what to print."""
_SILENCE = 30.0
"""Seconds without a message after which the coordinator is lost."""
_ANSWER = 5.0
"""Seconds for a connection and its greeting."""
_AGAIN = 1.0
"""Seconds between two attempts to reach the coordinator."""
_STRANGE = 5
"""Attempts in a row that find another program at worker 0."""
_IMPORTS = 5
"""Share of a test's timeout that the first import of torch may take: it may be read over the network."""
_MAX_SAID = 2000
"""Characters of the coordinator's message that are printed."""
_PROBE = (sys.executable, "-m", "avactl_worker.health_check.probe")


class Member:
    """One worker."""

    def __init__(self, settings: Settings, log: Callable[[str], None]) -> None:
        self._settings, self._log = settings, log
        self._replaced: dict[str, int] = {}
        self._backend, self._devices = "sockets", 0
        self._met = False
        """True once a coordinator has answered."""
        self._connected = False
        """True once worker 0 has, if only to refuse a connection: the network works."""
        self._told = ""

    def run(self, coordinating: Callable[[], bool]) -> Outcome:
        """Take part until the outcome is known. `coordinating` says if this pod's own coordinator runs."""
        self._describe()
        began = since = time.monotonic()
        strange = 0
        while True:
            try:
                channel = dial(*self._settings.coordinator, _ANSWER)
            except (OSError, ProtocolError, EOFError) as error:
                self._connected = self._connected or _answers(error)
                strange = strange + 1 if self._in_training(error) else 0
                outcome = self._without_coordinator(began, since, strange)
                if outcome is None and self._settings.index == 0 and not coordinating():
                    outcome = STARTS, f"warning: the nodes are not checked: {error}"
                if outcome is not None:
                    return outcome
                time.sleep(_AGAIN)
                continue
            with contextlib.closing(channel):
                try:
                    outcome = self._take_part(channel)
                except (OSError, ProtocolError, EOFError, KeyError, TypeError, ValueError) as error:
                    self._log(f"the coordinator is lost: {error}")
                    outcome = None
            if outcome is not None:
                return outcome
            if self._met:
                since, strange = time.monotonic(), 0
            time.sleep(_AGAIN)

    def _describe(self) -> None:
        found = _run_probes([{}], min(_IMPORTS * self._settings.timeout, self._settings.wait))[0]
        if "error" in found:
            self._log(f"without torch: {found['error']}")
        else:
            self._backend, self._devices = found["backend"], found["devices"]

    # -- without a coordinator ------------------------------------------------------------------------------------

    def _in_training(self, error: Exception) -> bool:
        """Return True if worker 0 listens for its training: on the same port, or on that of the rendezvous."""
        if isinstance(error, (ProtocolError, EOFError)):
            return True
        host, port = self._settings.coordinator[0], self._settings.rendezvous
        if self._settings.index == 0 or port == self._settings.own_port:
            return False
        try:
            socket.create_connection((host, port), timeout=_ANSWER).close()
        except OSError:
            return False
        return True

    def _without_coordinator(self, began: float, since: float, strange: int) -> Outcome | None:
        settings, now = self._settings, time.monotonic()
        late = settings.restarts and not self._met and now - began > settings.alone
        if strange >= _STRANGE or late:
            return self._alone()
        isolated = not settings.restarts and not self._connected and now - began > settings.wait / 2
        if isolated and settings.index and self._peers() and not any(_reaches(*each) for each in self._peers()):
            return REPLACED, "this worker is replaced: it reaches no other worker"
        if now - since > settings.wait:
            return STARTS, f"warning: this node is not checked: no coordinator at {settings.coordinator[0]}"
        return None

    def _peers(self) -> list[tuple[str, int]]:
        """Return addresses of some other workers, by the names of pods."""
        settings = self._settings
        name, dot, domain = settings.coordinator[0].partition(".")
        if not dot or not name.endswith("-0"):
            return []
        near = [settings.index - 1, settings.index + 1, 1, 2]
        others = {each for each in near if 0 < each < settings.workers} - {settings.index}
        return [(f"{name[:-1]}{each}.{domain}", settings.own_port) for each in sorted(others)]

    def _alone(self) -> Outcome:
        """Test this node only, twice if need be: the others train already."""
        result = Result()
        for _ in range(2):
            host, port = free_port(self._settings.address)
            count = self._devices if self._backend == "nccl" else 1
            result = self._test(
                {
                    "backend": self._backend,
                    "host": host,
                    "port": port,
                    "first": 0,
                    "processes": count,
                    "world": count,
                    "bytes": self._settings.size,
                    "timeout": self._settings.timeout,
                }
            )
            if not result.error:
                return STARTS, f"checked alone, {result.seconds:.3g} s: the others are not in a check"
        return REPLACED, f"this worker is replaced: {result.error}"

    # -- with one -------------------------------------------------------------------------------------------------

    def _take_part(self, channel: Channel) -> Outcome | None:
        """Return the outcome, or None if another coordinator has to be found."""
        settings = self._settings
        hello = {
            "index": settings.index,
            "run": settings.run,
            "incarnation": settings.incarnation,
            "address": settings.address,
            "port": free_port(settings.address)[1],
            "backend": self._backend,
            "devices": self._devices,
            "gpus": settings.gpus,
            "replaced": self._replaced,
        }
        channel.send({"hello": hello})
        while True:
            message = channel.wait(_SILENCE)
            if "refused" in message:
                self._log(f"refused: {message['refused']}")
                return None
            self._met = True
            if "end" in message:
                if message["end"] not in (STARTS, REPLACED, FAILED):
                    raise ProtocolError("an end that no check has")
                return message["end"], str(message["message"])[:_MAX_SAID]
            if "replaced" in message:
                self._replaced = {str(each): int(count) for each, count in message["replaced"].items()}
            elif "test" in message:
                self._report(channel, message["test"])
            elif settings.index and message.get("state", self._told) != self._told:
                self._told = message["state"]
                self._log(self._told)

    def _report(self, channel: Channel, test: Message) -> None:
        result = self._test(test)
        if result.error:
            self._log(f"test with {', '.join(f'worker {each}' for each in test['with']) or 'itself'}: {result.error}")
        port = free_port(self._settings.address)[1]
        channel.send({"report": {"round": test["round"], "port": port, **result._asdict()}})

    def _test(self, test: Mapping[str, Any]) -> Result:
        """Run the processes of one test on this node. Raises ProtocolError if they are too many.

        Size and time are those of this worker's own settings, whoever has answered as the coordinator.
        """
        count, size, timeout = int(test["processes"]), self._settings.size, self._settings.timeout
        if not 0 < count <= MAX_PROCESSES:
            raise ProtocolError(f"a test of {count} processes")
        given = {**test, "bytes": size, "timeout": timeout}
        probes = [{**given, "rank": int(test["first"]) + device, "device": device} for device in range(count)]
        found = _run_probes(probes, timeout)
        error = next((each["error"] for each in found if "error" in each), "")
        return Result(error=str(error)) if error else Result(max(float(each["seconds"]) for each in found))


def _run_probes(probes: list[dict[str, Any]], timeout: float) -> list[dict[str, Any]]:
    """Run processes at the same time, and return what they print; an error instead for those that do not end."""
    # Found as this process has found it, also where it runs from a directory.
    library = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (library, os.environ.get("PYTHONPATH"))))}
    running = [
        # The same interpreter, with numbers and addresses that the coordinator has checked.
        subprocess.Popen([*_PROBE, json.dumps(each)], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603
        for each in probes
    ]
    deadline = time.monotonic() + patience(timeout)
    found: list[dict[str, Any]] = []
    try:
        for each in running:
            try:
                out, _ = each.communicate(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                found.append({"error": f"hung for {timeout:g} s"})
                continue
            lines = [line for line in out.splitlines() if line.startswith(b"{")]
            found.append(json.loads(lines[-1]) if lines else {"error": f"ended with code {each.returncode}"})
    finally:
        for each in running:
            each.kill()
            each.communicate()
    return found


def _reaches(host: str, port: int) -> bool:
    try:
        dial(host, port, _ANSWER).close()
    except (OSError, ProtocolError, EOFError) as error:
        return _answers(error)
    return True


def _answers(error: Exception) -> bool:
    """Return True if another machine has answered, although not as a worker: its image may still be pulled."""
    return isinstance(error, (ProtocolError, EOFError, ConnectionError))


def greet(listener: socket.socket) -> threading.Thread:
    """Greet whoever connects, so that other workers find this one."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                with contextlib.closing(connection):
                    connection.settimeout(_ANSWER)
                    Channel(connection).send(GREETING)
                    connection.settimeout(_ANSWER)
                    connection.recv(1)  # the other side closes first
            except OSError:
                if listener.fileno() < 0:
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread
