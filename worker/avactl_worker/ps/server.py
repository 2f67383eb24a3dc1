"""A parameter server: one thread for each connection of a worker.

A server decides nothing about the order of steps; the clock of the job master does. In synchronous training it keeps
the gradients of a step, by worker, and merges them when the first request of a later step arrives: no worker may send
one before all gradients of the step have arrived.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import ssl
import threading
import time
from collections import OrderedDict
from typing import Any, Callable

import numpy as np

from avactl_worker.ps import frames
from avactl_worker.ps.errors import ServerError
from avactl_worker.ps.table import Table

log = logging.getLogger("avactl_worker")

_GREETING = 10.0
"""Seconds within which a new connection says who it is."""
_PAUSE = 0.1
"""Seconds without new connections when the system has no files, threads or memory for one."""
_TABLES, _CLIENTS, _CONNECTIONS, _WORKERS = 1000, 100_000, 20_000, 20_000
_STRANGERS = 1000
"""Connections that have not said yet who they are; at most a quarter of the files that the process may open."""
_STEPS = 1 << 53
_AHEAD = 1 << 20
"""Steps by which a request may be ahead of all before: one that is not of this job must not end all of its steps."""
_KEPT = 1024
"""Bytes of the objects of a kept push, and of each of its parts, beside the arrays."""
_LARGEST = 1e18


class _Client:
    """What a server knows of a worker's process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pushed = 0
        """Number of its last push that was taken."""
        self.late = False


class _Gradients:
    """The gradients of one worker in one step."""

    def __init__(self, parts: list[tuple[Table, Any, Any]], weight: float, scale: float, size: int) -> None:
        self.parts, self.weight, self.scale = parts, weight, scale
        self.nbytes = size + _KEPT * (1 + len(parts))


class Server:
    """The tables of one server."""

    def __init__(self, memory: int) -> None:
        """`memory`: bytes that all tables, and the gradients of steps that have not ended, may have."""
        self._memory = memory
        self._lineage = os.urandom(8).hex()
        """Another one after a restart: the parameters are lost."""
        self._tables: dict[str, Table] = {}
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._lock = threading.Lock()
        self._pending: dict[int, dict[str, _Gradients]] = {}
        self._kept = 0
        """Bytes of the pending gradients."""
        self._done = 0
        """Last synchronous step that is in the parameters."""
        self._places = threading.Semaphore(_CONNECTIONS)
        self._strangers: dict[socket.socket, socket.socket] = {}
        """Connections that have not said yet who they are, as they are and as they are encrypted; the oldest first."""
        self._most_strangers = _most_strangers()
        self._door = threading.Lock()
        self._operations: dict[Any, Callable[..., tuple[dict[str, Any], list[Any]]]] = {
            "declare": self._declare,
            "set": self._set,
            "ready": self._ready,
            "pull": self._pull,
            "push": self._push,
            "export": self._export,
        }

    def serve(self, listener: socket.socket) -> None:
        """Serve workers until this process closes the listener."""
        short = False
        while True:
            try:
                self._accept(listener)
                short = False
            except ConnectionAbortedError:  # the peer was faster
                continue
            except (OSError, RuntimeError, MemoryError) as error:  # RuntimeError: no thread could be started
                if listener.fileno() < 0:
                    return
                if not short:
                    log.warning("no new connections for now: %s", error)
                short = True
                time.sleep(_PAUSE)

    def _accept(self, listener: socket.socket) -> None:
        peer, _ = listener.accept()
        if not self._places.acquire(blocking=False):
            peer.close()
            return
        try:
            self._let_in(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()
        except BaseException:
            self._leave(peer)
            raise

    def _let_in(self, peer: socket.socket) -> None:
        with self._door:
            self._strangers[peer] = peer
            if len(self._strangers) > self._most_strangers:  # workers say at once who they are, so the oldest is none
                oldest = self._strangers.pop(next(iter(self._strangers)))
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it

    def _leave(self, peer: socket.socket) -> None:
        with self._door:
            self._strangers.pop(peer, None)
            peer.close()
        self._places.release()

    def _serve(self, peer: socket.socket) -> None:
        try:
            self._converse(peer)
        except OSError:
            pass  # the peer has gone
        except Exception as error:
            log.warning("a connection was closed: %s: %s", type(error).__name__, error)
        finally:
            self._leave(peer)

    def _converse(self, peer: socket.socket) -> None:
        peer, client = self._greet(peer)
        with peer:
            while True:
                head, size = frames.receive_head(peer)
                body: Any = np.empty(size, dtype=np.uint8)  # not zeroed
                frames.receive_into(peer, body)
                try:
                    answer, values = self._answer(client, head, memoryview(body))
                except ServerError as error:
                    answer, values = {"error": str(error)}, []
                except Exception as error:  # the worker would ask again for ever
                    log.exception("a request failed")
                    answer, values = {"error": f"a request failed: {type(error).__name__}: {error}"}, []
                frames.send(peer, answer, values)

    def _greet(self, stranger: socket.socket) -> tuple[socket.socket, _Client]:
        """Return the connection, encrypted if there is a token, and the worker's process that is at its other end."""
        deadline = time.monotonic() + _GREETING
        stranger.settimeout(_GREETING)
        stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        frames.send(stranger, {"protocol": frames.PROTOCOL, "token": bool(frames.token())})
        peer = self._encrypted(stranger) if frames.token() else stranger
        try:
            if isinstance(peer, ssl.SSLSocket):
                peer.do_handshake()
            head, _ = frames.receive_head(peer, most=0, deadline=deadline)
            answer: dict[str, Any] = {"lineage": self._lineage}
            if isinstance(peer, ssl.SSLSocket):
                if not frames.is_proof(head.get("proof"), frames.proof("client", peer)):
                    frames.send(peer, {"error": "AVACTL_PS_TOKEN is another one here"})
                    raise ServerError("a peer does not have the job's token")
                answer["proof"] = frames.proof("server", peer)
            with self._door:
                self._strangers.pop(stranger, None)
            name = str(head.get("client", ""))[:100]
            with self._lock:
                client = self._clients.setdefault(name, _Client())
                self._clients.move_to_end(name)
                if len(self._clients) > _CLIENTS:
                    self._clients.popitem(last=False)
            frames.send(peer, answer)
            peer.settimeout(None)
        except BaseException:
            peer.close()
            raise
        return peer, client

    def _encrypted(self, stranger: socket.socket) -> ssl.SSLSocket:
        with self._door:
            peer = frames.encrypted(stranger, server=True)
            if stranger in self._strangers:
                self._strangers[stranger] = peer  # it has the descriptor now
            return peer

    def _answer(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        operation = self._operations.get(head.get("do") if isinstance(head.get("do"), str) else None)
        if operation is None:
            raise ServerError("unknown request")
        return operation(client, head, body)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _declare(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        definition = head.get("table")
        if not isinstance(definition, dict):
            raise ServerError("a table is declared by an object")
        table = Table(definition)
        with self._lock:
            if table.name not in self._tables and len(self._tables) >= _TABLES:
                raise ServerError(f"a job has at most {_TABLES} tables")
            known = self._tables.setdefault(table.name, table)
        if known.definition != definition:
            changed = sorted(key for key in definition if definition[key] != known.definition[key])
            raise ServerError(
                f"table {table.name} was declared with another {', '.join(changed)}: all workers must declare it alike"
            )
        return {"ready": known.ready}, []

    def _set(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        parts = self._parts(head, body, 1)
        if len(parts) != 1:
            raise ServerError("the first values are those of one table")
        ((table, ids, values),) = parts
        with self._lock, table.lock:
            if not table.ready:  # else another process that takes itself for the first one was faster
                self._check_memory([(table, table.find(ids))])
                table.set(ids, values)
        return {}, []

    def _ready(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        table = self._table(head.get("name"))
        with table.lock:
            table.ready = True
        return {}, []

    def _pull(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        self._settle(_whole(head.get("step"), "step"))
        found = []
        for table, ids, _ in self._parts(head, body, 0):
            with table.lock:
                if not table.ready:
                    raise ServerError(f"table {table.name} has no values yet")
                found.append(table.pull(ids))
        return {}, found

    def _push(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        step, number = _whole(head.get("step"), "step"), _whole(head.get("number"), "number")
        weight, scale = _factor(head.get("weight")), _factor(head.get("scale"))
        worker = head.get("worker")
        if not isinstance(worker, str) or len(worker) > 256:
            raise ServerError("a worker's name has at most 256 characters")
        made = _Gradients(self._parts(head, body, 1), weight, scale, len(body))
        with client.lock:
            # A worker that has not got the answer asks again.
            if number > client.pushed:
                self._settle(step)
                client.late = bool(head.get("sync")) and not self._keep(step, worker, made)
                if not head.get("sync"):
                    self._apply(made.parts, made.scale)
                client.pushed = number
            return {"late": client.late}, []

    def _export(self, client: _Client, head: dict[str, Any], body: Any) -> tuple[dict[str, Any], list[Any]]:
        self._settle(_whole(head.get("step"), "step"))
        table, start = self._table(head.get("name")), _whole(head.get("start"), "start")
        with table.lock:
            ids, values = table.part(start, max(1, (1 << 26) // (4 * table.dim)))
            ids, values = ids.copy(), values.copy()
        return {"count": len(ids)}, [ids, values]

    # -- parts -------------------------------------------------------------------------------------------------------

    def _table(self, name: Any) -> Table:
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            raise ServerError("unknown table: declare it first")
        return table

    def _parts(self, head: dict[str, Any], body: Any, values: int) -> list[tuple[Table, Any, Any]]:
        """Return tables with ids, and with values if `values` is 1. Raises ServerError unless the body is just that."""
        names = head.get("parts")
        if not isinstance(names, list):
            raise ServerError("a request has parts")
        found, seen, at, answer = [], set(), 0, 0
        for each in names:
            if not isinstance(each, list) or len(each) != 2:
                raise ServerError("a part is a table and a number of ids")
            table, count = self._table(each[0]), _whole(each[1], "number of ids")
            if table.name in seen:
                raise ServerError("a request has each table once")
            seen.add(table.name)
            end = at + 8 * count + 4 * count * table.dim * values
            if end > len(body):
                raise ServerError("a request is shorter than its parts")
            answer += 4 * count * table.dim
            if not values and answer > frames.MAX_BODY:
                raise ServerError("the answer is too long: pull less")
            ids = np.frombuffer(body, dtype=np.uint64, count=count, offset=at)
            rows = np.frombuffer(body, dtype=np.float32, count=count * table.dim * values, offset=at + 8 * count)
            found.append((table, ids, rows.reshape(count, -1) if values and count else rows.reshape(0, table.dim)))
            at = end
        if at != len(body):
            raise ServerError("a request is longer than its parts")
        return found

    def _check_memory(self, parts: list[tuple[Table, Any]], more: int = 0) -> None:
        """Raise ServerError unless there is memory. `parts`: tables, and what `find` has returned for ids of them."""
        new = {table.name: int(np.count_nonzero(rows < 0)) for table, rows in parts}
        used = more + self._kept + sum(table.nbytes(new.get(name, 0)) for name, table in self._tables.items())
        if used > self._memory:
            raise ServerError(
                f"the parameters and gradients of a server would need {used / 2**30:.1f} GiB, and it may use "
                f"{self._memory / 2**30:.1f} GiB: give the job more servers, or servers with more memory"
            )

    def _apply(self, parts: list[tuple[Table, Any, Any]], scale: float) -> None:
        with self._lock:
            found = [table.find(ids) for table, ids, _ in parts]
            self._check_memory([(table, rows) for (table, _, _), rows in zip(parts, found)])
            for (table, ids, gradients), rows in zip(parts, found):
                with table.lock:
                    table.push(ids, gradients, scale, rows)

    # -- synchronous steps -------------------------------------------------------------------------------------------

    def _keep(self, step: int, worker: str, made: _Gradients) -> bool:
        """Keep the gradients of a worker; False if the step has ended."""
        with self._lock:
            if step <= self._done:
                return False
            # A worker that was started again in the step computes it again.
            kept = self._pending.get(step, {})
            more = made.nbytes - (kept[worker].nbytes if worker in kept else 0)
            if worker not in kept and len(kept) >= _WORKERS:
                raise ServerError(f"a job has at most {_WORKERS} workers")
            self._check_memory([(table, table.find(ids)) for table, ids, _ in made.parts], more)
            self._pending.setdefault(step, kept)[worker] = made
            self._kept += more
            return True

    def _settle(self, step: int) -> None:
        """Merge the gradients of all steps before this one."""
        if step - 1 <= self._done:
            return
        with self._lock:
            if step - 1 <= self._done:
                return
            if step > self._done + _AHEAD:
                raise ServerError(f"step {step} is far ahead of step {self._done + 1}, where this server is")
            for each in sorted(number for number in self._pending if number < step):
                made = self._pending.pop(each)
                self._kept -= sum(gradients.nbytes for gradients in made.values())
                self._merge(made)
            self._done = step - 1

    def _merge(self, made: dict[str, _Gradients]) -> None:
        """Make one update with the mean of all workers' gradients, in the order of their names."""
        total = sum(each.weight for each in made.values())
        if not total:
            return
        by_table: dict[str, list[tuple[float, Any, Any]]] = {}
        for worker in sorted(made):
            for table, ids, gradients in made[worker].parts:
                by_table.setdefault(table.name, []).append((made[worker].weight, ids, gradients))
        scale = min(each.scale for each in made.values())
        for name, parts in by_table.items():
            table = self._tables[name]
            ids = np.unique(np.concatenate([ids for _, ids, _ in parts]))
            merged = np.zeros((len(ids), table.dim), dtype=np.float32)
            for weight, own, gradients in parts:
                merged[np.searchsorted(ids, own)] += np.float32(weight) * gradients
            merged /= np.float32(total)
            with table.lock:
                table.push(ids, merged, scale)


def _most_strangers() -> int:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _STRANGERS if files == resource.RLIM_INFINITY else max(1, min(_STRANGERS, files // 4))


def _factor(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise ServerError("a push has a weight and a scale from 0")
    return float(value)


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _STEPS:
        raise ServerError(f"a {what} is a number from 0")
    return value
