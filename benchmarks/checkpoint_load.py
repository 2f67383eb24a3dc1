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
COMPUTE = 1.0
"""Seconds of a forward and backward pass, which a sleep stands in for."""


def parameters(size: int) -> tuple[Any, Any]:
    """Return a model of LAYERS layers and its Adam; with the two moments, each tensor is a third of `size` bytes."""
    each = size // (LAYERS * 3 * 4)
    model = torch.nn.ParameterList(torch.randn(each) for _ in range(LAYERS))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


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
    model, optimizer = parameters(size)
    found = []
    places = {"copy": folder / "copy", "overlap": folder / "overlap"}
    checkpoints = {
        name: Checkpoints(place, every=1e9, keep=1, overlap=name == "overlap", model=model, optimizer=optimizer)
        for name, place in places.items()
    }
    for each in checkpoints.values():
        each.step(0)  # memory for the copies is allocated from here on
        each.save(0, wait=True)
    for index in range(1, count + 1):
        path = folder / "torch.pt"

        def save(path: Path = path) -> None:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

        plain = seconds(save)
        row = {"torch.save": plain, "torch.save + fsync": plain + seconds(lambda path=path: sync(path))}  # type: ignore[misc]
        path.unlink()
        for name, each in checkpoints.items():
            os.sync()
            optimizer.step()
            began = time.perf_counter()
            each.save(index)
            blocked = time.perf_counter() - began
            time.sleep(COMPUTE)
            # What the optimizer's step waits for.
            row[name] = blocked + seconds(each._block.wait)
            each.wait()
            row[f"{name}, on disk"] = time.perf_counter() - began
        found.append(row)
    for each in checkpoints.values():
        each.close()
    restored = load(places["overlap"])["model"]
    assert all(torch.equal(restored[name], tensor) for name, tensor in model.state_dict().items())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
