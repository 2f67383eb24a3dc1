"""PyTorch: synchronous steps whose gradients are averaged by torch.distributed, which is set up anew for each round.

The store for its set-up is the master's, so no worker holds it.
"""

from __future__ import annotations

import ctypes
import logging
import select
import sys
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Iterable, NoReturn

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed as dist  # type: ignore[import-not-found,unused-ignore]

from avactl_worker import messages as m
from avactl_worker.ring import Ring, Round, RoundEnded
from avactl_worker.session import Session

if TYPE_CHECKING:
    from avactl_worker import Master
    from avactl_worker.group import Group
    from avactl_worker.step import Step

log = logging.getLogger("avactl_worker")

_SETUP = timedelta(seconds=30)
"""For the set-up, in which a peer that stops cannot be noticed otherwise."""
_MAX_FAILURES = 5
"""Failures of torch.distributed without a step between them and without a lost peer, after which training fails."""
_KEPT_STORES = 64
"""The latest ones stay alive, because C++ holds only its own half of a store: nccl, which connects late and looks into
the store from threads of its own, would find no methods in it."""
_NEWS_S = 5.0
"""Seconds after a failure in which the master tells of a peer that is lost."""
_SHORTEST, _LONGEST = 0.0002, 0.002
"""Seconds between two looks at a collective."""
_failures: list[str] = []
"""Failures since the last step. torch.distributed has one process group for the whole process."""
_excepthook = sys.excepthook
"""The hook before torch.distributed's. It wraps the one that it finds, anew in each round."""
_abandoned: list[tuple[Any, Any]] = []
"""Process groups, each with a collective that is not completed."""


def group(
    master: Master, state: list[Any], backend: str = "", timeout: float = 300.0, least: int | None = None
) -> Group:
    """Join the workers that train together, with a torch.distributed process group for each round.

    `state` are modules and optimizers. `backend`: nccl if there are GPUs, otherwise gloo. A collective that takes
    `timeout` seconds although no worker is lost ends the round. See `Master.group`.
    """
    found = master.group(state, least)
    chosen = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    found.each_round(_Connector(found, master.session, chosen, timedelta(seconds=timeout)).connect)
    return found


def average(step: Step, parameters: Iterable[Any], *metrics: Any) -> list[float]:
    """Replace the gradients of parameters by their means over all workers, weighted by their records.

    Returns the means of the metrics, too. Call it once a step, between `backward` and the optimizer's step.
    """
    chosen = [each for each in parameters if each.requires_grad]
    parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in chosen]
    like = parts[0] if parts else torch.zeros(0)
    parts += [torch.as_tensor(each, device=like.device) for each in metrics]
    kind = torch.float32
    for each in parts:
        kind = torch.promote_types(kind, each.dtype)
    flat = torch.cat([each.detach().reshape(-1).to(like.device, kind) for each in parts])
    # The gradients of no records may be NaN.
    flat = flat * step.records if step.records else torch.zeros_like(flat)
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()  # the time for this worker's own work ends here

    def run(links: Ring, total: float) -> Any:
        found = flat.clone()
        _finish(lambda: dist.all_reduce(found, async_op=True), links.round)
        return found / total

    found = step.together(flat.numel(), step.records, run)
    start = 0
    for each in chosen:
        part = found[start : start + each.numel()].view_as(each).to(each.dtype)
        start += each.numel()
        if each.grad is not None:
            each.grad.copy_(part)
        elif part.any():  # an unused parameter stays without a gradient, unless another worker used it
            each.grad = part.clone()
    return [float(value) for value in found[start:]]


class _Connector:
    """Sets torch.distributed up."""

    def __init__(self, group: Group, session: Session, backend: str, timeout: timedelta) -> None:
        self._group, self._session, self._backend, self._timeout = group, session, backend, timeout
        self._step = -1
        self._stores: deque[_Store] = deque(maxlen=_KEPT_STORES)

    def connect(self, current: Round) -> Callable[[], None]:
        """Join the process group of a round. Raises RoundEnded, and RuntimeError if torch.distributed never works."""
        if self._group.step != self._step:
            self._step = self._group.step
            _failures.clear()
        place = current.place
        global _excepthook
        _excepthook = sys.excepthook
        store = _Store(self._session, place.revision)
        self._stores.append(store)
        try:
            dist.init_process_group(self._backend, store=store, rank=place.rank, world_size=place.size, timeout=_SETUP)
        except Exception as error:
            _destroy()
            _explain(error, current)
        try:
            # With gloo, this connects what is connected when it is needed; with nccl, too.
            _finish(lambda: dist.all_reduce(_probe(self._backend), async_op=True), current)
        except BaseException:
            _destroy()
            raise
        change = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout  # of older versions
        change(self._timeout)
        return _destroy


def _explain(error: Exception, current: Round) -> NoReturn:
    """Raise RoundEnded for a failure of torch.distributed; the failure itself if it is not the first of its kind.

    torch.distributed notices a lost peer before the master tells of it. Other failures, such as two workers on one GPU,
    come again in each round.
    """
    select.select([current], [], [], _NEWS_S)
    current.check()
    _failures.append(str(error))
    if len(_failures) >= _MAX_FAILURES:
        raise RuntimeError(f"torch.distributed failed {len(_failures)} times in a row: {error}") from error
    raise RoundEnded(f"torch.distributed: {error}") from None


def _probe(backend: str) -> Any:
    return torch.zeros(1, device="cuda" if backend == "nccl" else "cpu")


def _finish(begin: Callable[[], Any], current: Round) -> None:
    """Wait for a collective, or until the round ends: then a peer may be silent for ever. Raises RoundEnded."""
    work = None
    try:
        work = begin()
        pause = _SHORTEST
        while not work.is_completed():
            current.check()
            select.select([current], [], [], pause)
            pause = min(2 * pause, _LONGEST)
        work.wait()
    except RuntimeError as error:
        _explain(error, current)
    finally:
        if work is not None and not work.is_completed():
            _abandon(dist.group.WORLD, work)


def _abandon(world: Any, work: Any) -> None:
    """Keep a process group, also at the end of this process, for as long as a collective is not completed.

    Its destructor would wait for it: until the timeout, if a peer is stopped.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(world))
    _abandoned.append((world, work))


def _destroy() -> None:
    """End the process group."""
    for world, work in list(_abandoned):
        if work.is_completed():
            _abandoned.remove((world, work))
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(world))
    if sys.excepthook.__module__ == dist.distributed_c10d.__name__:
        sys.excepthook = _excepthook
    if not dist.is_initialized():
        return
    try:
        getattr(dist.distributed_c10d, "_abort_process_group", dist.destroy_process_group)()
    except RuntimeError as error:
        log.warning("torch.distributed could not be ended well: %s", error)


class _Store(dist.Store):  # type: ignore[misc,unused-ignore]
    """The store of a round, at the master. Its methods are those that torch.distributed calls."""

    def __init__(self, session: Session, revision: int) -> None:
        super().__init__()
        self._session, self._revision = session, revision

    def _ask(self, operation: str, *keys: str, value: Any = b"", expected: Any = b"") -> m.Value:
        asked = m.Store(
            revision=self._revision,
            operation=operation,
            keys=list(keys),
            value=_bytes(value),
            expected=_bytes(expected),
        )
        deadline = time.monotonic() + _SETUP.total_seconds()
        while time.monotonic() < deadline:
            # An empty answer comes from time to time, as long as the keys are missing. Nothing is said twice: additions
            # would count twice.
            found = self._session.ask_once(store=asked).value
            if found is not None:
                return found
        raise dist.DistStoreError(f"no key {', '.join(keys)[:200]} for {_SETUP.total_seconds():.0f} s")

    def set(self, key: str, value: Any) -> None:
        self._ask("set", key, value=value)

    def get(self, key: str) -> bytes:
        return self._ask("get", key).value

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", key, value=str(value)).value)

    def compare_set(self, key: str, expected_value: Any, desired_value: Any) -> bytes:
        return self._ask("compare", key, expected=expected_value, value=desired_value).value

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", *keys).found

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self._ask("wait", *keys)

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", key).found

    def num_keys(self) -> int:
        return int(self._ask("count").value)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
