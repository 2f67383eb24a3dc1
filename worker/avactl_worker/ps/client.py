"""The parameters of a job, as its workers see them."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from avactl_worker.ps import frames
from avactl_worker.ps.errors import ServerError
from avactl_worker.ps.hashing import owners, seed_of, slots_of

log = logging.getLogger("avactl_worker")

_BLOCK = 1024
"""Values in a row of dense parameters."""
_CONNECT = 5.0
"""Seconds for one attempt."""


class Init(NamedTuple):
    """First values of rows."""

    kind: str
    scale: float


def zeros() -> Init:
    """Return zeros."""
    return Init("zeros", 0.0)


def uniform(scale: float) -> Init:
    """Return values between `-scale` and `scale`."""
    return Init("uniform", scale)


def normal(scale: float) -> Init:
    """Return normal values with mean 0 and standard deviation `scale`."""
    return Init("normal", scale)


class _Link:
    """The connection to one server, which is made again when it breaks."""

    def __init__(self, address: str, client: str, patience: float) -> None:
        self.address, self._client, self._patience = address, client, patience
        self._peer: socket.socket | None = None
        self._lineage = ""

    def __str__(self) -> str:
        return f"the parameter server at {self.address}"

    def send(self, head: dict[str, Any], body: Sequence[Any]) -> bool:
        """Send a request if the connection is good; returns False if it broke."""
        try:
            if self._peer is None:
                self._connect()
            assert self._peer is not None
            frames.send(self._peer, head, body)
        except OSError:
            self.close()
            return False
        return True

    def receive(self, sent: bool, head: dict[str, Any], body: Sequence[Any], into: Sequence[Any]) -> Any:
        """Return the answer, with its arrays in the memory of `into`. Sends the request again if need be."""
        deadline = time.monotonic() + self._patience
        while True:
            if sent:
                try:
                    return self._receive(into)
                except OSError:
                    self.close()
            if time.monotonic() > deadline:
                raise ServerError(f"no answer from {self} for {self._patience:g} s")
            sent = self.send(head, body)
            if not sent:
                time.sleep(0.2)

    def _receive(self, into: Sequence[Any]) -> Any:
        assert self._peer is not None
        answer, size = frames.receive_head(self._peer)
        if "error" in answer:
            raise ServerError(str(answer["error"]))
        if "count" in answer:  # of an export, whose size the server knows
            raw = bytearray(size)
            frames.receive_into(self._peer, raw)
            return answer["count"], raw
        if size != sum(each.nbytes for each in into):
            self.close()
            raise ServerError(f"{self} sent {size} bytes, which were not asked for")
        for each in into:
            if each.nbytes:
                frames.receive_into(self._peer, each)
        return answer

    def _connect(self) -> None:
        host, _, port = self.address.rpartition(":")
        peer = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT)
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            deadline = time.monotonic() + _CONNECT
            about, _ = frames.receive_head(peer, most=0, deadline=deadline)
            if about.get("protocol") != frames.PROTOCOL:
                raise ServerError(f"{self} speaks another protocol than {frames.PROTOCOL}: use its avactl-worker here")
            if about.get("token") is not bool(frames.token()):
                having = "which this worker has" if frames.token() else "and this worker has none"
                raise ServerError(f"{self} has {'no' if frames.token() else 'an'} AVACTL_PS_TOKEN, {having}")
            own: dict[str, Any] = {"client": self._client}
            if frames.token():
                peer = encrypted = frames.encrypted(peer, server=False)
                encrypted.do_handshake()
                own["proof"] = frames.proof("client", encrypted)
            frames.send(peer, own)
            answer, _ = frames.receive_head(peer, most=0, deadline=deadline)
            if "error" in answer:
                raise ServerError(f"{self}: {answer['error']}")
            if frames.token() and not frames.is_proof(answer.get("proof"), frames.proof("server", encrypted)):
                raise ServerError(f"{self} does not have AVACTL_PS_TOKEN of this worker")
            if self._lineage and answer.get("lineage") != self._lineage:
                raise ServerError(f"{self} was started again, and has lost its parameters")
            self._lineage = str(answer.get("lineage"))
            peer.settimeout(None)
        except BaseException:
            peer.close()
            raise
        self._peer = peer

    def close(self) -> None:
        """Close the connection."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None


class Rows(NamedTuple):
    """Rows of a table: `values[index]` has the rows of the ids that were asked for, in their shape."""

    ids: Any
    """Different ids, in the order of the servers."""
    values: Any
    """One row for each of `ids`: float32."""
    index: Any
    """Position in `values` of each id that was asked for."""
    bounds: Any
    """Where the part of each server begins, and the end."""


class Table:
    """A sparse table: rows by id. See `Servers.table`."""

    def __init__(self, servers: Servers, definition: dict[str, Any]) -> None:
        self._servers, self._definition = servers, definition
        self.name, self.dim = definition["name"], definition["dim"]
        self._salt = seed_of(self.name, definition["seed"])

    def pull(self, ids: Any) -> Rows:
        """Return the rows of ids, an array of integers of any shape; each id is asked for once."""
        array = np.asarray(ids)
        if array.dtype.kind not in "iu":
            raise TypeError(f"ids are integers, not {array.dtype}")
        different, index = np.unique(array.astype(np.uint64, copy=False), return_inverse=True)
        owner = self._servers.owner_of(different, self._salt)
        order = np.argsort(owner, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        bounds = np.searchsorted(owner[order], np.arange(self._servers.count + 1))
        found = different[order]
        values = np.empty((len(found), self.dim), dtype=np.float32)
        self._servers.pull(self.name, found, values, bounds)
        return Rows(found, values, place[index].reshape(array.shape), bounds)

    def push(self, rows: Rows, gradients: Any) -> None:
        """Push gradients of `rows.values`, or of `rows.values[rows.index]`, when the step ends."""
        made = np.ascontiguousarray(gradients, dtype=np.float32)
        if made.shape == (*rows.index.shape, self.dim) and made.shape != rows.values.shape:
            merged = np.zeros_like(rows.values)
            np.add.at(merged, rows.index.reshape(-1), made.reshape(-1, self.dim))
            made = merged
        if made.shape != rows.values.shape:
            raise ValueError(f"table {self.name}: gradients have shape {made.shape}, and rows {rows.values.shape}")
        self._servers.collect(self.name, rows.ids, made, rows.bounds)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield ids and values of all rows that have got a gradient, in parts; in the order in which they were made."""
        for link in range(self._servers.count):
            start = 0
            while True:
                count, raw = self._servers.export(link, self.name, start)
                if not count:
                    break
                ids = np.frombuffer(raw, dtype=np.uint64, count=count)
                yield ids, np.frombuffer(raw, dtype=np.float32, offset=8 * count).reshape(count, self.dim)
                start += count


class Dense:
    """Dense parameters: an array, or a list or dict of arrays. See `Servers.dense`."""

    def __init__(self, table: Table, shapes: list[Any], keys: list[Any] | None, single: bool) -> None:
        self._table, self._shapes, self._keys, self._single = table, shapes, keys, single
        self._size = sum(int(np.prod(shape)) for shape in shapes)
        self._ids = np.arange(-(-self._size // _BLOCK), dtype=np.uint64)
        self._rows: Rows | None = None

    def pull(self) -> Any:
        """Return the parameters in the form in which they were declared: float32."""
        self._rows = self._table.pull(self._ids)
        flat = self._rows.values[self._rows.index].reshape(-1)
        found, start = [], 0
        for shape in self._shapes:
            end = start + int(np.prod(shape))
            found.append(flat[start:end].reshape(shape))
            start = end
        if self._single:
            return found[0]
        return found if self._keys is None else dict(zip(self._keys, found))

    def push(self, gradients: Any) -> None:
        """Push gradients of all parameters, in the same form, when the step ends."""
        if self._rows is None:
            raise RuntimeError("pull before the first push")
        parts = [gradients] if self._single else gradients if self._keys is None else [gradients[k] for k in self._keys]
        if [np.shape(each) for each in parts] != self._shapes:
            raise ValueError(f"{self._table.name}: gradients have other shapes than the parameters")
        made = np.empty_like(self._rows.values)
        made[self._rows.index] = _blocks(parts, self._size)
        self._table.push(self._rows, made)


def _blocks(parts: Any, size: int) -> Any:
    flat = np.zeros(-(-size // _BLOCK) * _BLOCK, dtype=np.float32)
    flat[:size] = np.concatenate([np.asarray(each, dtype=np.float32).reshape(-1) for each in parts])
    return flat.reshape(-1, _BLOCK)


class Servers:
    """All parameter servers of a job. Close it by a `with` block."""

    def __init__(
        self, addresses: Sequence[str], clock: Any, sync: bool, worker: str, first: bool, patience: float
    ) -> None:
        """See `connect`. `clock`: that of the job master, None without one."""
        self.count = len(addresses)
        self.step = 0
        """The step in progress."""
        self.weight = 1.0
        """Weight of this worker's gradients in a synchronous step, such as its number of records."""
        self.scale = 1.0
        """Factor of the learning rate."""
        self._clock, self._sync, self._worker, self._first = clock, sync, worker, first
        self._patience = patience
        client = os.urandom(16).hex()
        self._links = [_Link(address, client, patience) for address in addresses]
        self._owners = owners(self.count)
        self._pushed = 0
        self._collected: list[tuple[str, Any, Any, Any]] = []

    def table(self, name: str, dim: int, optimizer: Any, init: Init | None = None, seed: int = 0) -> Table:
        """Return a sparse table with rows of `dim` values, for any 64-bit ids; all workers must declare it alike."""
        definition = self._definition(name, dim, optimizer, init or zeros(), seed, 0)
        self._declare(definition)
        return Table(self, definition)

    def dense(self, name: str, values: Any, optimizer: Any) -> Dense:
        """Return dense parameters, which begin with the `values` of worker 0; the others wait for them."""
        single = not isinstance(values, (list, tuple, dict))
        keys = sorted(values) if isinstance(values, dict) else None
        parts = [values] if single else list(values) if keys is None else [values[key] for key in keys]
        shapes = [np.shape(each) for each in parts]
        size = sum(int(np.prod(shape)) for shape in shapes)
        if not size:
            raise ValueError(f"{name}: there are no values")
        definition = self._definition(name, _BLOCK, optimizer, zeros(), 0, size)
        found = Dense(Table(self, definition), shapes, keys, single)
        if not self._declare(definition) and self._first:
            self._begin(definition, _blocks(parts, size))
        deadline = time.monotonic() + self._patience
        while not self._declare(definition):
            if time.monotonic() > deadline:
                raise ServerError(f"{name} has no values: worker 0 has not declared it for {self._patience:g} s")
            time.sleep(0.05)
        return found

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of steps up to `total`, when the consistency of the job lets this worker begin them.

        What was pushed in a step is sent at its end; the next one begins when all servers have it.
        """
        while True:
            self.step = self._clock.tick() if self._clock is not None else self.step + 1
            if self.step > total:
                return
            yield self.step
            if self._clock is None or self._clock.counts():
                self.flush()
            self._collected = []

    def flush(self) -> None:
        """Send what was pushed, and wait until all servers have it. Only needed outside of `steps`."""
        made, self._collected = self._collected, []
        if not made:
            return
        self._pushed += 1
        requests: list[tuple[int, dict[str, Any], list[Any], list[Any]]] = []
        for server in range(self.count):
            parts, body = [], []
            for name, ids, gradients, bounds in made:
                part = slice(bounds[server], bounds[server + 1])
                if part.start < part.stop:
                    parts.append([name, int(part.stop - part.start)])
                    body += [ids[part], gradients[part]]
            if parts:
                head = {"do": "push", "parts": parts, "step": self.step, "number": self._pushed, "sync": self._sync}
                head.update(worker=self._worker, weight=self.weight, scale=self.scale)
                requests.append((server, head, body, []))
        if any(answer["late"] for answer in self._ask(requests)):
            log.warning("step %d had ended before this worker's gradients arrived: they do not count", self.step)

    def owner_of(self, ids: Any, salt: Any) -> Any:
        """Return the number of the server that has each id of a table."""
        return self._owners[slots_of(ids, salt)]

    def pull(self, name: str, ids: Any, values: Any, bounds: Any) -> None:
        """Fill `values` with the rows of ids, which are in the order of the servers."""
        requests = []
        for server in range(self.count):
            part = slice(bounds[server], bounds[server + 1])
            if part.start < part.stop:
                head = {"do": "pull", "parts": [[name, int(part.stop - part.start)]], "step": self.step}
                requests.append((server, head, [ids[part]], [values[part]]))
        self._ask(requests)

    def collect(self, name: str, ids: Any, gradients: Any, bounds: Any) -> None:
        """Keep gradients until the end of the step."""
        if any(each[0] == name for each in self._collected):
            raise RuntimeError(f"{name} was pushed before in this step: pull and push all of its rows at once")
        self._collected.append((name, ids, gradients, bounds))

    def export(self, server: int, name: str, start: int) -> Any:
        """Return the number of rows of a part, and their bytes."""
        return self._ask([(server, {"do": "export", "name": name, "start": start, "step": self.step}, [], [])])[0]

    def close(self) -> None:
        """Close the connections."""
        for each in self._links:
            each.close()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _definition(self, name: str, dim: int, optimizer: Any, init: Init, seed: int, dense: int) -> dict[str, Any]:
        kind = type(optimizer).__name__
        if kind == "FTRL" and (init.kind != "zeros" or dense):
            raise ValueError(f"{name}: FTRL is for sparse tables that begin with zeros")
        definition: dict[str, Any] = {"name": name, "dim": dim, "optimizer": kind, "options": list(optimizer)}
        return {**definition, "init": init.kind, "scale": init.scale, "seed": seed, "dense": dense}

    def _declare(self, definition: dict[str, Any]) -> bool:
        """Return True if the table has its first values everywhere."""
        asked = {"do": "declare", "table": definition}
        return all(answer["ready"] for answer in self._ask([(each, asked, [], []) for each in range(self.count)]))

    def _begin(self, definition: dict[str, Any], values: Any) -> None:
        ids = np.arange(len(values), dtype=np.uint64)
        owner = self.owner_of(ids, seed_of(definition["name"], definition["seed"]))
        for server in range(self.count):
            own = np.flatnonzero(owner == server)
            head = {"do": "set", "parts": [[definition["name"], len(own)]]}
            self._ask([(server, head, [ids[own], values[own]], [])])
        self._ask([(each, {"do": "ready", "name": definition["name"]}, [], []) for each in range(self.count)])

    def _ask(self, requests: Sequence[tuple[int, dict[str, Any], list[Any], list[Any]]]) -> list[Any]:
        """Send requests to different servers, and return their answers."""
        try:
            sent = [self._links[server].send(head, body) for server, head, body, _ in requests]
            return [
                self._links[server].receive(good, head, body, into)
                for good, (server, head, body, into) in zip(sent, requests)
            ]
        except BaseException:
            self.close()  # an answer that was not read must not be taken for that to the next request
            raise


def connect(addresses: Sequence[str] | None = None, master: Any = None, patience: float = 60.0) -> Servers:
    """Connect to the parameter servers at HOST:PORT (default: those of the job, by $AVACTL_SERVER_HOSTS).

    `master`: the job's, as `avactl_worker.connect` returns it (default: the one at $AVACTL_MASTER). Its clock holds the
    consistency of the job; without a master, it is asynchronous. While a server is unreachable, all calls wait, for at
    most `patience` seconds. Raises ServerError.
    """
    env = os.environ
    if addresses is None:
        port = env.get("AVACTL_PORT", str(frames.PORT))
        addresses = [f"{host}:{port}" for host in env.get("AVACTL_SERVER_HOSTS", "").split(",") if host]
    if not addresses:
        raise ServerError("no addresses of parameter servers: set AVACTL_SERVER_HOSTS, or call connect(['HOST:PORT'])")
    consistency = env.get("AVACTL_CONSISTENCY", "asp")
    if consistency == "asp":
        sync, clock = False, None
    else:
        if master is None and "AVACTL_MASTER" not in env:
            raise ServerError(
                f"`consistency: {consistency}` needs a job master; a synchronous job without backup workers gets one "
                "with `consistency: ssp` and `staleness: 0`"
            )
        if master is None:
            from avactl_worker.master import connect as join

            master = join()
        sync = consistency == "bsp" or env.get("AVACTL_STALENESS", "0") == "0"
        clock = master.clock()
    worker = "" if clock is None else master.worker
    return Servers(addresses, clock, sync, worker, env.get("AVACTL_INDEX", "0") == "0", patience)
