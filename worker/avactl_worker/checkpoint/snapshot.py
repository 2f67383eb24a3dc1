"""Copies of a state in memory: tensors and arrays in one block that is used again, everything else pickled.

Training waits for the copy, so it must be fast. Memory that is touched for the first time costs several times the copy,
hence the block is allocated once, in huge pages where the system has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import AbstractSet, Any, Callable, NamedTuple, Sequence

ALIGNMENT = 64
"""Bytes at whose multiples tensors begin, in memory and in files: no data type needs more."""
_CHUNK = 8 << 20
"""Bytes that a thread copies at once."""
_THREADS = 4
"""A few cores use all of a machine's memory bandwidth."""

_libc = ctypes.CDLL(None)
# Unlike ctypes.memmove, these release the GIL.
_memcpy = _libc.memcpy
_memcpy.argtypes, _memcpy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
_memset = _libc.memset
_memset.argtypes, _memset.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t], ctypes.c_void_p


class Snapshot(NamedTuple):
    """A state as it was at one moment. The buffers are valid until the next copy into their block."""

    pickled: bytes
    """The state, with its tensors and arrays as out-of-band buffers of pickle's protocol 5."""
    buffers: list[memoryview]
    complete: Callable[[], bool]
    """Copies what may wait; False if that has changed meanwhile. Call it before the buffers are read."""


def aligned(size: int) -> int:
    """Return a size, rounded up to the next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Source(NamedTuple):
    """Bytes that must be copied: memory at an address, a read-only buffer, or a tensor that torch must copy."""

    size: int
    address: int
    owner: Any

    @property
    def key(self) -> tuple[int, int]:
        return (self.address or id(self.owner), self.size)


class _Pickler(pickle.Pickler):
    """Pickles a state, and collects what must be copied."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._collect)
        self.sources: list[_Source] = []
        self._tensor: _Source | None = None
        self.pinned = False
        """True if there are tensors of GPUs, which are copied faster into page-locked memory."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or not _plain(torch, value):
            return NotImplemented
        requires_grad, value = value.requires_grad, value.detach()
        size = value.numel() * value.element_size()
        direct = value.device.type == "cpu" and value.is_contiguous()
        self.pinned |= value.device.type == "cuda"
        # The pickler hands this buffer to `_collect` before it asks for another object.
        self._tensor = _Source(size, value.data_ptr() if direct else 0, value)
        buffer = pickle.PickleBuffer(bytearray())
        return restored_tensor, (str(value.dtype).split(".")[1], tuple(value.shape), requires_grad, buffer)

    def _collect(self, buffer: pickle.PickleBuffer) -> None:
        source, self._tensor = self._tensor, None
        if source is None:
            raw = buffer.raw()
            address = 0 if raw.readonly or not raw.nbytes else ctypes.addressof(ctypes.c_char.from_buffer(raw))
            source = _Source(raw.nbytes, address, raw)
        self.sources.append(source)


def _plain(torch: Any, value: Any) -> bool:
    """Return True for a tensor that is nothing but its elements; others are pickled as torch does."""
    return (
        value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
    )


def restored_tensor(dtype: str, shape: tuple[int, ...], requires_grad: bool, buffer: Any) -> Any:
    """Return the tensor that `buffer` has the elements of, on the CPU. Checkpoints name this function."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    kind = getattr(torch, dtype)
    flat = torch.frombuffer(buffer, dtype=kind) if memoryview(buffer).nbytes else torch.empty(0, dtype=kind)
    return flat.reshape(shape).requires_grad_(requires_grad)


class Block:
    """Memory for one snapshot at a time."""

    def __init__(self) -> None:
        self._view = memoryview(b"")
        self._address = 0
        self._owner: Any = None
        self._pinned = False
        self._preparing: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._copied = threading.Event()
        self._copied.set()

    def wait(self) -> None:
        """Wait until everything of the last snapshot is copied."""
        self._copied.wait()

    def prepare(self, state: Any) -> None:
        """Allocate memory for copies of a state, in a thread: the first copy then takes no longer than later ones."""
        pickler, _ = _planned(state)
        size = sum(aligned(source.size) for source in pickler.sources)
        self._preparing = threading.Thread(
            target=self._reserve, args=(size, pickler.pinned), name="avactl-checkpoint-memory", daemon=True
        )
        self._preparing.start()

    def copy(self, state: Any, later: AbstractSet[int] = frozenset()) -> Snapshot:
        """Copy a state, but what is at the addresses `later` by `complete` of the snapshot: it must not change before.

        The snapshot before is invalid from now on.
        """
        self.wait()
        pickler, pickled = _planned(state)
        offsets: dict[tuple[int, int], int] = {}
        end = 0
        for source in pickler.sources:
            if source.key not in offsets:  # tied parameters are one tensor under several names
                offsets[source.key] = end
                end += aligned(source.size)
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        self._reserve(end, pickler.pinned)
        placed = [(source, offsets[source.key]) for source in pickler.sources]
        waiting = [(source, offset) for source, offset in placed if source.address in later]
        self._fill([(source, offset) for source, offset in placed if source.address not in later])
        views = [self._view[offset:][: source.size] for source, offset in placed]
        versions = [_version(source) for source, _ in waiting]
        if waiting:
            self._copied.clear()

        def complete() -> bool:
            try:
                if waiting:
                    self._fill(waiting)
                return [_version(source) for source, _ in waiting] == versions
            finally:
                self._copied.set()

        return Snapshot(pickled, views, complete)

    def _reserve(self, size: int, pinned: bool) -> None:
        if size <= len(self._view) and (self._pinned or not pinned):
            return
        self._view, self._owner = memoryview(b""), None  # the old memory is free before the new is allocated
        if pinned:
            import torch

            self._owner = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self._address = self._owner.data_ptr()
            memory: Any = (ctypes.c_char * size).from_address(self._address)
        else:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            _memset(self._address, 0, size)
        self._view, self._pinned = memoryview(memory).cast("B"), pinned

    def _fill(self, sources: Sequence[tuple[_Source, int]]) -> None:
        copies: list[tuple[int, int, int]] = []
        done: set[int] = set()
        wait_for_gpus = False
        for source, offset in sources:
            if not source.size or offset in done:
                continue
            done.add(offset)
            target = self._view[offset : offset + source.size]
            if source.address:
                for start in range(0, source.size, _CHUNK):
                    length = min(_CHUNK, source.size - start)
                    copies.append((self._address + offset + start, source.address + start, length))
            elif isinstance(source.owner, memoryview):
                target[:] = source.owner
            else:
                tensor = source.owner
                view = restored_tensor(str(tensor.dtype).split(".")[1], tuple(tensor.shape), False, target)
                view.copy_(tensor, non_blocking=True)
                wait_for_gpus |= tensor.device.type == "cuda"
        threads = min(_THREADS, len(copies), _cores())
        if threads > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "avactl-checkpoint-copy")
            list(self._pool.map(_copy, [copies[index::threads] for index in range(threads)]))
        else:
            _copy(copies)
        if wait_for_gpus:
            sys.modules["torch"].cuda.synchronize()


def _version(source: _Source) -> int:
    """Return the number of changes of a tensor, which torch counts except for those of `tensor.data`."""
    return int(getattr(source.owner, "_version", 0))


def _planned(state: Any) -> tuple[_Pickler, bytes]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    return pickler, file.getvalue()


def _copy(copies: Sequence[tuple[int, int, int]]) -> None:
    for target, source, size in copies:
        _memcpy(target, source, size)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
