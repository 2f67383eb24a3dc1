"""The rounds of benchmarks.checkpoint, in an interpreter with torch: DIRECTORY, gigabytes, number of rounds."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
from avactl_worker.checkpoint import Checkpoints, load

LAYERS = 24


class Model:
    """Parameters of a model of LAYERS layers, with Adam's two moments: of three tensors a layer, each is a third."""

    def __init__(self, size: int) -> None:
        each = size // (LAYERS * 3 * 4)
        self.tensors = {f"{layer}.{name}": torch.randn(each) for layer in range(LAYERS) for name in ("w", "m", "v")}

    def state_dict(self) -> dict[str, Any]:
        return self.tensors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = state


def seconds(work: Callable[[], object]) -> float:
    """Return the time of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def sync(path: Path) -> None:
    """Wait until a file is on disk."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> None:
    folder, size, count = Path(sys.argv[1]), int(float(sys.argv[2]) * 1e9), int(sys.argv[3])
    model = Model(size)
    found = []
    ours = folder / "ours"
    checkpoints = Checkpoints(ours, every=1e9, keep=1, model=model)
    checkpoints.step(0)  # memory for the copies is allocated from here on
    time.sleep(3.0)
    for index in range(count):
        path = folder / "torch.pt"
        plain = seconds(lambda path=path: torch.save(model.state_dict(), path))  # type: ignore[misc]
        synced = plain + seconds(lambda path=path: sync(path))  # type: ignore[misc]
        path.unlink()
        os.sync()
        for tensor in model.tensors.values():
            tensor.add_(1.0)
        blocked = seconds(lambda index=index: checkpoints.save(index + 1))  # type: ignore[misc]
        written = blocked + seconds(checkpoints.wait)
        os.sync()
        found.append({"torch.save": plain, "torch.save + fsync": synced, "blocked": blocked, "ours, on disk": written})
    checkpoints.close()
    restored = load(ours)["model"]
    assert all(torch.equal(restored[name], tensor) for name, tensor in model.tensors.items())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
