"""Release: the only module that lets go of data. No other frees, unpins or deletes a file of a tier.

The invariant is: **what is freed or deleted is in the object store, with the size and checksum that the writer's data
had when it was closed.** It holds under kill -9 of the daemon, a worker or a master at any point, because

1. Only a *verified* file is released. `push` sets the mark after it has read the object back from the store and
   compared size and SHA-256 with the file. A daemon that dies before that leaves no mark; the file is pushed again.
2. The mark is an attribute of the file in the engine's journal, not the daemon's memory, and it names the content by
   id and size, and the path. Alluxio's files are written once; one that is written anew has another id, no mark, and is
   dirty. One that is renamed keeps id and mark, and is dirty too: the object store has it under its old name.
3. Before the mark is set, nothing else drops the data: files that are not persisted are not evicted by the engine, and
   `push` pins a file *before* it asks the engine to persist it, so that a persisted file that is not verified is
   not evicted either. The pin is in the journal too. It is removed here, after the mark.
4. Each step here is safe by itself and can be repeated: mark, then unpin, then free. A daemon that dies between two of
   them leaves a file that is verified and still cached.
5. What uploads that failed do to the store later hits nothing that was released: each file has the attribute `BEGUN`
   before its first upload, and a copy that follows an upload that failed, or that an earlier daemon began, is verified
   again when no worker can be busy with that upload any more (`settling`).
6. A durable copy is first renamed to a path that contains its id, and then looked at again: a file that a writer has
   put in its place meanwhile has another id, and is renamed back, now or by the next daemon. A daemon that does not
   evict renames all back.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import NamedTuple

from avactl.daemons.cache.engine import CachedFile, CacheEngine, EngineError, NotFoundError, UnavailableError

TRASH = ".avactl-released"
"""Directory of a durable mount for copies that are about to be deleted."""
REPLACED = "replaced"
"""Directory in it for files that were replaced at the moment of their release, before they were verified."""
BEGUN = b"begun"
"""Attribute of a file whose upload was begun and is not verified."""
_VERSION, _WITHOUT_PATH = "v2", "v1"


class Mark(NamedTuple):
    """The attribute of a verified file."""

    id: int
    size: int
    checksum: str
    """SHA-256, hexadecimal."""
    path: str
    """Digest of the file's path when it was verified; "" in marks of older daemons."""

    @classmethod
    def of(cls, file: CachedFile, checksum: str) -> Mark:
        """Return the mark of a file that is verified at its path."""
        return cls(file.id, file.size, checksum, _path_digest(file.path))

    def encode(self) -> bytes:
        """Return the attribute's value."""
        return f"{_VERSION} {self.id} {self.size} {self.checksum} {self.path}".encode()


def mark_of(file: CachedFile) -> Mark | None:
    """Return a file's mark if it is of the present content, at whatever path that was verified."""
    version, *values = file.mark.decode(errors="replace").split(" ")
    if version == _WITHOUT_PATH:
        values.append("")
    elif version != _VERSION:
        return None
    if len(values) != 4 or values[:2] != [str(file.id), str(file.size)]:
        return None
    return Mark(file.id, file.size, values[2], values[3])


def is_clean(file: CachedFile, path: str = "") -> bool:
    """Return True if the object store is verified to have the present content at a path, by default the file's own."""
    mark = mark_of(file)
    return file.complete and mark is not None and mark.path == _path_digest(path or file.path)


def _path_digest(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:32]


async def unpin(engine: CacheEngine, path: str) -> None:
    """Let the engine evict a verified file when it needs the space. Raises EngineError, also if it is dirty."""
    file = await _clean_file(engine, path)
    if file.pinned:
        await engine.pin(path, False)


async def free(engine: CacheEngine, path: str) -> None:
    """Drop the cached copy of a verified file. Raises EngineError, also if it is dirty."""
    await unpin(engine, path)
    if (await _clean_file(engine, path)).persisted:
        await engine.free(path)


async def delete_durable(engine: CacheEngine, path: str, mount: str) -> bool:
    """Delete the durable copy of a verified file; False if a writer has replaced it meanwhile. Raises EngineError."""
    file = await _clean_file(engine, path)
    trash = _trash_path(mount)
    aside = f"{trash}/{file.id}{path[len(mount.rstrip('/')) :]}"
    try:
        await _rename(engine, path, aside)
    except UnavailableError:
        raise
    except EngineError:
        # A master that was killed in a rename has moved the object, and does not know of it.
        await engine.status(path, refresh=True)
        raise
    moved = await engine.status(aside)
    if moved.id == file.id and moved.size == file.size and moved.mark == file.mark:
        await _delete(engine, aside, trash)
        return True
    await engine.rename(aside, path)
    return False


async def resume_deletes(engine: CacheEngine, mount: str, evict: bool, refresh: bool) -> None:
    """Finish deletes that a daemon began and did not end; what is not verified goes back. Raises EngineError.

    Without `evict`, all go back. With `refresh`, the engine looks into the under-store, and finds what a master that
    was killed in a rename moved.
    """
    trash = _trash_path(mount)
    try:
        found = [file async for file in engine.files(trash, refresh)]
    except NotFoundError:
        return
    for file in found:
        identity, _, rest = file.path[len(trash) + 1 :].partition("/")
        path = f"{mount.rstrip('/')}/{rest}"
        with suppress(NotFoundError):  # a push that is under way has gone on with it
            if evict and identity == str(file.id) and is_clean(file, path):
                await _delete(engine, file.path, trash)
            elif identity != REPLACED:
                await _put_back(engine, file, path, trash)


async def _put_back(engine: CacheEngine, file: CachedFile, path: str, trash: str) -> None:
    with suppress(NotFoundError):
        await engine.status(path, refresh=True)  # a rename that put it back, in which the master was killed
    await engine.status(file.path, refresh=True)
    try:
        await _rename(engine, file.path, path)
    except (NotFoundError, UnavailableError):
        raise
    except EngineError:
        # Its writer has written another since. That one's durable copy will be deleted: then this must not come back.
        await _rename(engine, file.path, f"{trash}/{REPLACED}/{file.id}")


async def _rename(engine: CacheEngine, path: str, to: str) -> None:
    await engine.make_directory(to.rpartition("/")[0])
    await engine.rename(path, to)


def _trash_path(mount: str) -> str:
    return f"{mount.rstrip('/')}/{TRASH}"


async def _delete(engine: CacheEngine, aside: str, trash: str) -> None:
    """Delete a file, and the directories that were made for it."""
    await engine.delete(aside)
    with suppress(EngineError):
        while (aside := aside.rpartition("/")[0]) != trash:
            await engine.delete(aside)


async def _clean_file(engine: CacheEngine, path: str) -> CachedFile:
    file = await engine.status(path)
    if not is_clean(file):
        raise EngineError(f"{path} is not verified to be in the object store")
    return file
