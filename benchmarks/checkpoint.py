"""Blocking time of checkpoints: how long a training loop waits for a save of 1 GB of tensors, beside `torch.save`.

    python -m benchmarks.checkpoint [--gigabytes 1.0] [--rounds 5] [--directory DIR] [--python PYTHON]

Runs in the environment of `make test-frameworks`, or in that of PYTHON. Each round saves the same model and optimizer
to the same directory with `torch.save` as scripts call it (the file is in the page cache when it returns), with
`torch.save` and fsync, and with `avactl_worker.checkpoint`, whose files are on disk when they get their names. `copy`:
training waits for the copy in memory. `overlap`: the copy is made during the next forward and backward pass, which a
sleep stands in for; the figure is the time in `save` and what the optimizer's step waits afterwards. Nothing is left to
write before each save. The bars take medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure import Bar, bar, console
from tools.elastic import environment
from tools.frameworks.build import build_environment

MOST = 0.1


def rounds(python: str, gigabytes: float, count: int, directory: str | None) -> list[dict[str, float]]:
    """Run the rounds in an interpreter with torch, and return the seconds of each."""
    load = Path(__file__).with_name("checkpoint_load.py")
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        command = [python, str(load), folder, str(gigabytes), str(count)]
        done = subprocess.run(command, env=environment(), check=True, stdout=subprocess.PIPE, text=True)
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to save (default: that of temporary files)")
    parser.add_argument("--python", help="an interpreter with torch")
    options = parser.parse_args()
    python = options.python or str(build_environment() / "python")
    found = rounds(python, options.gigabytes, options.rounds, options.directory)
    table = Table("round", *(f"{name} s" for name in found[0]), title=f"saves of {options.gigabytes:g} GB")
    for index, each in enumerate(found):
        table.add_row(str(index + 1), *(f"{value:.3f}" for value in each.values()))
    medians: Any = {name: statistics.median(each[name] for each in found) for name in found[0]}
    table.add_row("median", *(f"{value:.3f}" for value in medians.values()))
    console.print(table)
    for name in ("copy", "overlap"):
        bar(Bar(f"checkpoint-blocking-{name}", medians[name] / medians["torch.save"], MOST, "", 3))


if __name__ == "__main__":
    main()
