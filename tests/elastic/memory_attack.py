"""A hostile worker of an elastic job, in a process of its own: `memory_attack DIRECTORY SEED`.

Prints by how many bytes the process has grown, and the largest size of the state on disk.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from avactl_worker import messages as m

from avactl.daemons.elastic.service import MemberSession, Service
from avactl.daemons.elastic.state.store import StateStore
from avactl.daemons.elastic.values import MAX_VALUE


def requests(seed: int) -> Iterator[m.Request]:
    """What a hostile worker sends, each message within its own limits."""
    rng = random.Random(seed)
    yield m.Request(id=1, join=m.Join(worker="w", incarnation=1))
    shapes = [rng.choice(("tasks", "files", "few")) for _ in range(4)]
    for number, shape in enumerate(["tasks", "files", "files", *shapes]):
        if shape == "tasks":
            counts, per_task = [rng.randint(1_000_000, 9_000_000)], 1
        else:
            counts = [rng.randrange(1, 2**30) for _ in range(700_000 if shape == "files" else 1000)]
            per_task = 2**30 if shape == "files" else rng.randrange(2**20, 2**30)
        about = m.Definition(counts=counts, records_per_task=per_task, epochs=1_000_000, shuffled=rng.random() < 0.8)
        digest = number.to_bytes(32, "little")
        yield m.Request(id=2, register=m.Registration(name=f"d{number}", digest=digest, definition=about))
        held = [m.TaskKey(dataset=f"d{number}", epoch=0, position=999_999)]
        yield m.Request(id=3, resume=m.Resume(held=held))
    yield m.Request(id=4, rendezvous=m.Rendezvous(address="a:1", least=1, most=1))
    for number in range(80):
        value = rng.randbytes(MAX_VALUE)
        yield m.Request(id=5, store=m.Store(revision=1, operation="set", keys=[f"k{number}"], value=value))


def attack(path: Path, seed: int) -> tuple[int, int]:
    """Return the growth of memory, and the size of the state on disk."""
    service = Service(StateStore(path / "state", 0.0), 0.0)
    member = MemberSession()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = 0
    for number, request in enumerate(requests(seed)):
        raw = request.encode()
        if len(raw) > m.LIMIT:
            continue  # gRPC refuses it
        del request
        service.handle(member, m.Request.decode(raw), number / 100)
        service.store.commit()
        largest = max(largest, sum(each.stat().st_size for each in path.iterdir()))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    return grown, largest


if __name__ == "__main__":
    print(*attack(Path(sys.argv[1]), int(sys.argv[2])))
