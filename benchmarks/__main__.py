"""Run every benchmark, one after the other: `python -m benchmarks`. They get no arguments."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import benchmarks

NO_BENCHMARKS = {
    "__main__",
    "arrivals",
    "checkpoint_load",
    "clusters",
    "devices",
    "elastic_load",
    "elastic_sync",
    "generate",
    "hostile_objects",
    "measure",
    "random_sets",
}


def main() -> None:
    names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    for name in names:
        if name not in NO_BENCHMARKS:
            print(f"— benchmarks.{name} —", flush=True)
            root = Path(benchmarks.__path__[0]).parent
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=root, check=False)


if __name__ == "__main__":
    main()
